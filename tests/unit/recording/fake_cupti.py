"""A stand-in for libcuda and libcupti of CUDA 13.0 in the recorded program.

``install(folder)`` makes a folder for PYTHONPATH whose ``sitecustomize`` answers when ctypes loads
the two. A program under it has ``fake_gpu.launch(name)``, ``copy(size)``, ``profiler(start)`` and
``push(name)``/``pop()``, which leave the records that the real calls would.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

LIBRARY = "/opt/fake/libcupti.so.13"

_SITECUSTOMIZE = """\
import ctypes
_real = ctypes.CDLL

def _load(name, *args, **kwargs):
    import fake_gpu
    if name == "libcuda.so.1":
        if fake_gpu.DRIVER is None:
            raise OSError("libcuda.so.1: cannot open shared object file")
        return fake_gpu.Cuda()
    if "libcupti" in str(name):
        return fake_gpu.CUPTI
    return _real(name, *args, **kwargs)

ctypes.CDLL = _load
"""

_FAKE_GPU = '''\
import ctypes, os, sys, threading, time

sys.path.insert(0, {root!r})
from tests.make_cupti import DRIVER_CALLS, RUNTIME_CALLS, SIZES_13, pack
from gpuscope.recording.cupti import layout
sys.path.remove({root!r})

DRIVER, FAULT = {driver!r}, {fault!r}
_KEPT = []


class Cuda:
    def cuDriverGetVersion(self, pointer):
        pointer._obj.value = DRIVER
        return 0

    def cuCtxSynchronize(self):
        return 0

    def cuDeviceGetCount(self, pointer):
        pointer._obj.value = 2
        return 3 if FAULT == "not initialized" else 0

    def cuDevicePrimaryCtxGetState(self, device, flags, active):
        active._obj.value = device if FAULT == "in use" else 0
        return 0


class Cupti:
    """Fills one buffer after another, and gives each back when it is full or flushed."""

    def __init__(self):
        self.kinds, self.correlation, self.dropped = set(), 0, 0
        self.buffer = self.used = self.size = 0
        self.callback, self.heard, self.open = None, set(), []
        self.finished = False

    def cuptiGetVersion(self, pointer):
        pointer._obj.value = 130001
        return 0

    def cuptiGetResultString(self, code, pointer):
        pointer._obj.value = b"CUPTI_ERROR_FAKE"
        return 0

    def cuptiGetTimestamp(self, pointer):
        pointer._obj.value = time.time_ns()
        return 0

    def cuptiActivityGetNextRecord(self, buffer, size, at):
        kind = buffer[0]
        first = ctypes.addressof(buffer)
        at._obj.value = first if at._obj.value is None else at._obj.value + SIZES_13[kind]
        return 0

    def cuptiGetCallbackName(self, domain, number, pointer):
        name = (DRIVER_CALLS if domain == 1 else RUNTIME_CALLS).get(number)
        pointer._obj.value = name and name.encode()
        return 0 if name else 1

    def cuptiSetThreadIdType(self, kind):
        assert kind == 1
        return 0

    def cuptiActivitySetAttribute(self, attribute, size, value):
        assert (attribute, size._obj.value, value._obj.value) == (5, 1, 1)
        return 0

    def cuptiActivityRegisterCallbacks(self, requested, completed):
        self.requested, self.completed = requested, completed
        return 0

    def cuptiActivityEnable(self, kind):
        if FAULT == "refuses":
            return 999
        self.kinds.add(kind)
        return 0

    def cuptiActivityEnableAndDump(self, kind):
        return self.cuptiActivityEnable(kind)

    def cuptiActivityDisable(self, kind):
        self.kinds.discard(kind)
        return 0

    def cuptiActivityEnableDriverApi(self, number, enable):
        assert number in DRIVER_CALLS and enable.value == 0
        return 0

    def cuptiActivityEnableRuntimeApi(self, number, enable):
        assert number in RUNTIME_CALLS and enable.value == 0
        return 0

    def cuptiSubscribe(self, handle, callback, user):
        if FAULT == "busy" or self.callback:
            return 39
        self.callback, handle._obj.value = callback, 7
        return 0

    def cuptiUnsubscribe(self, handle):
        assert handle.value == 7
        self.callback = None
        return 0

    def cuptiEnableCallback(self, enable, handle, domain, number):
        assert handle.value == 7
        self.heard.add((domain, number))
        return 0

    def cuptiActivityFlushAll(self, flag):
        self.give_back()
        return 0

    def cuptiActivityGetNumDroppedRecords(self, context, stream, pointer):
        pointer._obj.value = self.dropped
        return 0

    # what the GPU and the driver do

    def put(self, kind, **values):
        if kind not in self.kinds:
            return
        for name, value in values.items():
            if isinstance(value, str):
                _KEPT.append(ctypes.create_string_buffer(value.encode()))
                values[name] = ctypes.addressof(_KEPT[-1])
        data = pack(kind, SIZES_13, values)
        if self.used + len(data) > self.size:
            self.give_back()
            buffer, size, most = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
            self.requested(ctypes.pointer(buffer), ctypes.pointer(size), ctypes.pointer(most))
            self.buffer, self.size, self.used = buffer.value, size.value, 0
            if not self.buffer:
                self.dropped += 1
                return
        ctypes.memmove(self.buffer + self.used, data, len(data))
        self.used += len(data)

    def give_back(self):
        if self.buffer:
            self.completed(None, 0, self.buffer, self.size, self.used)
        self.buffer = self.used = self.size = 0

    def call(self, name, before=lambda: None, **work):
        self.correlation += 1
        numbers = {{v: k for k, v in RUNTIME_CALLS.items()}}
        number, start = numbers[name], time.time_ns()
        if (2, number) in self.heard:
            self.callback(None, 2, number, ctypes.pointer(ctypes.c_int(0)))
        for kind, values in work.items():
            now = time.time_ns()
            self.put(
                getattr(layout, kind), start=now + 1000, end=now + 5000, deviceId=0, contextId=1,
                streamId=7, correlationId=self.correlation, **values,
            )
        if (2, number) in self.heard:
            self.callback(None, 2, number, ctypes.pointer(ctypes.c_int(1)))
        self.put(
            layout.RUNTIME, cbid=number, start=start, end=time.time_ns(), processId=os.getpid(),
            threadId=threading.get_native_id(), correlationId=self.correlation,
        )


CUPTI = Cupti()


def launch(name):
    CUPTI.call("cudaLaunchKernel_v7000", CONCURRENT_KERNEL=dict(name=name, gridX=1))


def copy(size):
    CUPTI.call("cudaMemcpyAsync_v3020", MEMCPY=dict(bytes=size, copyKind=1, srcKind=2, dstKind=3))


def profiler(start):
    CUPTI.call("cudaProfilerStart_v4000" if start else "cudaProfilerStop_v4000")


def push(name, domain=None):
    number = len(_KEPT) + 1
    where = dict(domain=domain) if domain else dict()
    CUPTI.open.append((number, where))
    CUPTI.put(
        layout.MARKER, flags=2, timestamp=time.time_ns(), id=number, name=name,
        processId=os.getpid(), threadId=threading.get_native_id(), **where,
    )


def pop():
    number, where = CUPTI.open.pop()
    CUPTI.put(
        layout.MARKER, flags=4, timestamp=time.time_ns(), id=number, processId=os.getpid(),
        threadId=threading.get_native_id(), **where,
    )
'''


_NVTX = """\
import os
import fake_gpu

