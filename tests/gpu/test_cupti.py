"""The recorder through CUPTI on a real GPU: each test is a program of its own, as a user's is."""

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

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


MANY_KINDS = """\
import cupy, gpuscope
runtime = cupy.cuda.runtime
devices = runtime.getDeviceCount()

def prepare():
    global x, kernel, stream, urgent, there, far, pinned, event, graph
    x, there = cupy.empty(1024, "f"), cupy.empty(1024, "f")
    pinned, event = cupy.cuda.alloc_pinned_memory(4096), cupy.cuda.Event(disable_timing=True)
    kernel = cupy.RawKernel('extern "C" __global__ void tiny(float* x) {}', "tiny")
    stream = cupy.cuda.Stream(non_blocking=True)
    urgent = cupy.cuda.Stream(non_blocking=True, priority=-1)
    if devices > 1:
        runtime.deviceEnablePeerAccess(1)  # without it the driver copies out and in again
        with cupy.cuda.Device(1):
            far = cupy.empty(1024, "f")
    with stream:
        kernel((1,), (32,), (x,))
        stream.begin_capture()
        kernel((1,), (32,), (x,))
        kernel((1,), (32,), (x,))
        graph = stream.end_capture()
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
"""


def rows(trace: Path, what: str, table: str) -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(trace)) as database:
        return database.execute(f"SELECT {what} FROM {table}").fetchall()


def test_every_kind_of_record(tmp_path: Path) -> None:
    (tmp_path / "nodes.py").write_text(
        f"{MANY_KINDS}"
        "prepare()\n"
        "with gpuscope.record('nodes.sqlite'):\n"
        "    work()\n"
        "print(devices)\n"
    )
    devices = int(run(tmp_path, "nodes.py").stdout)
    trace, of = tmp_path / "nodes.sqlite", "CUPTI_ACTIVITY_KIND_"

    kernels = [node for (node,) in rows(trace, "graphNodeId", f"{of}KERNEL")]
    assert len(kernels) == 3
    assert len(set(filter(None, kernels))) == 2
    far = [(2048, 10)] if devices > 1 else []
    assert rows(trace, "bytes, copyKind", f"{of}MEMCPY ORDER BY start") == [
        (4096, 1),
        (512, 8),
        *far,
    ]
    assert rows(trace, "bytes, value", f"{of}MEMSET") == [(100, 7)]
    ((event, recorded),) = rows(trace, "eventId, eventSyncId", f"{of}CUDA_EVENT")
    waits = rows(trace, "syncType, eventId, eventSyncId", f"{of}SYNCHRONIZATION")
    assert {(2, event, recorded), (1, event, recorded)} <= set(waits)
    assert {3, 4} <= {kind for kind, _, _ in waits}
    streams = {(stream.priority, stream.kind) for stream in open_trace(trace).streams}
    assert {(-1, "non-blocking"), (0, "non-blocking")} <= streams
    contexts = {device for (device,) in rows(trace, "deviceId", "TARGET_INFO_CUDA_CONTEXT_INFO")}
    assert contexts == set(range(min(devices, 2)))
    assert len(rows(trace, "id", "TARGET_INFO_GPU")) == devices


def test_graphs_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "whole.py").write_text(
        f"{MANY_KINDS}"
        "with gpuscope.record('whole.sqlite', whole_graphs=True):\n"
        "    prepare()\n"
        "    work()\n"
        "with gpuscope.record('nodes.sqlite'):\n"
        "    work()\n"
    )
    run(tmp_path, "whole.py")

    whole, kernels = tmp_path / "whole.sqlite", "CUPTI_ACTIVITY_KIND_KERNEL"
    assert len(rows(whole, "start", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE")) == 1
    assert rows(whole, "graphNodeId", kernels) == [(None,)] * 2
    nodes = [node for (node,) in rows(tmp_path / "nodes.sqlite", "graphNodeId", kernels)]
    assert len(set(filter(None, nodes))) == 2


BESIDE_TORCH = """\
import gpuscope, torch
from gpuscope.errors import MissingError

x = torch.zeros(4, device="cuda")
torch.cuda.synchronize()
profiler = torch.profiler.profile(activities=list(torch.profiler.supported_activities()))

def add():
    x.add_(1)
    torch.cuda.synchronize()

def count():
    return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in profiler.events())
"""


def test_a_block_in_that_of_torchs_profiler_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "inside.py").write_text(
        f"{BESIDE_TORCH}"
        "with gpuscope.record('before.sqlite'):\n"
        "    add()\n"
        "with profiler:\n"
        "    add()\n"
        "    try:\n"
        "        with gpuscope.record('inside.sqlite'):\n"
        "            add()\n"
        "    except MissingError as error:\n"
        "        print(error)\n"
        "    add()\n"
        "print(count())\n"
    )
    said, seen = run(tmp_path, "inside.py").stdout.splitlines()

    assert said.startswith("another profiler is attached to this program already")
    assert int(seen) == 2
    assert not (tmp_path / "inside.sqlite").exists()
    operations = open_trace(tmp_path / "before.sqlite").operations
    assert operations is not None
    assert len(operations) == 1


def test_torchs_profiler_takes_nothing_from_a_recording(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "around.py").write_text(
        f"{BESIDE_TORCH}"
        "with gpuscope.record('around.sqlite'):\n"
        "    add()\n"
        "    with profiler:\n"
        "        add()\n"
        "    add()\n"
    )
    run(tmp_path, "around.py")

    operations = open_trace(tmp_path / "around.sqlite").operations
    assert operations is not None
    assert len(operations) == 3
