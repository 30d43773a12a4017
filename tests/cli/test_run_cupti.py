"""`gpuscope run` without Nsight Systems, with a stand-in for libcupti."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuscope.recording.cupti.library import VARIABLE
from tests.unit.recording import fake_cupti, fake_nsys

ROOT = Path(__file__).parents[2]
TRAIN = (
    "import fake_gpu as gpu\nprint('epoch 1')\ngpu.push('step', 'train')\n"
    "gpu.copy(1 << 20)\ngpu.launch('gemm')\ngpu.pop()\n"
)


def run(
    tmp_path: Path, words: Sequence[str], *, fault: str = "", driver: int | None = 13000
) -> subprocess.CompletedProcess[str]:
    fake = fake_cupti.install(tmp_path / "fake", fault=fault, driver=driver)
    (tmp_path / "train.py").write_text(TRAIN)
    environment = {
        **os.environ,
        "PYTHONPATH": f"{fake}{os.pathsep}{ROOT}",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}/bin",
        VARIABLE: fake_cupti.LIBRARY,
    }
    return subprocess.run(
        [sys.executable, "-m", "gpuscope", "run", "--out", "out", *words],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
        env=environment,
    )


@pytest.fixture(autouse=True)
def no_nsys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let $NSYS name something that is no nsys, so that none of this machine is found."""
    monkeypatch.setenv("NSYS", str(tmp_path / "absent"))


@pytest.mark.parametrize("flags", [["--cupti"], []], ids=["asked for", "nsys is missing"])
def test_a_program_from_start_to_result(tmp_path: Path, flags: list[str]) -> None:
    done = run(tmp_path, [*flags, "--", sys.executable, "train.py"])

    assert done.returncode == 0, done.stderr
    assert "epoch 1" in done.stderr
    assert "CUPTI 13.0.1: /opt/fake/libcupti.so.13" in done.stderr
    assert "while it was recorded, the program ran the recorder's Python 1 time," in done.stderr
    assert ("recording through CUPTI (--cupti), because NSYS is set" in done.stderr) is not bool(
        flags
    )
    folder = tmp_path / "out"
    assert sorted(path.name for path in folder.iterdir()) == [
        "analysis.json",
        "run.json",
        "trace.sqlite",
    ]
    record = json.loads((folder / "run.json").read_text())
    assert record["recorder"]["name"] == "cupti"
    assert record["recorder"]["version"] == "13.0.1"
    assert json.loads((folder / "analysis.json").read_text())["trace"]["operations"] == 2


def test_the_range_of_a_program(tmp_path: Path) -> None:
    words = ["--cupti", "--capture", "nvtx:step@train", "--", sys.executable, "train.py"]
    assert run(tmp_path, words).returncode == 0
    done = run(tmp_path, ["--force", *[w.replace("step", "absent") for w in words]])

    assert done.returncode == 5
    assert "never ended an NVTX range absent of domain train" in done.stderr


@pytest.mark.parametrize(
    "more", [["--nsys"], ["--trace", "cuda"], ["--nsys-args=--sample=cpu"], ["--why"]]
)
def test_cupti_stands_alone(tmp_path: Path, more: list[str]) -> None:
    done = run(tmp_path, ["--cupti", *more, "--", sys.executable, "train.py"])

    assert done.returncode == 2
    assert "--cupti stands alone" in done.stderr


def test_nothing_records(tmp_path: Path) -> None:
    done = run(tmp_path, ["--", sys.executable, "train.py"], driver=None)

    assert done.returncode == 3
    assert "is no working nsys" in done.stderr
    assert "Without nsys, CUPTI could record Python programs, but there is no NVIDIA" in done.stderr
    assert not (tmp_path / "out").exists()


def test_cupti_refuses(tmp_path: Path) -> None:
    done = run(tmp_path, ["--cupti", "--", sys.executable, "train.py"], fault="busy")

    assert done.returncode == 3
    assert "another profiler is attached" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_program_that_is_not_python(tmp_path: Path) -> None:
    done = run(tmp_path, ["--cupti", "--", "/bin/ls"])

    assert done.returncode == 2
    assert "gpuscope run --nsys -- ls" in done.stderr


def test_nsys_is_taken_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSYS", str(fake_nsys.make(tmp_path / "bin")))
    done = run(tmp_path, ["--", sys.executable, "train.py"])

    assert done.returncode == 0, done.stderr
    assert "recording with Nsight Systems (--nsys)" in done.stderr
    assert json.loads((tmp_path / "out" / "run.json").read_text())["recorder"]["name"] == "nsys"
