"""`gpuscope list`: the registries, whole."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gpuscope import samples
from gpuscope.analyzers import ANALYZERS
from gpuscope.benchmarks import BENCHMARKS
from gpuscope.cli import main


def test_list_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0

    out = capsys.readouterr().out
    for benchmark in BENCHMARKS:
        assert f"  {benchmark.name}  {benchmark.summary}\n" in out
        assert benchmark.options in out
        assert benchmark.needs in out
        for twin in benchmark.twins:
            assert f"{twin.name} " in out
            assert twin.expectation in out
    for analyzer in ANALYZERS:
        assert analyzer.name in out
        assert analyzer.summary in out
    for name, facts in samples.manifest().items():
        assert re.search(rf"^  {name} +{re.escape(facts['shows'])}$", out, re.M)


def test_the_table_of_the_docs_is_that_of_the_registry() -> None:
    page = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(.+?)` \| (.+?) \| (.+?) \|$", page.partition("\n## ")[0], re.M)
    assert rows == [(each.name, each.summary, each.needs) for each in BENCHMARKS]


def test_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--json"]) == 0

    content = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in content["benchmarks"]] == [one.name for one in BENCHMARKS]
    assert [one["name"] for one in content["analyzers"]] == [one.name for one in ANALYZERS]
    assert [one["name"] for one in content["traces"]] == [*samples.names()]
    twins = {twin["name"] for twin in content["benchmarks"][0]["twins"]}
    assert {"pageable", "shared-buffer"} <= twins