class Domain:
    def __init__(self, name):
        self.name = name

class DummyDomain:
    pass

IN_TIME = "libcupti" in os.environ.get("NVTX_INJECTION64_PATH", "")

def get_domain(name=None):
    return Domain(name) if IN_TIME else DummyDomain()

def push_range(message, domain=None):
    fake_gpu.push(message, get_domain(domain).name)

def pop_range():
    fake_gpu.pop()
"""


def install_nvtx(folder: Path) -> None:
    """Write a stand-in for the package nvtx, which looks for its tool when it is imported."""
    (folder / "nvtx").mkdir()
    (folder / "nvtx" / "nvtx.py").write_text(_NVTX)
    (folder / "nvtx" / "__init__.py").write_text(
        "from nvtx.nvtx import get_domain, pop_range, push_range\n"
    )


def install(folder: Path, *, driver: int | None = 13000, fault: str = "") -> Path:
    """Write the stand-in into `folder`; `fault` is what goes wrong."""
    folder.mkdir(parents=True, exist_ok=True)
    root = str(Path(__file__).parents[3])
    (folder / "sitecustomize.py").write_text(_SITECUSTOMIZE)
    (folder / "fake_gpu.py").write_text(
        textwrap.dedent(_FAKE_GPU).format(root=root, driver=driver, fault=fault)
    )
    return folder
