"""Collects CUPTI's records inside the program that is recorded.

No Python code runs while the program is recorded, but for handing CUPTI a buffer and taking it
back: once every 2 MiB, or 8 000 launches. The buffers are pieces of one mapped file, so a full one
is kept whatever becomes of the program, and is decoded elsewhere, afterwards.

Only the standard library is used: the program's interpreter may be another one than gpuscope's.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import itertools
import mmap
import os
import re
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpuscope.errors import OutputError, UsageError
from gpuscope.recording.cupti import layout
from gpuscope.recording.cupti.library import Library
from gpuscope.recording.cupti.spool import BUFFER_BYTES, LIMIT_BYTES, End, Spool, Start

DEFAULT_DOMAIN = "gpuscope default"
"""The domain that stands for NVTX's default domain; see :func:`catch_default_domain`."""
INJECTION = "NVTX_INJECTION64_PATH"
"""The environment variable by which NVTX finds the tool that records ranges."""

ENVIRONMENT = (
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "NCCL_ALGO",
    "NCCL_MAX_CTAS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_CTAS",
    "NCCL_MIN_NCHANNELS",
    "NCCL_NVLS_ENABLE",
    "NCCL_PROTO",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK",
    "PMI_SIZE",
    "RANK",
    "SLURM_NTASKS",
    "SLURM_PROCID",
    "WORLD_SIZE",
)
"""The only variables that are kept: those that readers take from a trace."""

_PREPARED_BUFFERS = 32
"""Buffers whose pages are there before the program starts, so that none is faulted in later."""
_TEXT_LIMIT_BYTES = 1 << 16
_MAP_FIXED = 0x10
_ACTIVE: list[Collector] = []
"""The collector that records this process, if one does."""

_RESOURCES = (layout.DEVICE, layout.CONTEXT, layout.STREAM)
"""Kinds recorded from the start: they say what a number means, and come once."""
_WORK = (
    layout.CONCURRENT_KERNEL,
    layout.MEMCPY,
    layout.MEMCPY_PEER,
    layout.MEMSET,
    layout.SYNCHRONIZATION,
    layout.CUDA_EVENT,
    layout.OVERHEAD,
    layout.MARKER,
    layout.MARKER_DATA,
)

_QUERY = re.compile(
    r"cu(da)?(Get|Peek|SetDevice|DeviceGet|DevicePrimaryCtx|PointerGet|FuncGet|StreamGet"
    r"|StreamIsCapturing|ThreadExchange|Occupancy|CtxGet|CtxPush|CtxPop|CtxSetCurrent)"
)
"""Calls that only ask or choose. They are many (CuPy makes three a launch), and are left out."""
_PROFILER = re.compile(r"cu(da)?Profiler(Start|Stop)(_v\d+)?")


def attach_nvtx(collector: Collector) -> None:
    """Have NVTX ranges recorded by the library of `collector`.

    NVTX loads the tool that an environment variable names when it is first used; that must be the
    very libcupti that records. Its markers leave out ranges of the default domain that were begun
    with NVTX's functions for domains and a null handle, as the Python package ``nvtx`` does
    (github.com/NVIDIA/NVTX, issue 65). So that package is given a domain of another name, which is
    called the default one again when the trace is written.
    """
    os.environ[INJECTION] = str(collector.library.path)
    if importlib.util.find_spec("nvtx") is None:
        return
    import nvtx
    import nvtx.nvtx

    get_domain = getattr(nvtx.nvtx, "get_domain", None)
    if get_domain is None or getattr(get_domain, "__module__", "") == __name__:
        return

    def named_domain(name: str | None = None) -> Any:
        return get_domain(DEFAULT_DOMAIN if name is None else name)

    nvtx.get_domain = nvtx.nvtx.get_domain = named_domain
    if type(named_domain()).__name__ == "DummyDomain":
        collector.note(
            "NVTX was in use before the recording, without a recorder: its ranges are not in the "
            "trace. `gpuscope run --cupti -- python ...` is in time for them"
        )


