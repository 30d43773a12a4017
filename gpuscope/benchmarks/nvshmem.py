"""``nvshmem``: puts, gets and signalled puts between GPUs, beside a kernel on each.

Every rank writes to its right neighbour's memory, or reads it, without the neighbour taking part;
a signal tells the neighbour that its data is there. ::

    sequential    [put][put][put] … [kernel ============]       the kernel waits for the puts

    put           [put][put][put] …                             a stream of high priority
                  [kernel ============]                         another

    get           [get][get][get] …
                  [kernel ============]

    put-signal    [put, signal][put, signal] … [wait for mine]
                  [kernel ============]

The kernel works on memory of its own: only the schedule decides whether they overlap.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

from gpuscope.benchmarks._harness import (
    CORRUPT,
    MIB,
    Benchmark,
    Expected,
    FmaKernel,
    Heap,
    Link,
    Measured,
    Pass,
    Pattern,
    Quantity,
    Ranks,
    Result,
    Statistics,
    Twin,
    buffer_limit_bytes,
    calibrate_steps,
    chosen_bytes,
    chosen_options,
    format_size,
    link_between,
    max_steps,
    open_heap,
    open_ranks,
    pass_term,
    pass_value,
    positive_int,
    raise_if_wrong,
    rate_bytes_per_s,
    refuse_inexact,
    size_argument,
)
from gpuscope.units import format_ns

_WAYS = ("put", "get", "put-signal")
_PASSES = ("sequential", *_WAYS)
_SIZE_BYTES = 64 * MIB
_TRANSFERS = 8
_COVER_FACTOR = 1.25
"""The kernel lasts this many times the puts of a pass, so that all of them can hide."""
_KERNEL_ELEMENTS = 4 * MIB
_SMALL_BYTES = 8
_REPEATS = 10
_SMALL_REPEATS = 100
_HIGH_PRIORITY = -1
"""The kernel that waits for a signal has one block, which must not queue behind the other's. One
level above the other stream's is enough."""
_DEFAULTS = MappingProxyType({"size_bytes": None, "transfers": _TRANSFERS, "kernel_steps": None})


@dataclass(frozen=True, slots=True)
class _Options:
    """What is run: a size or number of steps of None is found by calibration."""

    size_bytes: int | None
    transfers: int
    kernel_steps: int | None


