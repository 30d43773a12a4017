"""Messages and sums on two GPUs for real: paths show what they must, twins are told apart."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpuscope.benchmarks._harness import device_mpi

pytestmark = [pytest.mark.multigpu, pytest.mark.mpi]


def run(folder: Path, *words: str, reps: int = 3) -> subprocess.CompletedProcess[str]:
    own = ["--out", str(folder), "--reps", str(reps)]
    command = [sys.executable, "-m", "gpuscope", "run", *own, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.nsys
@pytest.mark.parametrize(
    "words",
    [
        ("mpi-pingpong",),
        ("mpi-pingpong", "--twin", "staged"),
        ("norm",),
        ("norm", "--twin", "blocking-copy"),
    ],
    ids=" ".join,
)
def test_the_traces_show_what_they_must(words: tuple[str, ...], tmp_path: Path) -> None:
    done = run(tmp_path / "run", "--nsys", *words)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["mpi-pingpong", "norm"])
def test_a_changed_element_is_caught(name: str, tmp_path: Path) -> None:
    done = run(tmp_path / "run", "--untraced", name, "--twin", "corrupt-element")
    assert done.returncode == 0, done.stderr
    assert "caught, as it must be (wrong data: 1 of " in done.stdout


STEADY = 0.9
"""The parts are timed by themselves, a moment later: on a shared machine they vary by this."""


def test_no_staged_message_is_faster_than_its_parts(tmp_path: Path) -> None:
    words = ("--untraced", "mpi-pingpong", "--path", "staged")
    assert run(tmp_path / "run", *words, reps=10).returncode == 0
    result = json.loads((tmp_path / "run" / "rank0" / "untraced.json").read_text())
    found = result["figures"]
    sizes = [name.split("_")[1] for name in found if name.startswith("host_") and "_half" in name]
    assert len(sizes) == 12
    for size in sizes:
        assert found[f"staged_{size}_half_ns"] >= STEADY * found[f"staged_{size}_bound_ns"]


@pytest.mark.parametrize(
    ("words", "operation"),
    [
        (("mpi-pingpong", "--path", "device"), device_mpi.SENDRECV),
        (("norm", "--path", "mpi-device"), device_mpi.ALLREDUCE),
    ],
)
def test_device_buffers_arrive_or_are_refused(
    words: tuple[str, ...], operation: str, tmp_path: Path
) -> None:
    answer = device_mpi.probe(operation)
    done = run(tmp_path / "run", "--untraced", *words)
    assert done.returncode == (0 if answer.works else 3), done.stderr
    assert answer.works or "this MPI cannot send device buffers (the probe" in done.stderr
