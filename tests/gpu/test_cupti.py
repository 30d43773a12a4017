"""The recorder through CUPTI on a real GPU: each test is a program of its own, as a user's is."""

import contextlib
import json
import os
import sqlite3
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


MANY_KINDS = f"""\
import gpuscope
{WORK}
runtime = cupy.cuda.runtime
kernel = cupy.RawKernel('extern "C" __global__ void tiny(float* x) {{}}', "tiny")
urgent = cupy.cuda.Stream(non_blocking=True, priority=-1)
there, pinned = cupy.empty(1024, "f"), cupy.cuda.alloc_pinned_memory(4096)
event = cupy.cuda.Event(disable_timing=True)
devices = runtime.getDeviceCount()
if devices > 1:
    with cupy.cuda.Device(1):
        far = cupy.empty(1024, "f")
with stream:
    kernel((1,), (32,), (x,))
    stream.begin_capture()
    kernel((1,), (32,), (x,))
    kernel((1,), (32,), (x,))
    graph = stream.end_capture()
    graph.launch(stream)
    stream.synchronize()

def work():
    runtime.memcpyAsync(x.data.ptr, pinned.ptr, 4096, 1, stream.ptr)
    with stream:
        kernel((1,), (32,), (x,))
    runtime.memsetAsync(x.data.ptr, 7, 100, stream.ptr)
    event.record(stream)
    urgent.wait_event(event)
    runtime.memcpyAsync(there.data.ptr, x.data.ptr, 512, 3, urgent.ptr)
    event.synchronize()
    urgent.synchronize()
    if devices > 1:
        runtime.memcpyPeerAsync(far.data.ptr, 1, x.data.ptr, 0, 2048, stream.ptr)
    graph.launch(stream)
    runtime.deviceSynchronize()

with gpuscope.record("nodes.sqlite"):
    work()
with gpuscope.record("whole.sqlite", whole_graphs=True):
    work()
print(devices)
"""


def test_every_kind_of_record(tmp_path: Path) -> None:
    (tmp_path / "kinds.py").write_text(MANY_KINDS)
    devices = int(run(tmp_path, "kinds.py").stdout)

    def rows(trace: str, what: str, table: str, rest: str = "") -> list[tuple[int, ...]]:
        with contextlib.closing(sqlite3.connect(tmp_path / f"{trace}.sqlite")) as database:
            return database.execute(f"SELECT {what} FROM {table} {rest}").fetchall()

    of = "CUPTI_ACTIVITY_KIND_"
    far = [(2048, 10)] if devices > 1 else []
    for trace, graph_nodes in (("nodes", 2), ("whole", 0)):
        kernels = [node for (node,) in rows(trace, "graphNodeId", f"{of}KERNEL")]
        assert len(kernels) == 1 + graph_nodes
        assert len(set(filter(None, kernels))) == graph_nodes
        tables = {name for (name,) in rows(trace, "name", "sqlite_master")}
        assert (f"{of}GRAPH_TRACE" in tables) == (trace == "whole")
        copies = rows(trace, "bytes, copyKind", f"{of}MEMCPY", "ORDER BY start")
        assert copies == [(4096, 1), (512, 8), *far]
        assert rows(trace, "bytes, value", f"{of}MEMSET") == [(100, 7)]
        ((event, recorded),) = rows(trace, "eventId, eventSyncId", f"{of}CUDA_EVENT")
        waits = rows(trace, "syncType, eventId, eventSyncId", f"{of}SYNCHRONIZATION")
        assert {(2, event, recorded), (1, event, recorded)} <= set(waits)
        assert {3, 4} <= {kind for kind, _, _ in waits}
        priorities = rows(trace, "priority, flag", "TARGET_INFO_CUDA_STREAM", "WHERE flag = 2")
        assert sorted(priorities) == [(-1, 2), (0, 2)]
        contexts = rows(trace, "deviceId", "TARGET_INFO_CUDA_CONTEXT_INFO")
        assert {device for (device,) in contexts} == set(range(min(devices, 2)))
        assert len(rows(trace, "id", "TARGET_INFO_GPU")) == devices
