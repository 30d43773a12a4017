"""NCCL on two GPUs for real: modes show what they must, twins are told apart, data is checked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gpuscope

pytestmark = [pytest.mark.multigpu, pytest.mark.mpi, pytest.mark.nsys]

NOT_FASTER = 1.05
"""A rate may exceed the link's by this factor: both are rounded by those who state them."""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpuscope", "run", "--out", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def untraced(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "rank0" / "untraced.json").read_text())
    return found


@pytest.mark.parametrize(
    "words",
    [
        ("nccl", "--sizes", "8,1M"),
        ("nccl", "--with-compute", "--channels", "4,16", "--sizes", "32M"),
        ("nccl", "--twin", "same-stream", "--channels", "4", "--sizes", "32M"),
        ("nccl", "--communicators", "2", "--sizes", "16M"),
        ("nccl-group",),
        ("nccl-group", "--twin", "ungrouped"),
    ],
    ids=" ".join,
)
def test_the_traces_show_what_they_must(words: tuple[str, ...], tmp_path: Path) -> None:
    """And all communication kernels of both ranks are matched, by communicator."""
    done = run(tmp_path / "run", "--nsys", *words, "--reps", "3")
    assert done.returncode == 0, done.stderr
    for quantity in untraced(tmp_path / "run")["quantities"]:
        if quantity["unit"] == "bytes/s":
            assert quantity["value"] < NOT_FASTER * quantity["limit"], quantity
    messages = gpuscope.load_ranks(tmp_path / "run").messages
    assert messages["transfer_ns"].notna().all()
    assert messages["communicator"].notna().all()
    assert messages["size_bytes"].notna().all()


def test_few_channels_cost_nccl_more_than_they_spare_the_kernel(tmp_path: Path) -> None:
    words = ("nccl", "--with-compute", "--channels", "1,16", "--sizes", "32M", "--reps", "5")
    assert run(tmp_path / "run", "--untraced", *words).returncode == 0
    found = untraced(tmp_path / "run")
    times = {name: each["median_ns"] for name, each in found["passes"].items()}
    assert times["comm-1"] > 4 * times["comm-16"]
    assert 1 < found["figures"]["compute_stretch_ratio_16"] < 1.5
    assert times["both-16"] < 0.8 * (times["comm-16"] + times["compute"])


@pytest.mark.parametrize("words", [("nccl", "--sizes", "8,1M"), ("nccl-group",)], ids=" ".join)
def test_one_changed_element_is_caught(words: tuple[str, ...], tmp_path: Path) -> None:
    twin = ("--twin", "corrupt-element", "--reps", "2")
    done = run(tmp_path / "run", "--untraced", *words, *twin)
    assert done.returncode == 0, done.stderr
    assert "caught, as it must be (wrong data: 1 of" in done.stdout