class Collector:
    """Records this process from :meth:`start` to :meth:`stop`.

    Parameters
    ----------
    spool
        The folder to record into; it must exist.
    library
        The libcupti to record with.
    between_profiler_calls
        Record only what lies between ``cudaProfilerStart`` and ``cudaProfilerStop``.
    whole_graphs
        Record a launch of a CUDA graph as one operation, in place of its nodes.
    limit_bytes
        Size of all buffers together. Records beyond it are dropped and counted.
    """

    def __init__(
        self,
        spool: Spool,
        library: Library,
        *,
        between_profiler_calls: bool = False,
        whole_graphs: bool = False,
        limit_bytes: int = LIMIT_BYTES,
    ) -> None:
        self._spool = spool
        self.library = library
        self._waits_for_start = between_profiler_calls
        self._work = (*_WORK, layout.GRAPH_TRACE) if whole_graphs else _WORK
        self._count = max(limit_bytes // BUFFER_BYTES, 1)
        # Two threads of CUPTI may count at once, which only next() does in one step.
        self._slots, self._returns = itertools.count(), itertools.count()
        self._used = 0
        self._callbacks: list[int] = []
        """Time of each call of CUPTI for a buffer, in ns; 0 where it brought one back."""
        self._meanwhile: tuple[int, ...] = ()
        self._notes: list[str] = []
        self._driver_calls, self._runtime_calls = library.call_names()
        self._is_recording = False
        self._started_ns: int | None = None
        self._stopped_ns: int | None = None
        self._pid = os.getpid()

    def start(self, *, is_late: bool = False) -> None:
        """Begin; `is_late` says that the program may use CUDA already.

        Raises
        ------
        OutputError
            There is no space for the buffers.
        MissingError
            CUPTI refuses.
        UsageError
            This process is being recorded already.
        """
        if _ACTIVE:
            msg = "this program is being recorded already: one recording at a time."
            raise UsageError(msg)
        self._map_buffers()
        self._spool.write_start(
            Start(
                pid=self._pid,
                program=os.path.basename(sys.argv[0] or sys.executable),
                library=str(self.library.path),
                api_version=self.library.api_version,
                record_sizes=self.library.record_sizes(tuple(layout.FIELDS)),
                driver_calls=self._driver_calls,
                runtime_calls=self._runtime_calls,
                environment={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
            )
        )
        self.library.register(self._hand_out, self._take_back, self._heard)
        _ACTIVE.append(self)
        os.register_at_fork(after_in_child=self._leave_to_parent)
        for kind in _RESOURCES:
            self.library.enable(kind, dump=is_late)
        if not self._waits_for_start:
            self._begin()
            return
        wanted = [
            (is_driver, number)
            for is_driver, names in ((True, self._driver_calls), (False, self._runtime_calls))
            for number, name in names.items()
            if _PROFILER.fullmatch(name)
        ]
        self._starts = {
            (is_driver, number)
            for is_driver, number in wanted
            if "Start" in (self._driver_calls if is_driver else self._runtime_calls)[number]
        }
        self.library.on_calls(wanted)

    def stop(self) -> None:
        """End: have all buffers handed back, and write what is needed to read them."""
        if os.getpid() != self._pid:
            return  # a fork of the recorded process
        _ACTIVE.clear()
        self._end()
        for kind in _RESOURCES:
            self.library.disable(kind)
        # Only what is in the buffers counts: one that is not handed back is read all the same.
        self.library.flush()
        self._used = min(next(self._slots), self._count)
        now = self.library.now_ns()
        self._spool.write_end(
            End(
                started_ns=self._started_ns or now,
                stopped_ns=self._stopped_ns or now,
                dropped=self.library.dropped(),
                callbacks=len(self._meanwhile),
                callback_ns=sum(self._meanwhile),
                was_started=self._started_ns is not None,
                notes=self._notes,
                texts=self._texts(self._used),
                threads=_thread_names(),
            )
        )

    def close(self) -> None:
        """Let another profiler in; give the buffers' space back if CUPTI has handed back all."""
        self.library.release()
        if next(self._returns) == self._used:
            del self._anchor
            self._map.close()

    def note(self, sentence: str) -> None:
        """Keep a sentence to be said when the program has ended."""
        self._notes.append(sentence)

    def _map_buffers(self) -> None:
        size = self._count * BUFFER_BYTES
        try:
            with self._spool.buffers.open("w+b") as file:
                os.posix_fallocate(file.fileno(), 0, size)
                self._map = mmap.mmap(file.fileno(), size)
        except OSError as error:
            msg = (
                f"there is no space for {size >> 20} MiB of records in {self._spool.folder} "
                f"({error.strerror}): free some, or record into another folder."
            )
            raise OutputError(msg) from None
        self._anchor = ctypes.c_char.from_buffer(self._map)
        self._base = ctypes.addressof(self._anchor)
        ctypes.memset(self._base, 0, min(_PREPARED_BUFFERS, self._count) * BUFFER_BYTES)

    def _begin(self) -> None:
        if self._is_recording or self._stopped_ns is not None:
            return
        self._is_recording = True
        for kind in self._work:
            self.library.enable(kind)
        for is_driver, names in ((True, self._driver_calls), (False, self._runtime_calls)):
            queries = [number for number, name in names.items() if _QUERY.match(name)]
            self.library.enable_calls(is_driver, but=queries)
        self._callbacks.clear()
        self._started_ns = self.library.now_ns()

    def _end(self) -> None:
        if not self._is_recording:
            return
        self._is_recording = False
        self._stopped_ns = self.library.now_ns()
        self._meanwhile = tuple(self._callbacks)
        for kind in (*self._work, layout.DRIVER, layout.RUNTIME):
            self.library.disable(kind)

    def _leave_to_parent(self) -> None:
        """Keep what a fork of this process does out of the buffers, which it shares with it."""
        if not self._map.closed:
            size = self._count * BUFFER_BYTES
            protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE
            flags |= mmap.MAP_ANONYMOUS | _MAP_FIXED
            remap = ctypes.CDLL(None).mmap
            remap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
            remap(self._base, size, protection, flags, -1, 0)

    # What CUPTI calls. Only the first two may run while the program is recorded.

    def _hand_out(self, buffer: Any, size: Any, max_records: Any) -> None:
        began = time.perf_counter_ns()
        slot = next(self._slots)
        has_room = slot < self._count
        buffer[0] = self._base + slot * BUFFER_BYTES if has_room else None
        size[0] = BUFFER_BYTES if has_room else 0
        max_records[0] = 0  # as many as fit
        self._callbacks.append(time.perf_counter_ns() - began)

    def _take_back(self, *_: Any) -> None:
        next(self._returns)
        self._callbacks.append(0)  # what is in the buffer is in the file already

    def _heard(self, is_driver: bool, callback_id: int, returns: bool) -> None:
        is_start = (is_driver, callback_id) in self._starts
        if is_start and returns:
            self._begin()
        elif not is_start and not returns:
            self._end()

    # What is read from this process before it ends

    def _texts(self, used: int) -> dict[int, str]:
        sizes = self.library.record_sizes(tuple(layout.FIELDS))
        addresses: set[int] = set()
        for slot in range(used):
            data = memoryview(self._map[slot * BUFFER_BYTES : (slot + 1) * BUFFER_BYTES])
            words = data.cast("Q")
            for kind, offsets in layout.walk(data, sizes).items():
                for name in layout.TEXTS.get(kind, ()):
                    shift = layout.FIELDS[kind][name].offset
                    addresses.update(words[(at + shift) >> 3] for at in offsets)
        addresses.discard(0)
        return dict(_texts_at(addresses))


def _texts_at(addresses: Iterable[int]) -> Iterable[tuple[int, str]]:
    """Read texts of this process; an address that holds none is left out and harms nothing."""
    with Path("/proc/self/mem").open("rb", buffering=0) as memory:
        for address in sorted(addresses):
            found = b""
            with contextlib.suppress(OSError, ValueError, OverflowError):
                while b"\0" not in found and len(found) < _TEXT_LIMIT_BYTES:
                    at = address + len(found)
                    memory.seek(at)
                    piece = memory.read(mmap.PAGESIZE - at % mmap.PAGESIZE)
                    if not piece:
                        break
                    found += piece
            text, end, _ = found.partition(b"\0")
            if end:
                yield address, text.decode(errors="replace")


def _thread_names() -> dict[int, str]:
    names = {}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            names[int(task.name)] = (task / "comm").read_text(errors="replace").strip()
    return names
