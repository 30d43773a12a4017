"""The recorder through CUPTI on a real GPU: each test is a program of its own, as a user's is."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuscope import api
from gpuscope.analysis import Options
from gpuscope.model.trace import Trace
from gpuscope.readers import open_trace

pytestmark = pytest.mark.gpu

WORK = """\
import cupy, nvtx
x = cupy.arange(1 << 20, dtype=cupy.float32)
stream = cupy.cuda.Stream(non_blocking=True)
cupy.cuda.Device().synchronize()
"""
STEP = """\
with nvtx.annotate("plain"), nvtx.annotate("named", domain="train"), stream:
    y = cupy.sqrt(x)
    host = cupy.asnumpy(y)
"""


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    return done


def ranges_of(trace: Trace) -> set[tuple[str, str | None]]:
    assert trace.ranges is not None
    return {
        (trace.strings[name], trace.strings[domain] if domain >= 0 else None)
        for name, domain in zip(trace.ranges.name, trace.ranges.domain, strict=True)
    }


def launched_in(trace: Trace, name: str) -> list[str]:
    """Return the names of the operations whose call began inside the range."""
    assert trace.ranges is not None
    assert trace.operations is not None
    assert trace.api is not None
    row = [trace.strings[index] for index in trace.ranges.name].index(name)
    starts = trace.api.start_ns[trace.operations.launch]
    inside = (starts >= trace.ranges.start_ns[row]) & (starts < trace.ranges.end_ns[row])
    return [trace.strings[index] for index in trace.operations.name[inside]]


@pytest.mark.parametrize("capture", [None, "cuda"])
def test_a_program(tmp_path: Path, capture: str | None) -> None:
    (tmp_path / "train.py").write_text(
        f"{WORK}cupy.cuda.runtime.profilerStart()\n{STEP}cupy.cuda.runtime.profilerStop()\n"
    )
    options = ["--capture", capture] if capture else []
    command = ["--cupti", "--out", "out", *options, "--", sys.executable, "train.py"]
    run(tmp_path, "-m", "gpuscope", "run", *command)
    trace = open_trace(tmp_path / "out" / "trace.sqlite")

    assert ranges_of(trace) == {("plain", None), ("named", "train")}
    assert launched_in(trace, "named") == ["cupy_sqrt__float32_float32", "D2H copy"]
    assert trace.operations is not None
    assert len(trace.operations) == (2 if capture else 3)
    assert trace.lost_records == 0
    assert json.loads((tmp_path / "out" / "run.json").read_text())["recorder"]["name"] == "cupti"


def test_a_block_of_a_program_that_uses_cuda_already(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(
        f"import gpuscope\n{WORK}"
        "for name in 'ab':\n"
        "    with gpuscope.record(f'{name}.sqlite'):\n"
        + "".join(f"        {line}\n" for line in STEP.splitlines())
    )
    run(tmp_path, "late.py")

    for name in "ab":
        trace = open_trace(tmp_path / f"{name}.sqlite")
        assert launched_in(trace, "named") == ["cupy_sqrt__float32_float32", "D2H copy"]
        assert ranges_of(trace) == {("plain", None), ("named", "train")}
        assert trace.devices[0].copy_engines is not None
        assert {stream.kind for stream in trace.streams} == {"non-blocking"}


@pytest.mark.parametrize("limit_bytes", [4 << 20, 64 << 20])
def test_what_finds_no_space_is_counted_and_said(tmp_path: Path, limit_bytes: int) -> None:
    (tmp_path / "many.py").write_text(
        f"import gpuscope\n{WORK}"
        "stream.use()\n"
        "kernel = cupy.RawKernel('extern \"C\" __global__ void tiny(float* x) {}', 'tiny')\n"
        f"with gpuscope.record('many.sqlite', limit_bytes={limit_bytes}):\n"
        "    for _ in range(30_000):\n"
        "        kernel((1,), (32,), (x,))\n"
    )
    done = run(tmp_path, "many.py")

    trace = open_trace(tmp_path / "many.sqlite")
    assert trace.operations is not None
    is_small = limit_bytes == 4 << 20
    assert ("records found no buffer and are lost" in done.stderr) == is_small
    assert (len(trace.operations) == 30_000) == (not is_small)
    found = {finding.id for finding in api.analyze_trace(trace, Options()).findings}
    assert ("lost-records" in found) == is_small
