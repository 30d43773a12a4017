"""A small model of a program and its GPU, to write traces as one writes programs.

Calls take 2 µs on the host, and an operation starts 2 µs after the last thing it waits for: its
launch, its stream, its copy engine, the events its stream was told to wait for.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from gpuscope.analysis import Analyzer, Options, run_all
from gpuscope.model.classes import CODE
from gpuscope.model.result import Finding
from gpuscope.model.tables import (
    ApiCalls,
    EventRecords,
    KernelConfigs,
    MpiCalls,
    Operations,
    Ranges,
    SyncRecords,
    Table,
)
from gpuscope.model.trace import Device, Process, Stream, Thread, Trace

CALL_NS = 2_000
GAP_NS = 2_000
MS = 1_000_000
PAGEABLE_KIND, PINNED_KIND, DEVICE_KIND = 0, 1, 2


class Program:
    """Issues work from one thread at a time; streams are numbers, 0 is the null stream."""

    def __init__(
        self,
        *,
        copy_engines: int = 2,
        stream_kind: str = "non-blocking",
        environment: dict[str, str] | None = None,
    ) -> None:
        self.now = 0
        self.thread = 0
        self.copy_engines = copy_engines
        self.stream_kind = stream_kind
        self.environment = environment or {}
        self.strings: list[str] = []
        self.free: dict[Any, int] = {}
        self.events: dict[str, tuple[int, int]] = {}
        self.rows: dict[type[Table], list[dict[str, Any]]] = {
            kind: []
            for kind in (
                Operations,
                ApiCalls,
                MpiCalls,
                Ranges,
                SyncRecords,
                EventRecords,
                KernelConfigs,
            )
        }
        self.streams: list[int] = []
        self.lost_records = 0

    # What a program does

    def host(self, ns: int) -> None:
        """Compute on the host."""
        self.now += ns

    def call(self, name: str, ns: int = CALL_NS) -> int:
        """Make an API call and return its number."""
        number = len(self.rows[ApiCalls])
        self._add(
            ApiCalls,
            start_ns=self.now,
            end_ns=self.now + ns,
            thread=self.thread,
            correlation=number,
            name=self._string(name),
        )
        self.now += ns
        return number

    def kernel(self, stream: int, ns: int, name: str = "compute", blocks: int = 1) -> None:
        start = self._launch("cudaLaunchKernel", "kernel", stream, ns, name=name)
        self._configure(start, blocks, 1024)

    def comm(
        self,
        stream: int,
        ns: int,
        blocks: int = 1,
        cooperative: bool = False,
        name: str = "ncclAllReduce",
    ) -> None:
        start = self._launch("cudaLaunchKernel", "comm", stream, ns, name=name)
        self._configure(start, blocks, 512, cooperative)

    def _configure(
        self, operation: int, blocks: int, threads: int, cooperative: bool = False
    ) -> None:
        self._add(
            KernelConfigs,
            operation=operation,
            grid_blocks=blocks,
            block_threads=threads,
            registers_per_thread=0,
            shared_bytes=0,
            cooperative=int(cooperative),
        )

    def copy(
        self,
        op_class: str,
        stream: int,
        ns: int,
        *,
        pageable: bool = False,
        blocking: bool = False,
        size: int = 1 << 25,
        name: str = "cudaMemcpyAsync",
    ) -> None:
        """Copy; a blocking call returns when the copy has ended."""
        host = PAGEABLE_KIND if pageable else PINNED_KIND
        kinds = (host, DEVICE_KIND) if op_class == "h2d" else (DEVICE_KIND, host)
        self._launch(name, op_class, stream, ns, size=size, kinds=kinds, blocking=blocking)

    def wait(self, stream: int | None = None, name: str | None = None) -> None:
        """Wait for a stream or the device."""
        until = self.free.get(stream, 0) if stream is not None else max(self.free.values())
        name = name or ("cudaDeviceSynchronize" if stream is None else "cudaStreamSynchronize")
        self.call(name, max(until - self.now, 0) + CALL_NS)

    def drain(self, name: str) -> None:
        """Make a call that waits for the device on the quiet, such as cudaFree."""
        self.wait(None, name)

    def record(self, event: str, stream: int) -> None:
        number = len(self.events) + 1
        api = self.call("cudaEventRecord_v3020")
        self.events[event] = (number, max(self.free.get(stream, 0), self.now))
        self._add(EventRecords, stream=self._stream(stream), launch=api, event=7, event_sync=number)

    def wait_event(self, stream: int, event: str) -> None:
        number, reached = self.events[event]
        api = self.call("cudaStreamWaitEvent_v3020")
        self.free[stream] = max(self._before(stream), reached)
        self._add(
            SyncRecords,
            start_ns=self.now,
            end_ns=self.now,
            stream=self._stream(stream),
            launch=api,
            sync_type=2,
            event=7,
            event_sync=number,
        )

    def _before(self, stream: int) -> int:
        """Return when all is over that what a stream is given next waits for: the null rule, too.

        A wait for an event is such a thing as well: the CUDA runtime's manual says so.
        """
        others = self.free.items() if self.stream_kind == "blocking" else ()
        ends = [end for key, end in others if isinstance(key, int) and (key == 0) != (stream == 0)]
        return max([self.free.get(stream, 0), *ends])

    def mpi(self, name: str, ns: int) -> None:
        self._add(
            MpiCalls,
            start_ns=self.now,
            end_ns=self.now + ns,
            thread=self.thread,
            name=self._string(name),
        )
        self.now += ns

    @contextlib.contextmanager
    def range(self, name: str, domain: str | None = None) -> Iterator[None]:
        start = self.now
        yield
        self._add(
            Ranges,
            start_ns=start,
            end_ns=self.now,
            thread=self.thread,
            name=self._string(name),
            domain=-1 if domain is None else self._string(domain),
        )

    # What the GPU makes of it

    def _launch(
        self,
        call: str,
        op_class: str,
        stream: int,
        ns: int,
        *,
        name: str | None = None,
        size: int = 0,
        kinds: tuple[int, int] = (-1, -1),
        blocking: bool = False,
    ) -> int:
        engine = op_class if self.copy_engines > 1 or op_class != "d2h" else "h2d"
        waits = [self.now + CALL_NS, self._before(stream)]
        if op_class in ("h2d", "d2h"):
            waits.append(self.free.get(engine, 0))
        start = max(waits) + GAP_NS
        self.free[stream] = start + ns
        self.free[engine] = max(self.free.get(engine, 0), start + ns)
        api = self.call(call, start + ns - self.now + CALL_NS if blocking else CALL_NS)
        self._add(
            Operations,
            start_ns=start,
            end_ns=start + ns,
            op_class=CODE[op_class],
            stream=self._stream(stream),
            correlation=api,
            launch=api,
            name=self._string(name or op_class),
            size_bytes=size,
            src_kind=kinds[0],
            dst_kind=kinds[1],
        )
        return len(self.rows[Operations]) - 1

    # The trace

    def _add(self, kind: type[Table], **values: Any) -> None:
        self.rows[kind].append(values)

    def _string(self, text: str) -> int:
        if text not in self.strings:
            self.strings.append(text)
        return self.strings.index(text)

    def _stream(self, number: int) -> int:
        if number not in self.streams:
            self.streams.append(number)
        return self.streams.index(number)

    def trace(self) -> Trace:
        """Return what a profiler would have recorded."""
        tables = {kind: _table(kind, rows) for kind, rows in self.rows.items()}
        api, operations = tables[ApiCalls], tables[Operations]
        api_order = np.argsort(api.start_ns, kind="stable")
        new_row = np.argsort(api_order)
        order = np.lexsort((operations.end_ns, operations.start_ns))
        operations = dataclasses.replace(
            operations, launch=new_row[operations.launch].astype(np.int32)
        ).take(order)
        configs = tables[KernelConfigs]
        configs = dataclasses.replace(configs, operation=np.argsort(order)[configs.operation])
        threads = max(api.thread.tolist(), default=0) + 1
        moved = {
            kind: dataclasses.replace(
                tables[kind], launch=new_row[tables[kind].launch].astype(np.int32)
            )
            for kind in (SyncRecords, EventRecords)
        }
        return Trace(
            path="program.sqlite",
            format="program",
            tool_version=None,
            schema_version=None,
            strings=tuple(self.strings),
            processes=(Process(100, "program", None),),
            threads=tuple(Thread(0, 100 + number, None) for number in range(threads)),
            devices=(Device(0, 0, "GPU", self.copy_engines, 132, "gpu 0"),),
            streams=tuple(
                Stream(0, 0, 1, number, 0, "null" if number == 0 else self.stream_kind)
                for number in self.streams
            ),
            operations=operations,
            api=api.take(api_order),
            ranges=_by_start(tables[Ranges]),
            mpi=_by_start(tables[MpiCalls]) if self.rows[MpiCalls] else None,
            syncs=moved[SyncRecords],
            event_records=moved[EventRecords],
            kernel_configs=configs.take(np.argsort(configs.operation)),
            lost_records=self.lost_records,
            environment=self.environment,
        )


def _table(kind: Any, rows: list[dict[str, Any]]) -> Any:
    nothing = {"process": 0, "device": 0, "result": 0, "flags": 0, "kind": 0, "size_bytes": 0}
    return kind(
        **{
            name: np.array([row.get(name, nothing.get(name, -1)) for row in rows], empty.dtype)
            for name, empty in kind.empty().columns().items()
        }
    )


def _by_start(table: Any) -> Any:
    return table.take(np.lexsort((table.end_ns, table.start_ns)))


def findings(program: Program, *analyzers: Analyzer) -> list[Finding]:
    """Return what the analyzers find in a program."""
    return list(run_all(program.trace(), analyzers, Options()).findings)


def pipeline(program: Program, chunks: int = 8, streams: int = 4) -> None:
    """Copy in, compute and copy out over several streams: the healthy twin of every cause."""
    with program.range("pipeline"):
        for chunk in range(chunks):
            stream = 1 + chunk % streams
            program.copy("h2d", stream, MS)
            program.kernel(stream, MS)
            program.copy("d2h", stream, MS)
    program.wait()


def test_operations_follow_stream_and_engine() -> None:
    program = Program()
    program.copy("h2d", 1, 100)
    program.kernel(1, 50)
    program.copy("h2d", 2, 100)

    operations = program.trace().operations

    assert operations is not None
    assert operations.start_ns.tolist() == [4_000, 6_100, 8_000]
    assert operations.end_ns.tolist() == [4_100, 6_150, 8_100]


def test_events_and_waits_hold_back() -> None:
    program = Program()
    program.kernel(1, MS)
    program.record("done", 1)
    program.wait_event(2, "done")
    program.copy("h2d", 2, 100)
    program.wait(2)

    trace = program.trace()

    assert trace.operations is not None
    assert trace.api is not None
    assert trace.operations.start_ns.tolist() == [4_000, 4_000 + MS + GAP_NS]
    assert int(trace.api.end_ns[-1]) == int(trace.operations.end_ns[-1]) + CALL_NS
