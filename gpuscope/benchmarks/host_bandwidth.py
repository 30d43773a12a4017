"""``host-bandwidth``: what the link to the host carries in, out, and both ways at once.

A PCIe link has two directions, and is full duplex: both are measured alone and together. ::

    h2d    [h2d][h2d][h2d] …
    d2h    [d2h][d2h][d2h] …
    both   [h2d][h2d][h2d] …         two streams, started together
           [d2h][d2h][d2h] …

Behind the gate that starts a pass one copy of each direction goes first, so that the link is awake.

Of `both` two figures are given: the sum (all bytes over all time), and each direction's own rate
while the other is at work, which is how nvbandwidth reports its bidirectional copies.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

from gpuscope.benchmarks._harness import (
    CORRUPT,
    MIB,
    Benchmark,
    Expected,
    Pass,
    Pattern,
    Quantity,
    Result,
    Session,
    Statistics,
    Twin,
    buffer_limit_bytes,
    chosen_bytes,
    chosen_options,
    format_size,
    host_array,
    open_session,
    positive_int,
    rate_bytes_per_s,
    size_argument,
)
from gpuscope.units import format_rate

LEAST_RHO = 0.8
"""Two queues of equal copies that start together share nearly all of their time."""
_SIZE_BYTES = 512 * MIB
_COPIES = 16
_PAGEABLE_SIZE_BYTES = 64 * MIB
_PAGEABLE_COPIES = 4
_PAGEABLE_REPEATS = 5
_DEFAULTS = MappingProxyType({"size_bytes": None, "copies": None, "same_direction": 1})
_LINK = "PCIe generation × width"


@dataclass(frozen=True, slots=True)
class _Options:
    """What is run."""

    size_bytes: int | None
    copies: int | None
    same_direction: int


class _Workload:
    """For each direction a buffer to copy from and one to copy to, and streams to do it on."""

    def __init__(
        self, session: Session, size_bytes: int, copies: int, *, streams: int, pinned: bool
    ) -> None:
        import numpy as np

        cp = self.cp = session.cp
        elements = size_bytes // 4
        self.size_bytes = size_bytes
        self.copies = copies
        self.host_from, self.host_to = (host_array(cp, elements, pinned=pinned) for _ in range(2))
        self.device_from, self.device_to = (cp.empty(elements, np.float32) for _ in range(2))
        self.inward, self.outward = (
            [cp.cuda.Stream(non_blocking=True) for _ in range(streams)] for _ in range(2)
        )
        self.scratch = cp.empty(elements, np.float32)
        self.pattern = Pattern(cp, self.scratch)
        self.first = 0
        self.marks: list[tuple[Any, Any, Any, Any]] = []
        """Events at start and end of either direction, of each pass `both`."""
        self.renew()

    def renew(self) -> None:
        """Write a pattern not used before to the sources, and poison the targets."""
        import numpy as np

        self.first += 2 * self.host_from.size
        self.pattern.fill([self.host_from], self.first)
        self.pattern.fill_device(self.device_from, self.first + self.host_from.size)
        self.host_to.fill(np.nan)
        self.device_to.fill(np.nan)
        self.cp.cuda.runtime.deviceSynchronize()

    def copy_in(self, stream: Any) -> None:
        """Issue a copy to the device."""
        runtime = self.cp.cuda.runtime
        target, source = self.device_to.data.ptr, self.host_from.ctypes.data
        runtime.memcpyAsync(target, source, self.size_bytes, runtime.memcpyHostToDevice, stream.ptr)

    def copy_out(self, stream: Any) -> None:
        """Issue a copy from the device."""
        runtime = self.cp.cuda.runtime
        target, source = self.host_to.ctypes.data, self.device_from.data.ptr
        runtime.memcpyAsync(target, source, self.size_bytes, runtime.memcpyDeviceToHost, stream.ptr)

    def lead_in(self) -> None:
        """One copy in, which is not measured."""
        self.copy_in(self.inward[0])

    def lead_out(self) -> None:
        """One copy out, which is not measured."""
        self.copy_out(self.outward[0])

    def lead_both(self) -> None:
        """One copy each way."""
        self.lead_in()
        self.lead_out()

    def h2d(self) -> None:
        """All copies in, on the first stream."""
        for _ in range(self.copies):
            self.copy_in(self.inward[0])

    def d2h(self) -> None:
        """All copies out, on the first stream."""
        for _ in range(self.copies):
            self.copy_out(self.outward[0])

    def both(self) -> None:
        """All copies, one direction a stream, with marks around each direction's."""
        inward, outward = self.inward[0], self.outward[0]
        marks = tuple(self.cp.cuda.Event() for _ in range(4))
        marks[0].record(inward)
        marks[2].record(outward)
        for _ in range(self.copies):
            self.copy_in(inward)
            self.copy_out(outward)
        marks[1].record(inward)
        marks[3].record(outward)
        self.marks.append((marks[0], marks[1], marks[2], marks[3]))

    def h2d_shared(self) -> None:
        """All copies in, over all streams in turn."""
        for index in range(self.copies):
            self.copy_in(self.inward[index % len(self.inward)])

    def d2h_shared(self) -> None:
        """All copies out, over all streams in turn."""
        for index in range(self.copies):
            self.copy_out(self.outward[index % len(self.outward)])

    def own_ns(self, passes: int) -> tuple[int, int]:
        """Return the time of either direction's own copies in the last passes `both`, in ns."""
        elapsed = self.cp.cuda.get_elapsed_time
        last = self.marks[-passes:]
        inward = Statistics.of([round(1e6 * elapsed(mark[0], mark[1])) for mark in last])
        outward = Statistics.of([round(1e6 * elapsed(mark[2], mark[3])) for mark in last])
        return inward.median_ns, outward.median_ns

    def check(self) -> None:
        """Compare all that was copied, and begin again with another pattern."""
        self.pattern.check_device(self.device_to, self.first)
        self.pattern.check([self.host_to], 0, 0, self.first + self.host_from.size)
        self.renew()


