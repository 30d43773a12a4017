"""``p2p-bandwidth``: what the link between two GPUs carries one way, the other, and both at once.

::

    forward    [0→1][0→1][0→1] …
    backward   [1→0][1→0][1→0] …
    both       [0→1][0→1][0→1] …         two streams, started together
               [1→0][1→0][1→0] …

With ``--with-compute`` a kernel of about a copy's time runs beside each copy out of GPU 0: copies
between GPUs are done by copy engines, and take no multiprocessor. ::

    compute    [kernel][kernel][kernel] …
    beside     [0→1   ][0→1   ][0→1   ] …
               [kernel][kernel][kernel] …
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from gpuscope.benchmarks._harness import (
    CORRUPT,
    MIB,
    PATHS,
    Benchmark,
    DirectWay,
    Expectation,
    Expected,
    ExpectedLinks,
    FmaKernel,
    Pair,
    Pass,
    Pattern,
    Quantity,
    Result,
    StagedWay,
    Statistics,
    Twin,
    add_pair_arguments,
    calibrate_steps,
    chosen_bytes,
    chosen_options,
    event_for,
    format_size,
    max_steps,
    open_pair,
    pass_term,
    pass_value,
    positive_int,
    raise_if_wrong,
    rate_bytes_per_s,
    refuse_inexact,
    size_argument,
)
from gpuscope.errors import UsageError
from gpuscope.units import format_rate

LEAST_RHO = 0.8
"""Two queues of equal copies that start together share nearly all of their time."""
SLOTS = 2
"""Host buffers a direction, so that one is filled while the other is emptied."""
_SIZE_BYTES = 256 * MIB
_COPIES = 16
_WORK_BYTES = 64 * MIB
"""What the kernel beside the copies works on: enough for every multiprocessor."""
_KERNEL_REPEATS = 5
_DEFAULTS = MappingProxyType(
    {
        "size_bytes": None,
        "copies": _COPIES,
        "path": "p2p",
        "pair": "0-1",
        "same_device": False,
        "pull": False,
        "with_compute": False,
        "kernel_steps": None,
    }
)


@dataclass(frozen=True, slots=True)
class _Options:
    """What is run."""

    size_bytes: int | None
    copies: int
    path: str
    pair: str
    same_device: bool
    pull: bool
    with_compute: bool
    kernel_steps: int | None


class _Workload:
    """On each side a buffer to send and one to receive, a way for each direction, and a kernel."""

    def __init__(self, pair: Pair, options: _Options, size_bytes: int, *, one_stream: bool) -> None:
        import numpy as np

        self.pair, self.options, self.size_bytes = pair, options, size_bytes
        elements = size_bytes // 4
        self.sent = [pair.empty(side, elements) for side in (0, 1)]
        self.received = [pair.empty(side, elements) for side in (0, 1)]
        self.patterns, self.wrong = [], []
        for side in (0, 1):
            with pair.on(side):
                self.patterns.append(Pattern(pair.cp))
                self.wrong.append(pair.cp.zeros(1, np.uint64))
        single = pair.stream(0)

        def stream(side: int) -> Any:
            return single if one_stream else pair.stream(side)

        self.ways: list[DirectWay | StagedWay]
        if options.path == "staged":
            self.ways = [
                StagedWay(pair, (stream(side), stream(1 - side)), size_bytes, SLOTS)
                for side in (0, 1)
            ]
        else:
            self.ways = [
                DirectWay(pair, side, stream(1 - side if options.pull else side)) for side in (0, 1)
            ]
        self.kernel_stream = stream(0)
        self.kernel = FmaKernel(pair.cp)
        self.work: Any = pair.empty(0, _WORK_BYTES // 4) if options.with_compute else None
        self.steps = options.kernel_steps or 1
        self.launches = 0
        self.first = self.compared = 0
        self.sending: Sequence[int] = ()
        """The sides that the last pass copies from, if what it left was not compared yet."""
        self.marks: dict[str, list[list[tuple[Any, Any]]]] = {"both": [], "beside": []}
        """Of these passes, of each time that they ran, the events around each part."""
        self.renew_work()

    @property
    def waits(self) -> bool:
        """Whether issuing copies waits for the GPU: the driver may stage large ones itself."""
        return self.options.path == "driver" and not self.pair.same

    def renew_work(self) -> None:
        """Write the pattern to what the kernel works on."""
        if self.work is not None:
            self.launches = 0
            self.patterns[0].fill_device(self.work)
        self.pair.synchronize()

    def begin(self, sending: Sequence[int]) -> None:
        """Compare what the last pass left, write new data to send, and poison what is to receive.

        So what a pass loses is not covered by what another one brought.
        """
        import numpy as np

        self.settle()
        self.first += 2 * self.sent[0].size
        for side in sending:
            with self.pair.on(side):
                self.patterns[side].fill_device(self.sent[side], self._position(side))
            with self.pair.on(1 - side):
                self.received[1 - side].fill(np.nan)
        self.sending = sending
        self.pair.synchronize()

    def settle(self) -> None:
        """Compare what the last pass left, without waiting."""
        for source in self.sending:
            target, array = 1 - source, self.received[1 - source]
            with self.pair.on(target):
                position = self._position(source)
                self.patterns[target].count(array, position, 0, 0, self.wrong[target])
            self.compared += array.size
        self.sending = ()

    def _position(self, side: int) -> int:
        """Return where in the pattern begins what a side sends."""
        return int(self.first + side * self.sent[0].size)

    def copy(self, source: int) -> None:
        """Issue one copy from side `source` to the other."""
        target = self.received[1 - source].data.ptr
        self.ways[source].copy(target, self.sent[source].data.ptr, self.size_bytes)

    def launch(self) -> None:
        """Issue one kernel."""
        self.launches += 1
        buffer, count = self.work.data.ptr, self.work.size
        term = pass_term(self.launches)
        self.kernel.launch(self.kernel_stream, buffer, count, self.steps, term)

    def repeat(self, *parts: Callable[[], None]) -> None:
        """Issue each part as often as there are copies, in turn."""
        for _ in range(self.options.copies):
            for part in parts:
                part()

    def marked(self, name: str, parts: Sequence[tuple[Any, Callable[[], None]]]) -> None:
        """Issue parts in turn, with marks around each: of a part a stream, and what issues it."""
        marks = []
        for stream, _ in parts:
            start, end = (event_for(self.pair.cp, stream, timing=True) for _ in range(2))
            start.record(stream)
            marks.append((start, end))
        self.repeat(*(issue for _, issue in parts))
        for (stream, _), (_, end) in zip(parts, marks, strict=True):
            end.record(stream)
        self.marks[name].append(marks)

    def one_way(self, side: int) -> None:
        """All copies out of a side."""
        self.repeat(partial(self.copy, side))

    def both(self) -> None:
        """All copies of both directions."""
        self.marked(
            "both", [(self.ways[side].streams[0], partial(self.copy, side)) for side in (0, 1)]
        )

    def compute(self) -> None:
        """All kernels."""
        self.repeat(self.launch)

    def beside(self) -> None:
        """All copies out of side 0, with a kernel beside each."""
        copying = (self.ways[0].streams[0], partial(self.copy, 0))
        self.marked("beside", [copying, (self.kernel_stream, self.launch)])

    def own_ns(self, name: str, passes: int) -> list[int]:
        """Return the time of each part of `name` by itself, of the last passes, in ns.

        Of a staged way that is the time of its copies out.
        """
        elapsed = self.pair.cp.cuda.get_elapsed_time
        parts = zip(*self.marks[name][-passes:], strict=True)
        return [
            Statistics.of([round(1e6 * elapsed(*mark)) for mark in part]).median_ns
            for part in parts
        ]

    def kernel_ns(self, steps: int) -> int:
        """Return the time of one kernel with so many steps, in ns, and keep the number."""
        self.steps = steps
        launches = [self.launch] * (1 + _KERNEL_REPEATS)
        (spans,) = self.pair.session.time_operations([(self.kernel_stream, launches)])
        return Statistics.of([end - start for start, end in spans[1:]]).median_ns

    def copy_ns(self) -> int:
        """Return the time that each of the copies out of side 0 takes, one after the other."""
        streams, copies = self.ways[0].streams, partial(self.one_way, 0)
        time_batch = self.pair.session.time_batch
        times = [time_batch(streams, copies, waits=self.waits) for _ in range(2)]
        return times[-1] // self.options.copies

    def passes(self) -> list[Pass]:
        """Return what is timed."""
        there, back = (list(way.streams) for way in self.ways)
        found = [
            self._copying("forward", there, partial(self.one_way, 0), (0,)),
            self._copying("backward", back, partial(self.one_way, 1), (1,)),
            self._copying("both", [*there, *back], self.both, (0, 1)),
        ]
        if self.work is not None:
            found += [
                Pass("compute", [self.kernel_stream], self.compute),
                self._copying("beside", [*there, self.kernel_stream], self.beside, (0,)),
            ]
        return found

    def _copying(
        self, name: str, streams: Sequence[Any], issue: Callable[[], None], sending: Sequence[int]
    ) -> Pass:
        """Return a pass that copies from the sides `sending`."""
        return Pass(name, streams, issue, waits=self.waits, prepare=partial(self.begin, sending))

    def check(self) -> None:
        """Raise if any pass left wrong data."""
        self.settle()
        counts = []
        for side in (0, 1):
            with self.pair.on(side):
                counts.append(int(self.wrong[side].get()[0]))
        raise_if_wrong(counts, self.compared, "buffer")
        if self.work is not None:
            self.patterns[0].check_device(self.work, 0, self.steps * pass_value(self.launches))


def _run(arguments: argparse.Namespace) -> Result:
    """Run the benchmark."""
    twin = None if arguments.twin is None else BENCHMARK.twin(arguments.twin).name
    options = _Options(**chosen_options(arguments, BENCHMARK.name, _DEFAULTS))
    if options.pull and options.path == "staged":
        raise UsageError("--pull says which GPU issues a copy; both do with --path staged.")
    if options.kernel_steps and not options.with_compute:
        raise UsageError("--kernel-steps is of the kernel that --with-compute runs: give both.")
    refuse_inexact(options.kernel_steps)
    with open_pair(
        BENCHMARK.name, path=options.path, pair=options.pair, same_device=options.same_device
    ) as pair:
        return _measure(pair, options, twin, arguments.reps)


def _measure(pair: Pair, options: _Options, twin: str | None, reps: int) -> Result:
    """Measure, and put the result together."""
    limit_bytes = pair.buffer_limit_bytes(
        device_buffers=2, host_buffers=2 * SLOTS if options.path == "staged" else 1
    )
    notes: list[str] = []
    size_bytes = chosen_bytes(options.size_bytes, _SIZE_BYTES, limit_bytes, notes)
    work = _Workload(pair, options, size_bytes, one_stream=twin == "one-stream")
    if work.work is not None and options.kernel_steps is None:
        calibrate_steps(work.kernel_ns, work.copy_ns(), max_steps())
        work.renew_work()
    measured = pair.session.measure(
        work.passes(),
        reps,
        check=work.check,
        corrupt=work.received[1] if twin == CORRUPT.name else None,
    )
    medians = {name: times.median_ns for name, times in measured.passes.items()}
    own = {name: work.own_ns(name, reps) for name, marks in work.marks.items() if marks}
    pcie = pair.session.pcie_limit_bytes_per_s(measured.readings)
    figures = _figures(medians, own, size_bytes * options.copies)
    steps = work.steps if options.with_compute else None
    return pair.session.conclude(
        measured,
        twin=twin,
        options=asdict(replace(options, size_bytes=size_bytes, kernel_steps=steps)),
        stages=_stages(own),
        figures=figures,
        quantities=_quantities(pair, options, figures, medians, pcie),
        expected=_expected(pair, options, one_stream=twin == "one-stream"),
        title=f"{options.copies} copies of {format_size(size_bytes)}, "
        f"{'pulled' if options.pull else 'pushed'}, {pair}",
        lines=_lines(figures, own, medians),
        notes=[*notes, *_notes(pair, options, size_bytes)],
    )


def _notes(pair: Pair, options: _Options, size_bytes: int) -> list[str]:
    """Return what a reader of the figures should know."""
    notes = []
    if options.size_bytes is None and size_bytes < _SIZE_BYTES:
        notes.append(
            f"copies were shrunk from {format_size(_SIZE_BYTES)} to {format_size(size_bytes)} to "
            "fit the memory"
        )
    if pair.same:
        notes.append("both buffers are on one GPU: no link is measured, and nothing judged")
    elif options.path == "driver":
        notes.append(
            "of a large copy that the driver stages a trace has the first piece alone: nothing is "
            "judged"
        )
    return notes


def _stages(own: Mapping[str, Sequence[int]]) -> dict[str, int | None]:
    """Return the times of the parts of passes by themselves."""
    found: dict[str, int | None] = {
        "forward_both_ns": own["both"][0],
        "backward_both_ns": own["both"][1],
    }
    if "beside" in own:
        found |= {"forward_beside_ns": own["beside"][0], "compute_beside_ns": own["beside"][1]}
    return found


def _figures(
    medians: Mapping[str, int], own: Mapping[str, Sequence[int]], moved_bytes: int
) -> dict[str, float | None]:
    """Return all rates, each pass moving `moved_bytes` in each of its directions."""
    found: dict[str, float | None] = {
        "forward_rate_bytes_per_s": rate_bytes_per_s(moved_bytes, medians["forward"]),
        "backward_rate_bytes_per_s": rate_bytes_per_s(moved_bytes, medians["backward"]),
        "sum_rate_bytes_per_s": rate_bytes_per_s(2 * moved_bytes, medians["both"]),
        "forward_both_rate_bytes_per_s": rate_bytes_per_s(moved_bytes, own["both"][0]),
        "backward_both_rate_bytes_per_s": rate_bytes_per_s(moved_bytes, own["both"][1]),
    }
    if "beside" in own:
        serial_ns = medians["forward"] + medians["compute"]
        least_ns = max(medians["forward"], medians["compute"])
        found |= {
            "forward_beside_rate_bytes_per_s": rate_bytes_per_s(moved_bytes, own["beside"][0]),
            "compute_stretch_ratio": own["beside"][1] / medians["compute"],
            "t_lb_ns": least_ns,
            "beside_speedup": serial_ns / medians["beside"],
            "beside_speedup_max": serial_ns / least_ns,
        }
    return found


def _quantities(
    pair: Pair,
    options: _Options,
    figures: Mapping[str, float | None],
    medians: Mapping[str, int],
    pcie: float | None,
) -> list[Quantity]:
    """Return each rate beside what carries it: the link, or PCIe for what goes through the host."""
    direct = options.path == "p2p" and not pair.same
    limit = pair.link.limit_bytes_per_s if direct else None if pair.same else pcie
    source = str(pair.link) if direct or pair.same else "PCIe generation × width"
    names = {
        "forward": "forward_rate_bytes_per_s",
        "backward": "backward_rate_bytes_per_s",
        "forward, both at once": "forward_both_rate_bytes_per_s",
        "backward, both at once": "backward_both_rate_bytes_per_s",
        "forward, beside kernels": "forward_beside_rate_bytes_per_s",
    }
    rows = [
        Quantity(name, figures[key], "bytes/s", limit, source)
        for name, key in names.items()
        if key in figures
    ]
    total = figures["sum_rate_bytes_per_s"]
    both = None if limit is None else 2 * limit
    rows.append(Quantity("both ways together", total, "bytes/s", both, f"2 × {source}"))
    if "beside" in medians:
        least = figures["t_lb_ns"]
        rows.append(Quantity("copies and kernels", medians["beside"], "ns", least, "the longer"))
    return rows


def _expected(pair: Pair, options: _Options, *, one_stream: bool) -> list[Expectation]:
    """Return what the trace must show: nothing where it cannot, as :func:`_notes` says."""
    if pair.same or options.path == "driver":
        return []
    verdict = "serialized" if one_stream else "overlapped"
    rho = None if one_stream else LEAST_RHO
    found: list[Expectation]
    if options.path == "staged":
        found = [Expected("both", "d2h", "h2d", verdict, 1.0, rho)]
        beside = ("d2h", "kernel")
    else:
        there, back = (f"{a}>{b}" for a, b in (pair.devices, pair.devices[::-1]))
        found = [ExpectedLinks("both", there, back, verdict, rho)]
        beside = ("kernel", "p2p")
    if options.with_compute:
        found.append(Expected("beside", *beside, verdict, 1.0))
    return found


def _lines(
    figures: Mapping[str, float | None],
    own: Mapping[str, Sequence[int]],
    medians: Mapping[str, int],
) -> list[str]:
    """Return what stands below the table."""
    if "beside" not in own:
        return []
    stretch = own["beside"][1] / medians["compute"]
    return [
        f"beside each other: copies {format_rate(figures['forward_beside_rate_bytes_per_s'])} "
        f"against {format_rate(figures['forward_rate_bytes_per_s'])} alone, kernels "
        f"{stretch:.2f} times as long as alone; {figures['beside_speedup']:.2f} times as fast as "
        f"one after the other, {figures['beside_speedup_max']:.2f} at best"
    ]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--size",
        dest="size_bytes",
        type=size_argument,
        metavar="SIZE",
        help="bytes a copy (default: 256M)",
    )
    parser.add_argument(
        "--copies", type=positive_int, metavar="N", help=f"copies a pass (default: {_COPIES})"
    )
    add_pair_arguments(parser, PATHS)
    parser.add_argument(
        "--pull",
        action="store_true",
        default=None,
        help="copies are issued by the GPU that receives, not by the one that sends",
    )
    parser.add_argument(
        "--with-compute",
        action="store_true",
        default=None,
        help="also run a kernel beside each copy out of the first GPU",
    )
    parser.add_argument(
        "--kernel-steps",
        type=positive_int,
        metavar="K",
        help="multiply-adds an element of that kernel (default: as long as the copy)",
    )


BENCHMARK = Benchmark(
    name="p2p-bandwidth",
    summary="large copies between two GPUs: one way, the other, both at once",
    options="--path PATH  --pair A-B  --size SIZE  --copies N  --pull  --with-compute  "
    "--kernel-steps K  --same-device",
    needs="2 GPUs",
    twins=(
        Twin(
            "one-stream",
            "everything on one stream",
            "both: serialized; with --with-compute copies and kernels, too",
        ),
        CORRUPT,
    ),
    add_arguments=_add_arguments,
    run=_run,
)
