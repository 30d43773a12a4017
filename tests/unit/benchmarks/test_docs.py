from pathlib import Path

import pytest

from gpuscope.benchmarks import BENCHMARKS, Benchmark

PAGE = Path(__file__).parents[3] / "docs" / "benchmarks.md"


@pytest.mark.parametrize("benchmark", BENCHMARKS, ids=lambda benchmark: benchmark.name)
def test_every_benchmark_has_a_section_with_its_twins_and_options(benchmark: Benchmark) -> None:
    _, _, rest = PAGE.read_text(encoding="utf-8").partition(f"\n## {benchmark.name}\n")
    section = rest.partition("\n## ")[0]
    for twin in benchmark.twins:
        assert f"| `{twin.name}` |" in section
    for option in benchmark.options.split("  "):
        assert f"| `{option}` |" in section