def _pageable_rates(session: Session) -> tuple[float | None, float | None]:
    """Return the rates of copies in and out of pageable memory, for comparison."""
    work = _Workload(session, _PAGEABLE_SIZE_BYTES, 1, streams=1, pinned=False)
    rates = []
    for issue, stream in ((work.copy_in, work.inward[0]), (work.copy_out, work.outward[0])):
        operations = [lambda issue=issue, stream=stream: issue(stream)] * (1 + _PAGEABLE_REPEATS)
        (spans,) = session.time_operations([(stream, operations)], waits=True)
        times = Statistics.of([end - start for start, end in spans[1:]])
        rates.append(rate_bytes_per_s(_PAGEABLE_SIZE_BYTES, times.median_ns))
    return rates[0], rates[1]


def _run(arguments: argparse.Namespace) -> Result:
    """Run the benchmark."""
    twin = None if arguments.twin is None else BENCHMARK.twin(arguments.twin).name
    options = _Options(**chosen_options(arguments, BENCHMARK.name, _DEFAULTS))
    with open_session(BENCHMARK.name) as session:
        return _measure(session, options, twin, arguments.reps)


def _measure(session: Session, options: _Options, twin: str | None, reps: int) -> Result:
    """Measure, and put the result together."""
    pageable = twin == "pageable"
    limit_bytes = buffer_limit_bytes(session, device_buffers=3, host_buffers=2)
    wanted = _PAGEABLE_SIZE_BYTES if pageable else _SIZE_BYTES
    notes: list[str] = []
    size_bytes = chosen_bytes(options.size_bytes, wanted, limit_bytes, notes)
    copies = options.copies or (_PAGEABLE_COPIES if pageable else _COPIES)
    work = _Workload(
        session, size_bytes, copies, streams=options.same_direction, pinned=not pageable
    )
    measured = session.measure(
        _passes(work, shared=options.same_direction > 1, pageable=pageable),
        reps,
        check=work.check,
        corrupt=work.host_to if twin == CORRUPT.name else None,
    )
    h2d_own_ns, d2h_own_ns = work.own_ns(reps)
    pageable_in, pageable_out = (None, None) if pageable else _pageable_rates(session)
    figures = _figures(measured.passes, h2d_own_ns, d2h_own_ns, size_bytes * copies)
    figures |= {
        "h2d_pageable_rate_bytes_per_s": pageable_in,
        "d2h_pageable_rate_bytes_per_s": pageable_out,
    }
    pcie = session.pcie_limit_bytes_per_s(measured.readings)
    return session.conclude(
        measured,
        twin=twin,
        options=asdict(replace(options, size_bytes=size_bytes, copies=copies)),
        stages={"h2d_both_ns": h2d_own_ns, "d2h_both_ns": d2h_own_ns},
        figures=figures,
        quantities=_quantities(figures, pcie),
        expected=[_expected(pageable=pageable)],
        title=f"{copies} copies of {format_size(size_bytes)}, "
        f"{'pageable' if pageable else 'pinned'}",
        lines=_lines(figures),
        notes=notes,
    )


