"""Every small program recorded on this GPU: its mistake is found, its repaired pass is clean."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.nsys]

ROOT = Path(__file__).parents[2]

CAUSES = {
    "null_stream_work": "null-stream-work",
    "host_func": "host-func",
    "gpu_full": "gpu-full",
    "cooperative_launch": "gpu-full",
    "host_read": "host-read",
    "host_sync": "host-sync",
    "synchronous_copy": "synchronous-copy",
    "event_dependency": "event-dependency",
    "comm_after_compute": "comm-after-compute",
    "host_busy": "host-busy",
    "launch_bound": "launch-bound",
    "overlap_with_slowdown": "overlap-with-slowdown",
    "timing_events": "timing-events",
    "issue_order": "issue-order",
    "slow_link": "slow-link",
}
"""Program, which is also the name of the range with the mistake, to the cause."""
ENVIRONMENT = {"issue_order": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}}
"""What a program must be run with to show its mistake."""
REPAIRED_TOO_LITTLE = {"host_busy": ["same-stream"]}
"""What is still to be found in a repaired pass: that of host_busy goes on using one stream."""


def findings(program: str, folder: Path, *options: str) -> list[tuple[str | None, str, str]]:
    """Record a program and return (range, severity, id) of what is found."""
    command = [sys.executable, "-m", "gpuscope", "run", "--nsys", "--json", "--capture", "cuda"]
    command += ["--out", str(folder / "run"), *options, "--"]
    command += [sys.executable, "-m", f"tests.gpu.programs.{program}"]
    environment = os.environ | ENVIRONMENT.get(program, {})
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads((folder / "run" / "analysis.json").read_text("utf-8"))["findings"]
    return [(finding["range"], finding["severity"], finding["id"]) for finding in found]


@pytest.mark.parametrize("program", CAUSES)
def test_a_mistake_is_found_and_its_repair_is_clean(program: str, tmp_path: Path) -> None:
    found = findings(program, tmp_path)

    assert CAUSES[program] in [cause for label, _, cause in found if label == program]
    left = [cause for label, s, cause in found if label == "repaired" and s == "warning"]
    assert left == REPAIRED_TOO_LITTLE.get(program, [])


@pytest.mark.parametrize("program", ["healthy", "strided_copy", "dependent_launch"])
def test_programs_that_do_well_have_nothing_to_repair(program: str, tmp_path: Path) -> None:
    assert [entry for entry in findings(program, tmp_path) if entry[1] == "warning"] == []


def test_call_stacks_name_the_line(tmp_path: Path) -> None:
    findings("host_sync", tmp_path, "--why")

    analysis = json.loads((tmp_path / "run" / "analysis.json").read_text("utf-8"))
    (finding,) = (f for f in analysis["findings"] if f["id"] == "host-sync")
    places = [place["place"] for call in finding["evidence"]["calls"] for place in call["at"]]
    assert any("host_sync.py:" in place and "(chunks)" in place for place in places)


@pytest.mark.multigpu
@pytest.mark.mpi
def test_ranks_out_of_step_are_seen_together(tmp_path: Path) -> None:
    command = ["run", "--nsys", "--ranks", "2", "--capture", "cuda", "--out", str(tmp_path / "run")]
    command += ["--", sys.executable, "-m", "tests.gpu.programs.comm_skew"]
    for words in (command, ["analyze", str(tmp_path / "run"), "--json"]):
        done = subprocess.run(
            [sys.executable, "-m", "gpuscope", *words], cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr

    found = [
        [(f["range"], f["id"]) for f in rank["findings"] if f["severity"] == "warning"]
        for rank in json.loads(done.stdout)
    ]
    assert found == [[("comm_skew", "comm-skew")], []]
