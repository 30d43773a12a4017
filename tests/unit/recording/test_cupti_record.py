"""``with gpuscope.record(...)``: a part of a running program, with a stand-in for libcupti."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuscope.readers import open_trace
from gpuscope.recording.cupti.library import VARIABLE
from tests.unit.recording import fake_cupti

ROOT = Path(__file__).parents[3]


def run(tmp_path: Path, text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    fake = fake_cupti.install(tmp_path / "fake", fault=environment.pop("fault", ""))
    return subprocess.run(
        [sys.executable, "-c", f"import gpuscope, fake_gpu as gpu\n{text}"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
        env={
            **os.environ,
            "PYTHONPATH": f"{fake}{os.pathsep}{ROOT}",
            VARIABLE: fake_cupti.LIBRARY,
            **environment,
        },
    )


def names_in(path: Path) -> list[str]:
    trace = open_trace(path)
    assert trace.operations is not None
    return [trace.strings[name] for name in trace.operations.name]


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "fake")


def test_only_the_block_is_recorded(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        "gpu.launch('before')\n"
        "with gpuscope.record('out.sqlite') as trace:\n"
        "    gpu.push('step')\n    gpu.launch('inside')\n    gpu.pop()\n"
        "gpu.launch('after')\nprint(trace)\n",
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout == "out.sqlite\n"
    assert names_in(tmp_path / "out.sqlite") == ["inside"]
    assert "ran the recorder's Python 1 time," in done.stderr
    assert left_in(tmp_path) == ["out.sqlite"]


def test_ranges_that_come_too_early_are_told(tmp_path: Path) -> None:
    fake_cupti.install(tmp_path / "fake")
    fake_cupti.install_nvtx(tmp_path / "fake")
    done = run(
        tmp_path,
        "import nvtx\nwith gpuscope.record('out.sqlite'):\n    gpu.launch('inside')\n",
    )

    assert done.returncode == 0, done.stderr
    assert "NVTX was in use before the recording" in done.stderr
    assert names_in(tmp_path / "out.sqlite") == ["inside"]


def test_one_after_another(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        "for name in 'ab':\n"
        "    with gpuscope.record(f'{name}.sqlite'):\n"
        "        gpu.launch(name)\n",
    )

    assert done.returncode == 0, done.stderr
    assert names_in(tmp_path / "a.sqlite") == ["a"]
    assert names_in(tmp_path / "b.sqlite") == ["b"]


def test_a_block_that_fails_is_recorded_and_the_error_passed_on(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        "with gpuscope.record('out.sqlite'):\n"
        "    gpu.launch('inside')\n    raise ValueError('no')\n",
    )

    assert done.returncode == 1
    assert done.stderr.endswith("ValueError: no\n")
    assert names_in(tmp_path / "out.sqlite") == ["inside"]


def test_every_rank_writes_its_own(tmp_path: Path) -> None:
    text = "with gpuscope.record('out.sqlite'):\n    gpu.launch('inside')\n"
    for rank in "01":
        run(tmp_path, text, OMPI_COMM_WORLD_RANK=rank, OMPI_COMM_WORLD_SIZE="2")

    assert left_in(tmp_path) == ["out.rank0.sqlite", "out.rank1.sqlite"]
    assert open_trace(tmp_path / "out.rank1.sqlite").processes[0].rank == 1


def test_records_beyond_the_limit_are_dropped_and_told(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        "with gpuscope.record('out.sqlite', limit_bytes=4 << 20):\n"
        "    for i in range(20_000):\n        gpu.launch('inside')\n",
    )

    assert done.returncode == 0, done.stderr
    trace = open_trace(tmp_path / "out.sqlite")
    assert trace.operations is not None
    assert 15_000 < len(trace.operations) < 20_000
    assert "records found no buffer and are lost" in done.stderr
    assert {check.name: check.state for check in trace.checks}["recording"] == "warning"


@pytest.mark.parametrize(
    ("text", "fault", "sentence"),
    [
        ("with gpuscope.record('no/out.sqlite'): pass", "", "no/out.sqlite cannot be written"),
        ("with gpuscope.record('out.sqlite'): pass", "busy", "another profiler is attached"),
        (
            "with gpuscope.record('out.sqlite', whole_graphs=True): pass",
            "in use",
            "begins before the program uses CUDA",
        ),
        (
            "with gpuscope.record('a.sqlite'):\n    with gpuscope.record('b.sqlite'): pass",
            "",
            "one recording at a time",
        ),
    ],
)
def test_what_cannot_be_is_said(tmp_path: Path, text: str, fault: str, sentence: str) -> None:
    done = run(tmp_path, text, fault=fault)

    assert done.returncode == 1
    assert sentence in done.stderr
    assert not (tmp_path / "out.sqlite").exists()


@pytest.mark.parametrize("fault", ["", "not initialized"])
def test_whole_graphs_before_cuda_is_in_use(tmp_path: Path, fault: str) -> None:
    text = "with gpuscope.record('out.sqlite', whole_graphs=True):\n    gpu.launch('inside')\n"
    done = run(tmp_path, text, fault=fault)

    assert done.returncode == 0, done.stderr
    assert names_in(tmp_path / "out.sqlite") == ["inside"]