class _Work:
    """A buffer to send from, one a pass to receive in, and the kernel's own memory."""

    def __init__(
        self, ranks: Ranks, heap: Heap, size_bytes: int, transfers: int, *, barrier_first: bool
    ) -> None:
        session, cp = ranks.session, ranks.session.cp
        self.ranks, self.session, self.heap = ranks, session, heap
        self.size_bytes, self.transfers = size_bytes, transfers
        self.barrier_first = barrier_first
        self.elements = transfers * size_bytes // 4
        self.outbox = heap.array((self.elements,))
        self.inboxes = {name: heap.array((self.elements,)) for name in _PASSES}
        self.arrived = heap.signals(1)
        self.value = 0
        """What the last signal was set to: all ranks count alike."""
        self.right, self.left = neighbours(heap.rank, heap.size)
        self.comm = cp.cuda.Stream(non_blocking=True, priority=_HIGH_PRIORITY)
        self.compute = cp.cuda.Stream(non_blocking=True)
        self.communicated = cp.cuda.Event(disable_timing=True)
        self.kernel = FmaKernel(cp)
        self.data = cp.empty(_KERNEL_ELEMENTS, "float32")
        self.steps = 1
        self.pattern = Pattern(cp)
        self.wrong = cp.zeros(1, "uint64")
        """Elements that were wrong in all passes that were looked at."""
        self.stamp = 0
        self.stamps: dict[str, int] = {}
        """Under which number each pass ran last."""
        self.passes_begun = 0
        self.renew()

    def renew(self) -> None:
        """Give the kernel's memory the pattern that it begins with."""
        self.pattern.fill_device(self.data)
        self.passes_begun = 0
        self.session.cp.cuda.runtime.deviceSynchronize()

    # What is issued.

    def work(self) -> None:
        """Issue the kernel of the pass that was begun last."""
        term = pass_term(self.passes_begun)
        self.kernel.launch(self.compute, self.data.data.ptr, _KERNEL_ELEMENTS, self.steps, term)

    def transfer(self, way: str, index: int, inbox: Any) -> None:
        """Issue one transfer of a kind."""
        offset = index * self.size_bytes
        target, source = inbox.data.ptr + offset, self.outbox.data.ptr + offset
        if way == "put":
            self.heap.put(target, source, self.size_bytes, self.right, self.comm)
        elif way == "get":
            self.heap.get(target, source, self.size_bytes, self.right, self.comm)
        else:
            self.put_signal(target, source, self.size_bytes)

    def put_signal(self, target: int, source: int, size_bytes: int) -> None:
        """Issue a put to the right and its signal."""
        self.value += 1
        signal = self.arrived.data.ptr
        self.heap.put_signal(target, source, size_bytes, signal, self.value, self.right, self.comm)

    def wait(self) -> None:
        """Let the stream wait until the left neighbour has signalled as often as this rank did."""
        self.heap.wait(self.arrived.data.ptr, self.value, self.comm)

    def transfers_of(self, way: str, inbox: Any) -> None:
        """Issue all transfers of a pass."""
        for index in range(self.transfers):
            self.transfer(way, index, inbox)
        if way == "put-signal":
            self.wait()

    def sequential(self) -> None:
        """All puts, and the kernel after them."""
        self.transfers_of("put", self.inboxes["sequential"])
        self._compute_after_transfers()

    def beside(self, way: str) -> None:
        """All transfers of a kind, and the kernel beside them; in the twin behind a barrier."""
        self.transfers_of(way, self.inboxes[way])
        if self.barrier_first:
            self.heap.barrier(self.comm)
            self._compute_after_transfers()
        else:
            self.work()

    def _compute_after_transfers(self) -> None:
        self.communicated.record(self.comm)
        self.compute.wait_event(self.communicated)
        self.work()

    def passes(self) -> list[Pass]:
        """Return the passes to measure."""
        issues: dict[str, Callable[[], None]] = {"sequential": self.sequential}
        for way in _WAYS:
            issues[way] = lambda way=way: self.beside(way)  # type: ignore[misc]
        return [
            Pass(
                name,
                [self.comm, self.compute],
                issue,
                prepare=lambda name=name: self.prepare(name),  # type: ignore[misc]
            )
            for name, issue in issues.items()
        ]

    # The data.

    def first(self, rank: int, stamp: int) -> int:
        """Return where in the pattern the outbox of a rank begins, under a number."""
        return (stamp * self.heap.size + rank) * (self.elements + 1)

    def prepare(self, name: str) -> None:
        """Look at what the pass left last time, poison it, and send something new next time."""
        self.ranks.barrier()  # a neighbour may still read or write here
        self.look(name)
        self.inboxes[name].fill(float("nan"))
        self.stamp += 1
        self.stamps[name] = self.stamp
        self.pattern.fill_device(self.outbox, self.first(self.heap.rank, self.stamp))
        self.passes_begun += 1
        self.session.cp.cuda.runtime.deviceSynchronize()

    def look(self, name: str) -> None:
        """Count what is wrong in what a pass left."""
        if name in self.stamps:
            sender = self.right if name == "get" else self.left
            first = self.first(sender, self.stamps[name])
            self.pattern.count(self.inboxes[name], first, 0, 0, self.wrong)

    def check(self) -> None:
        """Compare all that arrived in any pass, and what the kernels left.

        Raises
        ------
        ProgramError
            Something is wrong; the message begins with ``wrong data``.
        """
        self.ranks.barrier()
        for name in _PASSES:
            self.look(name)
        raise_if_wrong(self.wrong.get().tolist(), self.elements, "transfer buffer")
        self.pattern.check_device(self.data, 0, self.steps * pass_value(self.passes_begun))

    # Times of the parts, alone; all ranks at once.

    def way_ns(self, way: str) -> int:
        """Return the time of one transfer of a kind, with nothing beside it."""
        inbox = self.inboxes[way]
        return self._alone_ns(lambda: self.transfer(way, 0, inbox), _REPEATS)

    def kernel_ns(self, steps: int) -> int:
        """Return the time of one kernel with this many steps, and keep the number."""
        self.steps = steps
        (spans,) = self.session.time_operations([(self.compute, [self.work] * (1 + _REPEATS))])
        return Statistics.of([end - start for start, end in spans[1:]]).median_ns

    def small_ns(self) -> tuple[int, int]:
        """Return the times of a put of 8 bytes, and of one with a signal and the wait for it."""
        target, source = self.inboxes["put"].data.ptr, self.outbox.data.ptr

        def put() -> None:
            self.heap.put(target, source, _SMALL_BYTES, self.right, self.comm)

        def exchange() -> None:
            self.put_signal(target, source, _SMALL_BYTES)
            self.wait()

        return self._alone_ns(put, _SMALL_REPEATS), self._alone_ns(exchange, _SMALL_REPEATS)

    def _alone_ns(self, operation: Callable[[], None], repeats: int) -> int:
        self.ranks.barrier()
        (spans,) = self.session.time_operations([(self.comm, [operation] * (1 + repeats))])
        times = Statistics.of([end - start for start, end in spans[1:]])
        return self.ranks.largest([times.median_ns])[0]


