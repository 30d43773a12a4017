"""Between two GPUs for real: every path, the limits, the twins, and what the data check catches."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuscope.benchmarks import WRONG_DATA

pytestmark = pytest.mark.multigpu

Measure = Callable[..., dict[str, Any]]
Run = Callable[..., subprocess.CompletedProcess[str]]
US = 1000
NOT_FASTER = 1.05
"""A quantity may exceed its limit by this factor: both are measured."""


def hop_ns(measure: Measure, *arguments: str) -> float:
    found = measure("p2p-latency", "--size", "64", "--reps", "20", *arguments)
    time: float = found["figures"]["hops_64_ns"]
    return time


def test_hops_over_each_path_take_what_their_way_takes(measure: Measure) -> None:
    straight = hop_ns(measure)
    through_host = hop_ns(measure, "--path", "driver")
    staged = hop_ns(measure, "--path", "staged")
    flags = measure("p2p-latency", "--path", "sm", "--reps", "5")["figures"]["flags_ns"]
    assert flags < straight < min(through_host, staged)
    assert straight < 20 * US


def test_a_hop_grows_little_with_the_message(measure: Measure) -> None:
    found = measure("p2p-latency", "--reps", "20")
    figures = found["figures"]
    assert figures["growth_ratio"] < 2
    assert 0 < figures["alpha_ns"] < 20 * US
    assert figures["push_0_1_ns"] < figures["hops_8_ns"]
    assert found["machine"]["links"][0]["kind"] in {"NVLink", "PCIe"}


@pytest.mark.parametrize("path", ["p2p", "driver", "staged"])
def test_both_directions_carry_more_than_one_and_no_more_than_the_link(
    measure: Measure, path: str
) -> None:
    found = measure("p2p-bandwidth", "--size", "64M", "--path", path, "--reps", "5")
    figures = found["figures"]
    assert figures["sum_rate_bytes_per_s"] > 1.3 * figures["forward_rate_bytes_per_s"]
    for quantity in found["quantities"]:
        assert quantity["value"] < NOT_FASTER * quantity["limit"], quantity


def test_kernels_run_beside_the_copies_and_on_one_stream_do_not(measure: Measure) -> None:
    words = ("p2p-bandwidth", "--size", "64M", "--with-compute", "--reps", "5")
    beside = measure(*words)["figures"]
    serial = measure(*words, "--twin", "one-stream")["figures"]
    assert beside["beside_speedup"] > 1.5
    assert serial["beside_speedup"] < 1.15
    assert serial["sum_rate_bytes_per_s"] < 1.15 * serial["forward_rate_bytes_per_s"]


@pytest.mark.parametrize(
    "words",
    [
        ("p2p-latency", "--size", "64"),
        ("p2p-latency", "--path", "sm"),
        ("p2p-latency", "--path", "staged", "--size", "64"),
        ("p2p-bandwidth", "--size", "64M"),
    ],
)
def test_one_changed_element_is_caught(run_benchmark: Run, words: tuple[str, ...]) -> None:
    done = run_benchmark(*words, "--reps", "2", "--twin", "corrupt-element")
    assert done.returncode == 1
    assert f"gpuscope: {WRONG_DATA}: 1 of " in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    "words",
    [
        ("p2p-latency", "--size", "64", "--reps", "50", "--repeat", "3"),
        ("p2p-bandwidth", "--size", "64M", "--reps", "5", "--repeat", "5"),
        pytest.param(
            ("nccl", "--sizes", "8,128M", "--reps", "5", "--repeat", "3"), marks=pytest.mark.mpi
        ),
    ],
    ids=" ".join,
)
def test_fresh_processes_agree(words: tuple[str, ...], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gpuscope", "run", "--out", str(tmp_path / "run"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.nsys
@pytest.mark.parametrize(
    "words",
    [
        ("p2p-latency",),
        ("p2p-latency", "--twin", "unchained"),
        ("p2p-latency", "--push"),
        ("p2p-latency", "--same-device"),
        ("p2p-latency", "--two-contexts"),
        ("p2p-latency", "--path", "driver"),
        ("p2p-latency", "--path", "driver", "--twin", "unchained"),
        ("p2p-latency", "--path", "staged"),
        ("p2p-latency", "--path", "sm"),
        ("p2p-bandwidth", "--with-compute"),
        ("p2p-bandwidth", "--with-compute", "--twin", "one-stream"),
        ("p2p-bandwidth", "--path", "staged"),
    ],
    ids=" ".join,
)
def test_the_traces_show_what_they_must(words: tuple[str, ...], tmp_path: Path) -> None:
    small = {"p2p-bandwidth": ["--size", "64M"], "p2p-latency": []}[words[0]]
    reps = ["--nsys", "--reps", "3", "--out", str(tmp_path / "run")]
    command = [sys.executable, "-m", "gpuscope", "run", *reps, *words, *small]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
