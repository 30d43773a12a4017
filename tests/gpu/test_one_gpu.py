"""The other benchmarks for one GPU for real: limits hold, twins are told apart, data is checked."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from gpuscope.benchmarks import BENCHMARKS, WRONG_DATA

pytestmark = pytest.mark.gpu

Measure = Callable[..., dict[str, Any]]
Run = Callable[..., subprocess.CompletedProcess[str]]

SMALL = {
    "hyperq": ("--kernel-ms", "2"),
    "host-bandwidth": ("--size", "64M", "--copies", "4"),
    "graph": ("--size", "16M"),
    "jacobi": ("--size", "4096"),
    "streams": ("--size", "16M"),
}
"""Options of the benchmarks that take long by default."""
NAMES = [item.name for item in BENCHMARKS if item.needs == "1 GPU"]
NOT_FASTER = 1.05
"""A quantity may exceed its limit by this factor: both are measured."""


def median_ns(result: dict[str, Any], name: str) -> int:
    found: int = result["passes"][name]["median_ns"]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_no_quantity_is_beyond_its_limit(measure: Measure, name: str) -> None:
    found = measure(name, *SMALL.get(name, ()), "--reps", "5")
    for quantity in found["quantities"]:
        value, limit = quantity["value"], quantity["limit"]
        assert value
        if limit is None:
            continue
        ratio = limit / value if quantity["unit"] == "ns" else value / limit
        assert ratio < NOT_FASTER, quantity


@pytest.mark.parametrize("name", NAMES)
def test_one_changed_element_is_caught(run_benchmark: Run, name: str) -> None:
    done = run_benchmark(name, *SMALL.get(name, ()), "--reps", "2", "--twin", "corrupt-element")
    assert done.returncode == 1
    assert f"gpuscope: {WRONG_DATA}: 1 of " in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("name", "twin", "range_name"),
    [
        ("simple-streams", "null-stream", "streamed"),
        ("multicopy", "one-stream", "matched-overlapped"),
        ("graph", "linear", "graph"),
        ("jacobi", "pageable-snapshot", "overlapped"),
    ],
)
def test_a_twin_that_cannot_overlap_is_no_faster(
    measure: Measure, name: str, twin: str, range_name: str
) -> None:
    good = measure(name, *SMALL.get(name, ()), "--reps", "5")
    found = measure(name, *SMALL.get(name, ()), "--reps", "5", "--twin", twin)
    assert good["figures"]["speedup"] > 1.3
    assert found["figures"]["speedup"] < 1.15
    rows = [row for row in found["expected"] if row["range"] == range_name]
    assert rows
    assert {row["verdict"] for row in rows} == {"serialized"}


def test_the_slow_copies_of_the_stencil_leave_the_clock_alone(measure: Measure) -> None:
    found = measure("jacobi", "--reps", "5", "--twin", "pageable-snapshot")  # it must be valid
    assert found["figures"]["speedup"] < 1.15


@pytest.mark.parametrize(
    ("arguments", "peak"),
    [((), 32), (("--connections", "4"), 8), (("--twin", "one-connection"), 2),
     (("--twin", "one-stream"), 1)],
)  # fmt: skip
def test_kernels_at_once_are_as_the_connections_allow(
    measure: Measure, arguments: tuple[str, ...], peak: int
) -> None:
    found = measure("hyperq", "--kernel-ms", "2", "--reps", "3", *arguments)
    figures = found["figures"]
    assert figures["peak_kernels_possible"] == peak
    assert 0.9 * peak <= figures["peak_kernels"] <= peak
    assert figures["speedup"] == pytest.approx(figures["speedup_max"], rel=0.1)


def test_both_directions_together_carry_more_than_one(measure: Measure) -> None:
    found = measure("host-bandwidth", *SMALL["host-bandwidth"], "--reps", "5")["figures"]
    assert found["sum_rate_bytes_per_s"] > 1.3 * found["h2d_rate_bytes_per_s"]
    assert found["h2d_both_rate_bytes_per_s"] < 1.05 * found["h2d_rate_bytes_per_s"]
    pageable = measure("host-bandwidth", "--reps", "3", "--twin", "pageable")["figures"]
    assert pageable["sum_rate_bytes_per_s"] < 1.3 * pageable["d2h_rate_bytes_per_s"]


def nvbandwidth_rates() -> dict[str, list[float]]:
    command = [sys.executable, "-m", "tests.gpu.host_rates"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, list[float]] = json.loads(done.stdout)
    return found


def test_the_link_carries_what_nvbandwidth_would_say(measure: Measure) -> None:
    before = nvbandwidth_rates()
    found = measure("host-bandwidth", "--reps", "5")["figures"]
    after = nvbandwidth_rates()
    for name in before:
        rates = before[name] + after[name]  # with both directions busy they are not steady
        print(f"{name}: {found[name]:.4g}, its way {', '.join(f'{rate:.4g}' for rate in rates)}")
        assert 0.97 * min(rates) < found[name] < 1.03 * max(rates), name


def test_a_graph_costs_the_host_less_than_its_operations(measure: Measure) -> None:
    found = measure("graph", *SMALL["graph"], "--reps", "10")["figures"]
    assert found["graph_issue_ns"] < found["streamed_issue_ns"]


def test_two_contexts_of_one_gpu_measure_its_turns(measure: Measure) -> None:
    turns = measure("p2p-latency", "--two-contexts", "--reps", "3")["figures"]["hops_8_ns"]
    local = measure("p2p-latency", "--same-device", "--size", "8", "--reps", "5")["figures"]
    assert turns > 10 * local["hops_8_ns"]


def test_a_gpu_that_is_not_there_is_missed(run_benchmark: Run) -> None:
    done = run_benchmark("p2p-latency", "--pair", "0-99")
    assert done.returncode == 3
    assert "needs 100 GPUs, found" in done.stderr