def _passes(work: _Workload, *, shared: bool, pageable: bool) -> list[Pass]:
    """Return the passes: either direction, both, and if `shared` either over several streams."""
    inward, outward = work.inward, work.outward
    passes = [
        Pass("h2d", inward, work.h2d, lead=work.lead_in),
        Pass("d2h", outward, work.d2h, lead=work.lead_out),
        Pass("both", [*inward, *outward], work.both, lead=work.lead_both),
    ]
    if shared:
        passes += [
            Pass("h2d-shared", inward, work.h2d_shared, lead=work.lead_in),
            Pass("d2h-shared", outward, work.d2h_shared, lead=work.lead_out),
        ]
    if pageable:  # such a copy waits on the host, and would wait for ever behind a closed gate
        return [replace(each, waits=True, lead=None) for each in passes]
    return passes


def _expected(*, pageable: bool) -> Expected:
    """Return the verdict that the trace must show for the pass `both`."""
    if pageable:
        return Expected("both", "d2h", "h2d", "serialized", 1.0)
    return Expected("both", "d2h", "h2d", "overlapped", 1.0, LEAST_RHO)


def _figures(
    passes: Any, h2d_own_ns: int, d2h_own_ns: int, moved_bytes: int
) -> dict[str, float | None]:
    """Return all rates, each pass moving `moved_bytes` in each of its directions."""
    rates = {
        f"{name.replace('-', '_')}_rate_bytes_per_s": rate_bytes_per_s(moved_bytes, times.median_ns)
        for name, times in passes.items()
        if name != "both"
    }
    return {
        **rates,
        "sum_rate_bytes_per_s": rate_bytes_per_s(2 * moved_bytes, passes["both"].median_ns),
        "h2d_both_rate_bytes_per_s": rate_bytes_per_s(moved_bytes, h2d_own_ns),
        "d2h_both_rate_bytes_per_s": rate_bytes_per_s(moved_bytes, d2h_own_ns),
    }


def _quantities(figures: dict[str, float | None], pcie: float | None) -> Sequence[Quantity]:
    """Return each rate beside what the link can carry."""
    names = {
        "copy in": "h2d_rate_bytes_per_s",
        "copy out": "d2h_rate_bytes_per_s",
        "copy in, both at once": "h2d_both_rate_bytes_per_s",
        "copy out, both at once": "d2h_both_rate_bytes_per_s",
        "copy in, several streams": "h2d_shared_rate_bytes_per_s",
        "copy out, several streams": "d2h_shared_rate_bytes_per_s",
        "copy in, pageable": "h2d_pageable_rate_bytes_per_s",
        "copy out, pageable": "d2h_pageable_rate_bytes_per_s",
    }
    rows = [
        Quantity(name, figures[key], "bytes/s", pcie, _LINK)
        for name, key in names.items()
        if figures.get(key) is not None
    ]
    both = None if pcie is None else 2 * pcie
    total = figures["sum_rate_bytes_per_s"]
    return [*rows, Quantity("both ways together", total, "bytes/s", both, f"2 × {_LINK}")]


def _lines(figures: dict[str, float | None]) -> list[str]:
    """Return nvbandwidth's figures, by its own definition."""
    inward = format_rate(figures["h2d_both_rate_bytes_per_s"])
    outward = format_rate(figures["d2h_both_rate_bytes_per_s"])
    return [f"as nvbandwidth reports it, with the other direction busy: in {inward}, out {outward}"]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--size",
        dest="size_bytes",
        type=size_argument,
        metavar="SIZE",
        help="bytes a copy (default: 512M; of pageable memory 64M)",
    )
    parser.add_argument(
        "--copies",
        type=positive_int,
        metavar="N",
        help="copies a pass (default: 16; of pageable memory 4)",
    )
    parser.add_argument(
        "--same-direction",
        type=positive_int,
        metavar="N",
        help="also spread the copies of one direction over N streams",
    )


BENCHMARK = Benchmark(
    name="host-bandwidth",
    summary="copies in, out, and both ways at once: what the link to the host carries",
    options="--size SIZE  --copies N  --same-direction N",
    needs="1 GPU",
    twins=(
        Twin(
            "pageable",
            "host memory that is not page-locked",
            "both: the two directions serialized",
        ),
        CORRUPT,
    ),
    add_arguments=_add_arguments,
    run=_run,
)