def neighbours(rank: int, size: int) -> tuple[int, int]:
    """Return the ranks to the right and to the left, in a ring."""
    return (rank + 1) % size, (rank - 1) % size


def _run(arguments: argparse.Namespace) -> Result:
    """Run the benchmark."""
    twin = None if arguments.twin is None else BENCHMARK.twin(arguments.twin).name
    options = _Options(**chosen_options(arguments, BENCHMARK.name, _DEFAULTS))
    refuse_inexact(options.kernel_steps)
    with open_ranks(BENCHMARK.name, oversubscribe=arguments.oversubscribe) as ranks:
        limit_bytes = buffer_limit_bytes(
            ranks.session, device_buffers=options.transfers * (1 + len(_PASSES)), host_buffers=1
        )
        limit_bytes = min(ranks.gather(limit_bytes))
        notes: list[str] = []
        size_bytes = chosen_bytes(options.size_bytes, _SIZE_BYTES, limit_bytes, notes)
        heap_bytes = (1 + len(_PASSES)) * options.transfers * size_bytes
        with open_heap(ranks, heap_bytes) as heap:
            return _measure(ranks, heap, options, size_bytes, twin, arguments.reps, notes)


def _measure(
    ranks: Ranks,
    heap: Heap,
    options: _Options,
    size_bytes: int,
    twin: str | None,
    reps: int,
    notes: list[str],
) -> Result:
    """Calibrate, measure, and put the result together."""
    session = ranks.session
    transfers = options.transfers
    work = _Work(ranks, heap, size_bytes, transfers, barrier_first=twin == "barrier-first")
    target_ns = round(_COVER_FACTOR * transfers * work.way_ns("put"))
    steps = options.kernel_steps or calibrate_steps(work.kernel_ns, target_ns, max_steps())
    work.steps = ranks.agree(steps)
    work.renew()
    measured = session.measure(
        work.passes(),
        reps,
        check=work.check,
        corrupt=work.inboxes["put-signal"] if twin == CORRUPT.name else None,
    )
    stages = {way: work.way_ns(way) for way in _WAYS}
    kernel_ns = ranks.largest([work.kernel_ns(work.steps)])[0]
    put_ns, exchange_ns = work.small_ns()
    link = link_between(session.pci_bus_id, ranks.gather(session.pci_bus_id)[work.right])
    figures = _figures(measured, size_bytes, transfers, stages, kernel_ns)
    return session.conclude(
        measured,
        twin=twin,
        options=asdict(replace(options, size_bytes=size_bytes, kernel_steps=work.steps)),
        stages={
            **{f"{way.replace('-', '_')}_ns": time_ns for way, time_ns in stages.items()},
            "kernel_ns": kernel_ns,
            "small_put_ns": put_ns,
            "small_exchange_ns": exchange_ns,
        },
        figures=figures,
        quantities=_quantities(measured, figures, link),
        expected=_expected(serialized=twin == "barrier-first"),
        title=f"{transfers} transfers of {format_size(size_bytes)} to the right, over {link}",
        baselines=dict.fromkeys(_WAYS, "sequential"),
        lines=[
            f"the kernel takes {format_ns(kernel_ns)}; a put of {_SMALL_BYTES} bytes "
            f"{format_ns(put_ns)}, one with a signal and the wait for it {format_ns(exchange_ns)}"
        ],
        notes=notes,
    )


