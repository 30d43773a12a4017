"""The benchmark ``streams`` for real: each test is a process of its own, as a user's run is."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuscope.benchmarks import WRONG_DATA

pytestmark = pytest.mark.gpu

SMALL = ("--size", "16M", "--reps", "3")


Measure = Callable[..., dict[str, Any]]
Run = Callable[..., subprocess.CompletedProcess[str]]


def test_streams_are_faster_than_a_sequence_and_not_faster_than_possible(measure: Measure) -> None:
    found = measure("streams", *SMALL)
    stages = found["stages"]
    assert stages["kernel_ns"] == pytest.approx(stages["h2d_ns"], rel=0.15)
    figures = found["figures"]
    assert 0.7 < figures["pipeline_efficiency"] < 1.03
    assert figures["speedup"] < 1.03 * figures["speedup_max"]
    assert figures["h2d_rate_bytes_per_s"] < found["machine"]["pcie_limit_bytes_per_s"]
    assert found["passes"]["streamed"]["n"] == 3
    assert found["warmup"] >= 5


@pytest.mark.parametrize(
    "twin", ["default-stream", "one-stream", "pageable", "event-chain", "host-sync", "alloc-free"]
)
def test_a_twin_that_cannot_overlap_is_no_faster(measure: Measure, twin: str) -> None:
    found = measure("streams", *SMALL, "--twin", twin)
    assert found["figures"]["pipeline_efficiency"] < 0.15
    assert {row["verdict"] for row in found["expected"]} == {"serialized"}


def test_copies_overlap_beside_a_tiny_kernel(measure: Measure) -> None:
    found = measure("streams", "--size", "64M", "--reps", "3", "--twin", "tiny-kernel")
    assert found["figures"]["pipeline_efficiency"] > 0.6
    rows = {(row["range"], row["a"], row["b"]): row["verdict"] for row in found["expected"]}
    assert rows["streamed", "d2h", "h2d"] == "overlapped"
    assert rows["streamed", "h2d", "kernel"] == "immaterial"


def test_the_race_of_the_shared_buffer_is_caught(tmp_path: Path, run_benchmark: Run) -> None:
    file = tmp_path / "result.json"
    done = run_benchmark("streams", *SMALL, "--twin", "shared-buffer", "--result", str(file))
    assert done.returncode == 1
    assert f"gpuscope: {WRONG_DATA}" in done.stderr
    assert done.stdout == ""
    assert not file.exists()


def test_a_plan_repeats_the_calibrated_run(tmp_path: Path, measure: Measure) -> None:
    first = measure("streams", *SMALL)
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(first))
    second = measure("streams", "--plan", str(plan), "--reps", "3")
    assert second["options"] == first["options"]
    times = [found["passes"]["streamed"]["median_ns"] for found in (first, second)]
    assert times[0] == pytest.approx(times[1], rel=0.1)


def test_blocking_launches_are_refused(run_benchmark: Run) -> None:
    done = run_benchmark("streams", *SMALL, CUDA_LAUNCH_BLOCKING="1")
    assert done.returncode == 2
    assert "CUDA_LAUNCH_BLOCKING" in done.stderr


def test_a_chunk_that_does_not_fit_is_refused_with_one_that_does(run_benchmark: Run) -> None:
    done = run_benchmark("streams", "--size", "1024G")
    assert done.returncode == 2
    assert "use `--size" in done.stderr


def test_without_a_visible_gpu_it_says_so(run_benchmark: Run) -> None:
    done = run_benchmark("streams", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 3
    assert "no CUDA driver or GPU found" in done.stderr