def _figures(
    measured: Measured,
    size_bytes: int,
    transfers: int,
    stages: dict[str, int],
    kernel_ns: int,
) -> dict[str, float | None]:
    """Return the rates of transfers alone, and of each pass its bound and its gain."""
    found: dict[str, float | None] = {}
    sequential_ns = measured.passes["sequential"].median_ns
    for way, time_ns in stages.items():
        key = way.replace("-", "_")
        found[f"{key}_rate_bytes_per_s"] = rate_bytes_per_s(size_bytes, time_ns)
        found[f"{key}_t_lb_ns"] = max(kernel_ns, transfers * time_ns)
        found[f"{key}_speedup"] = sequential_ns / measured.passes[way].median_ns
    return found


def _quantities(
    measured: Measured, figures: dict[str, float | None], link: Link
) -> Sequence[Quantity]:
    """Return the rates beside what the link carries one way, the passes beside their bounds."""
    keys = {way: way.replace("-", "_") for way in _WAYS}
    return [
        *(
            Quantity(
                way,
                figures[f"{key}_rate_bytes_per_s"],
                "bytes/s",
                link.limit_bytes_per_s,
                f"{link}",
            )
            for way, key in keys.items()
        ),
        *(
            Quantity(
                f"{way}, beside the kernel",
                measured.passes[way].median_ns,
                "ns",
                figures[f"{key}_t_lb_ns"],
                "the longer of both, alone",
            )
            for way, key in keys.items()
        ),
    ]


def _expected(*, serialized: bool) -> tuple[Expected, ...]:
    """Return the verdicts that the trace must show: transfers go from GPU to GPU by copies."""
    verdict = "serialized" if serialized else "overlapped"
    return (
        Expected("sequential", "kernel", "p2p", "serialized", 1.0),
        *(Expected(way, "kernel", "p2p", verdict, 1.0) for way in _WAYS),
    )


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--size",
        dest="size_bytes",
        type=size_argument,
        metavar="SIZE",
        help="bytes a transfer (default: 64M)",
    )
    parser.add_argument(
        "--transfers", type=positive_int, metavar="N", help="transfers a pass (default: 8)"
    )
    parser.add_argument(
        "--kernel-steps",
        type=positive_int,
        metavar="K",
        help="steps of the kernel (default: such that it lasts 1.25 times the puts)",
    )


BENCHMARK = Benchmark(
    name="nvshmem",
    summary="one-sided puts and gets between GPUs, beside a kernel on each",
    options="--size SIZE  --transfers N  --kernel-steps K",
    needs="2 GPUs, MPI, NVSHMEM",
    twins=(
        Twin(
            "barrier-first",
            "the kernel waits for a barrier of all ranks behind the transfers",
            "put, get, put-signal: transfers and kernel serialized",
        ),
        CORRUPT,
    ),
    add_arguments=_add_arguments,
    run=_run,
    ranks=True,
    own_gpus=True,
)
