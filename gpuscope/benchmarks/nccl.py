"""``nccl``: what each of NCCL's operations takes, and what running beside compute costs.

Each operation is issued several times in a row, at sizes from 8 B to 128 MiB, and every pass is
timed on all ranks together: ::

    rank 0    [all-reduce][all-reduce][all-reduce] …
    rank 1    [all-reduce][all-reduce][all-reduce] …

NCCL's kernels take a multiprocessor for each channel. Beside a compute kernel (``--with-compute``)
few channels leave it more, and take longer themselves: ::

    communication   [== all-reduce ==][== all-reduce ==] …
    compute         [========= multiply-adds ==========]   stretched by what the channels take

``--communicators`` cuts the largest in pieces, each on a communicator and a stream of its own.
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
    Benchmark,
    Expected,
    ExpectedCount,
    ExpectedPeak,
    FmaKernel,
    Measured,
    Pass,
    Quantity,
    Result,
    Statistics,
    Twin,
    calibrate_steps,
    check_device_bytes,
    chosen_options,
    format_size,
    max_steps,
    pass_term,
    pass_value,
    positive_int,
    raise_if_wrong,
    rate_bytes_per_s,
    refuse_inexact,
    size_argument,
)
from gpuscope.benchmarks._harness.collectives import (
    COLLECTIVES,
    ELEMENT_BYTES,
    Buffers,
    Call,
    Collective,
    elements_of,
)
from gpuscope.benchmarks._harness.nccl import (
    LimitedCommunicator,
    narrowest_link,
    nccl_settings,
    nvls_note,
)
from gpuscope.benchmarks._harness.ranks import Ranks, open_ranks
from gpuscope.errors import UsageError
from gpuscope.units import NS_PER_MS, format_ns, format_rate

_SIZES = tuple(8 << 4 * step for step in range(7))
"""8 B to 128 MiB, by 16."""
_IN_A_ROW = 20
"""Operations a pass: as many as NCCL's own tests time."""
_IN_A_ROW_LARGE = 4
"""Of the largest size alone, so that a pass with one channel stays below 50 ms."""
_CHANNELS = (1, 2, 4, 8, 16)
_MAX_CHANNELS = 64
_COMPUTE_ELEMENTS = 64 * MIB // 4
"""Elements of the compute kernel: 62 waves of blocks on an H200, so that multiprocessors come free
for NCCL all the time."""
_PRIORITY = -1
"""NCCL's stream gets what comes free before the compute kernel's next blocks do."""
_LEAST_RHO = 0.8
"""Two streams that are let go together share nearly all of the shorter one's time."""
_CALIBRATIONS = 5
_SAME_STREAM = "same-stream"
_DEFAULTS = MappingProxyType(
    {
        "sizes_bytes": None,
        "operations": None,
        "in_a_row": None,
        "with_compute": None,
        "channels": None,
        "communicators": None,
        "kernel_steps": None,
    }
)


@dataclass(frozen=True, slots=True)
class _Options:
    """What is run."""

    sizes_bytes: tuple[int, ...]
    operations: tuple[str, ...]
    in_a_row: int
    with_compute: bool
    channels: tuple[int, ...]
    communicators: int
    kernel_steps: int | None


def size_label(size_bytes: int) -> str:
    """Write a size for the name of a pass: ``8B``, ``128M``."""
    text = format_size(size_bytes)
    return f"{text}B" if text.isdecimal() else text


class _Messages:
    """Operations of given sizes: what each sends, where it receives, and the check of that.

    All send from one place, which has other data in each pass; each receives at its own.
    """

    def __init__(
        self, ranks: Ranks, cases: Sequence[tuple[Collective, int]], in_a_row: int
    ) -> None:
        self._ranks, self._cases, self._in_a_row = ranks, cases, in_a_row
        self.elements = [elements_of(size_bytes, ranks.size) for _, size_bytes in cases]
        largest = max(self.elements)
        check_device_bytes(ranks.session, Buffers.bytes_for(largest, self.elements))
        self._buffers = Buffers(ranks.session.cp, largest, self.elements)
        self._turn = 0
        self._turns = [0] * len(cases)
        prepare = ranks.session.ranges.prepare
        self._ranges = [
            prepare(f"gs:nccl:{case.function}", size_bytes) for case, size_bytes in cases
        ]

    def renew(self, numbers: Sequence[int], stream: Any) -> None:
        """Send other data from here on, and poison where these operations receive."""
        self._turn += 1
        for number in numbers:
            self._turns[number] = self._turn
        self._buffers.renew(numbers, self._turn, self._ranks.rank, stream)

    def issue(self, number: int, communicator: Any, stream: Any) -> None:
        """Issue an operation as often in a row as wanted."""
        case, _ = self._cases[number]
        call = Call(
            communicator,
            self._buffers.sent.data.ptr,
            self._buffers.place(number).data.ptr,
            self.elements[number],
            self._ranks.rank,
            self._ranks.size,
            stream.ptr,
        )
        with self._ranges[number]:
            for _ in range(self._in_a_row):
                case.issue(call)

    def check(self) -> None:
        """Compare what was received last."""
        for number, (case, _) in enumerate(self._cases):
            parts = case.parts(self.elements[number], self._ranks.rank, self._ranks.size)
            place, turn = self._buffers.place(number), self._turns[number]
            self._buffers.data.check(place, parts, turn, case.name)

    @property
    def last(self) -> Any:
        """Where the last of them is received."""
        return self._buffers.place(len(self._cases) - 1)


# Every operation at every size


def _table(ranks: Ranks, options: _Options, twin: str | None, reps: int) -> Result:
    session = ranks.session
    cases = [
        (case, size_bytes)
        for case in COLLECTIVES
        if case.name in options.operations
        for size_bytes in options.sizes_bytes
    ]
    messages = _Messages(ranks, cases, options.in_a_row)
    communicator, stream = ranks.nccl(), session.cp.cuda.Stream(non_blocking=True)
    for number in range(len(cases)):  # NCCL connects the ranks when it first has to
        messages.renew([number], stream)
        messages.issue(number, communicator, stream)
        stream.synchronize()
    passes = [
        Pass(
            _name(case, size_bytes),
            [stream],
            partial(messages.issue, number, communicator, stream),
            prepare=partial(messages.renew, [number], stream),
        )
        for number, (case, size_bytes) in enumerate(cases)
    ]
    measured = session.measure(
        passes,
        reps,
        check=messages.check,
        corrupt=messages.last if twin == CORRUPT.name else None,
    )
    link = narrowest_link(ranks)
    figures: dict[str, float | None] = {}
    quantities = []
    for number, (case, size_bytes) in enumerate(cases):
        name = _name(case, size_bytes)
        moved = messages.elements[number] * ELEMENT_BYTES * options.in_a_row
        algorithm = rate_bytes_per_s(moved, measured.passes[name].median_ns)
        bus = None if algorithm is None else algorithm * case.bus_factor(ranks.size)
        key = name.replace("-", "_")
        figures |= {f"{key}_algbw_bytes_per_s": algorithm, f"{key}_busbw_bytes_per_s": bus}
        if size_bytes == options.sizes_bytes[-1]:
            limit = link.limit_bytes_per_s
            quantities.append(
                Quantity(f"{case.name}, bus", bus, "bytes/s", limit, f"one way, {link}")
            )
    return _conclude(
        ranks,
        measured,
        options,
        twin,
        figures=figures,
        quantities=quantities,
        expected=[
            ExpectedCount(_name(case, size_bytes), "comm", options.in_a_row, options.in_a_row)
            for case, size_bytes in cases
            if size_bytes in (options.sizes_bytes[0], options.sizes_bytes[-1])
        ],
        title=f"{options.in_a_row} operations a pass on one communicator",
        lines=_rate_lines(options, figures, measured),
    )


def _name(case: Collective, size_bytes: int) -> str:
    return f"{case.name}-{size_label(size_bytes)}"


def _rate_lines(
    options: _Options, figures: Mapping[str, float | None], measured: Measured
) -> list[str]:
    """Return tables of time, algorithm's and bus bandwidth: a row a size, a column an operation."""

    def time_of(name: str) -> str:
        return format_ns(measured.passes[name].median_ns / options.in_a_row)

    def rate(kind: str, name: str) -> str:
        return format_rate(figures[f"{name.replace('-', '_')}_{kind}_bytes_per_s"])

    lines = []
    cells: Mapping[str, Callable[[str], str]] = {
        "time of one": time_of,
        "algbw": partial(rate, "algbw"),
        "busbw": partial(rate, "busbw"),
    }
    for title, cell in cells.items():
        lines.append(f"{title:<12}" + "".join(f"{name:>16}" for name in options.operations))
        lines += [
            f"{label:<12}"
            + "".join(f"{cell(f'{name}-{label}'):>16}" for name in options.operations)
            for label in map(size_label, options.sizes_bytes)
        ]
    return lines


# One operation beside a compute kernel


class _Beside:
    """The largest of one operation, with several numbers of channels, beside a compute kernel."""

    def __init__(self, ranks: Ranks, options: _Options, *, one_stream: bool) -> None:
        cp = ranks.session.cp
        self._ranks, self._cp = ranks, cp
        (case,) = (case for case in COLLECTIVES if case.name == options.operations[0])
        self.messages = _Messages(ranks, [(case, options.sizes_bytes[-1])], options.in_a_row)
        self.stream = cp.cuda.Stream(non_blocking=True, priority=_PRIORITY)
        self.compute_stream = self.stream if one_stream else cp.cuda.Stream(non_blocking=True)
        self.communicators = {
            channels: LimitedCommunicator(ranks, channels) for channels in options.channels
        }
        self.steps = options.kernel_steps or 1
        self._kernel = FmaKernel(cp)
        self._worked = cp.zeros(_COMPUTE_ELEMENTS, cp.float32)
        self._passes_begun = 0
        self._marks: dict[int, list[tuple[Any, Any]]] = {each: [] for each in options.channels}

    def passes(self) -> list[Pass]:
        """Return compute alone, and with each number of channels NCCL alone and both."""
        renew = partial(self.messages.renew, [0], self.stream)
        both = list(dict.fromkeys([self.stream, self.compute_stream]))
        found = [Pass("compute", [self.compute_stream], self.compute)]
        for channels in self.communicators:
            alone = partial(self.communicate, channels)
            beside = partial(self.beside, channels)
            found.append(Pass(f"comm-{channels}", [self.stream], alone, prepare=renew))
            found.append(Pass(f"both-{channels}", both, beside, prepare=renew))
        return found

    def communicate(self, channels: int) -> None:
        """Issue the operation on the communicator of so many channels."""
        self.messages.issue(0, self.communicators[channels], self.stream)

    def compute(self) -> None:
        """Issue the compute kernel."""
        self._passes_begun += 1
        self._work(self.steps, pass_term(self._passes_begun))

    def beside(self, channels: int) -> None:
        """Issue both, with marks around the compute kernel."""
        marks = self._cp.cuda.Event(), self._cp.cuda.Event()
        self.communicate(channels)
        marks[0].record(self.compute_stream)
        self.compute()
        marks[1].record(self.compute_stream)
        self._marks[channels].append(marks)

    def _work(self, steps: int, term: float) -> None:
        address = self._worked.data.ptr
        self._kernel.launch(self.compute_stream, address, _COMPUTE_ELEMENTS, steps, term)

    def connect(self) -> None:
        """Have every communicator work once without a gate: NCCL connects when it first has to.

        By then the kernel's memory is filled as well, on the null stream, which no other waits for.
        """
        for channels in self.communicators:
            self.messages.renew([0], self.stream)
            self.communicate(channels)
        self._cp.cuda.runtime.deviceSynchronize()

    def calibrate(self) -> None:
        """Make the compute kernel last as long as the operations with the most channels."""
        target_ns = self._alone_ns(self.stream, partial(self.communicate, max(self.communicators)))

        def kernel_ns(steps: int) -> int:
            return self._alone_ns(self.compute_stream, partial(self._work, steps, 0.0))

        # Each rank finds another number: all take that of the first.
        self.steps = self._ranks.agree(calibrate_steps(kernel_ns, target_ns, max_steps()))

    def _alone_ns(self, stream: Any, issue: Callable[[], None]) -> int:
        (spans,) = self._ranks.session.time_operations([(stream, [issue] * _CALIBRATIONS)])
        return Statistics.of([end - start for start, end in spans[1:]]).median_ns

    def check(self) -> None:
        """Compare what was received, and what the compute kernel left."""
        self.messages.check()
        left = self.steps * pass_value(self._passes_begun)
        wrong = int((self._worked != left).sum())
        raise_if_wrong([wrong], _COMPUTE_ELEMENTS, "compute buffer")

    def compute_ns(self, channels: int, repetitions: int) -> int:
        """Return the median time of the compute kernel beside NCCL, on the slowest rank, in ns."""
        elapsed = self._cp.cuda.get_elapsed_time
        times = [round(NS_PER_MS * elapsed(*each)) for each in self._marks[channels][-repetitions:]]
        return Statistics.of(self._ranks.largest(times)).median_ns


def _beside(ranks: Ranks, options: _Options, twin: str | None, reps: int) -> Result:
    one_stream = twin == _SAME_STREAM
    work = _Beside(ranks, options, one_stream=one_stream)
    work.connect()
    if options.kernel_steps is None:
        work.calibrate()
    measured = ranks.session.measure(
        work.passes(),
        reps,
        check=work.check,
        corrupt=work.messages.last if twin == CORRUPT.name else None,
    )
    compute = measured.passes["compute"].median_ns
    figures: dict[str, float | None] = {}
    quantities, lines = [], [_beside_row("channels", "alone", "beside compute", "both", "stretch")]
    for channels in options.channels:
        alone, both = (measured.passes[f"{name}-{channels}"].median_ns for name in ("comm", "both"))
        beside = work.compute_ns(channels, reps)
        stretch = beside / compute
        figures |= {
            f"compute_stretch_ratio_{channels}": stretch,
            f"speed_up_{channels}": (alone + compute) / both,
        }
        longer = max(alone, compute)
        quantities.append(
            Quantity(f"both, {channels} channels", both, "ns", longer, "the longer one, alone")
        )
        lines.append(
            _beside_row(
                str(channels),
                format_ns(alone),
                format_ns(beside),
                format_ns(both),
                f"{stretch:.2f}×",
            )
        )
    verdict = "serialized" if one_stream else "overlapped"
    least = None if one_stream else _LEAST_RHO
    return _conclude(
        ranks,
        measured,
        replace(options, kernel_steps=work.steps),
        twin,
        figures=figures,
        quantities=quantities,
        expected=[
            Expected(f"both-{channels}", "comm", "kernel", verdict, 1.0, least)
            for channels in options.channels
        ],
        title=f"{options.in_a_row} × {options.operations[0]} of "
        f"{format_size(options.sizes_bytes[-1])} beside a compute kernel",
        lines=lines,
    )


def _beside_row(*cells: str) -> str:
    return f"{cells[0]:<12}" + "".join(f"{cell:>16}" for cell in cells[1:])


# Several communicators


def _several(ranks: Ranks, options: _Options, twin: str | None, reps: int) -> Result:
    session, count = ranks.session, options.communicators
    (case,) = (case for case in COLLECTIVES if case.name == options.operations[0])
    piece = options.sizes_bytes[-1] // count
    messages = _Messages(ranks, [(case, piece)] * count, options.in_a_row)
    whole = ranks.nccl()
    parts = [whole.commSplit(0, ranks.rank) for _ in range(count)]
    streams = [session.cp.cuda.Stream(non_blocking=True) for _ in range(count)]

    renew = partial(messages.renew, range(count), streams[0])

    def one() -> None:
        for number in range(count):
            messages.issue(number, whole, streams[0])

    def several() -> None:
        for number in range(count):
            messages.issue(number, parts[number], streams[number])

    for issue in (one, several):  # NCCL connects the ranks when it first has to
        renew()
        issue()
        session.cp.cuda.runtime.deviceSynchronize()
    measured = session.measure(
        [
            Pass("one", streams[:1], one, prepare=renew),
            Pass("several", streams, several, prepare=renew),
        ],
        reps,
        check=messages.check,
        corrupt=messages.last if twin == CORRUPT.name else None,
    )
    link = narrowest_link(ranks)
    moved = sum(messages.elements) * ELEMENT_BYTES * options.in_a_row
    figures: dict[str, float | None] = {}
    quantities = []
    for name, said in (("one", "one communicator"), ("several", f"{count} communicators")):
        rate = rate_bytes_per_s(moved, measured.passes[name].median_ns)
        bus = None if rate is None else rate * case.bus_factor(ranks.size)
        figures |= {f"{name}_algbw_bytes_per_s": rate, f"{name}_busbw_bytes_per_s": bus}
        limit = link.limit_bytes_per_s
        quantities.append(Quantity(f"{said}, bus", bus, "bytes/s", limit, f"one way, {link}"))
    return _conclude(
        ranks,
        measured,
        options,
        twin,
        figures=figures,
        quantities=quantities,
        expected=[
            ExpectedPeak("one", "comm", 1, 1),
            ExpectedPeak("several", "comm", 2, count),
        ],
        baselines={"several": "one"},
        title=f"{count} × {case.name} of {format_size(piece)}, {options.in_a_row} in a row",
    )


# What all have in common


def _conclude(
    ranks: Ranks,
    measured: Measured,
    options: _Options,
    twin: str | None,
    **more: Any,
) -> Result:
    settings = nccl_settings()
    return ranks.session.conclude(
        measured,
        twin=twin,
        options=asdict(options) | {"nccl_settings": settings},
        stages={},
        notes=nvls_note(settings),
        **more,
    )


def _run(arguments: argparse.Namespace) -> Result:
    """Run the benchmark."""
    twin = None if arguments.twin is None else BENCHMARK.twin(arguments.twin).name
    options = _resolve(arguments, twin)
    with open_ranks(BENCHMARK.name, oversubscribe=arguments.oversubscribe) as ranks:
        if options.with_compute:
            return _beside(ranks, options, twin, arguments.reps)
        mode = _table if options.communicators == 1 else _several
        return mode(ranks, options, twin, arguments.reps)


def _resolve(arguments: argparse.Namespace, twin: str | None) -> _Options:
    """Return what is run, of the plan, the options and the defaults.

    Raises
    ------
    UsageError
        Options exclude each other.
    """
    chosen = chosen_options(arguments, BENCHMARK.name, _DEFAULTS)
    chosen["with_compute"] = bool(chosen["with_compute"]) or twin == _SAME_STREAM
    chosen["communicators"] = chosen["communicators"] or 1
    few = chosen["with_compute"] or chosen["communicators"] > 1
    if chosen["with_compute"] and chosen["communicators"] > 1:
        raise UsageError("--with-compute works on one communicator: leave --communicators out.")
    if chosen["channels"] and not chosen["with_compute"]:
        raise UsageError("--channels goes with --with-compute.")
    refuse_inexact(chosen["kernel_steps"])
    chosen["channels"] = tuple(chosen["channels"] or _CHANNELS) if chosen["with_compute"] else ()
    chosen["sizes_bytes"] = tuple(chosen["sizes_bytes"] or _SIZES)
    every = [case.name for case in COLLECTIVES]
    chosen["operations"] = tuple(chosen["operations"] or (every[:1] if few else every))
    if few and len(chosen["operations"]) > 1:
        raise UsageError("--with-compute and --communicators take one of --operations.")
    chosen["in_a_row"] = chosen["in_a_row"] or (_IN_A_ROW_LARGE if few else _IN_A_ROW)
    return _Options(**chosen)


def _sizes(text: str) -> tuple[int, ...]:
    """Read sizes such as ``8,1K,64M``, for argparse: ascending, each once."""
    return tuple(sorted({size_argument(part) for part in text.split(",")}))


def _channels(text: str) -> tuple[int, ...]:
    """Read numbers of channels such as ``1,2,4``, for argparse."""
    found = tuple(sorted({positive_int(part) for part in text.split(",")}))
    if found[-1] > _MAX_CHANNELS:
        raise argparse.ArgumentTypeError(f"NCCL has {_MAX_CHANNELS} channels at most")
    return found


def _operations(text: str) -> tuple[str, ...]:
    """Read names of operations such as ``all-reduce,broadcast``, for argparse."""
    known = [case.name for case in COLLECTIVES]
    asked = text.split(",")
    for name in asked:
        if name not in known:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
    return tuple(name for name in known if name in asked)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--sizes",
        dest="sizes_bytes",
        type=_sizes,
        metavar="SIZE,…",
        help="bytes of the whole, such as 8,1K,64M (default: 8 to 128M, by 16)",
    )
    parser.add_argument(
        "--operations",
        type=_operations,
        metavar="NAME,…",
        help=f"of {', '.join(case.name for case in COLLECTIVES)} (default: all, beside compute "
        "the first)",
    )
    parser.add_argument(
        "--in-a-row",
        type=positive_int,
        metavar="N",
        help="operations a pass (default: 20; beside compute, and on several communicators, 4)",
    )
    parser.add_argument(
        "--with-compute",
        action="store_true",
        default=None,
        help="measure the largest size beside a compute kernel, with several numbers of channels",
    )
    parser.add_argument(
        "--channels",
        type=_channels,
        metavar="N,…",
        help="blocks of NCCL's kernels beside compute (default: 1,2,4,8,16)",
    )
    parser.add_argument(
        "--kernel-steps",
        type=positive_int,
        metavar="K",
        help="multiply-adds an element beside NCCL (default: as long as NCCL with most channels)",
    )
    parser.add_argument(
        "--communicators",
        type=positive_int,
        metavar="N",
        help="cut the largest size in N pieces, each on a communicator and stream of its own",
    )


BENCHMARK = Benchmark(
    name="nccl",
    summary="NCCL's operations: their times and rates, and beside a compute kernel",
    options="--sizes SIZE,…  --operations NAME,…  --in-a-row N  --with-compute  --channels N,…  "
    "--kernel-steps K  --communicators N",
    needs="2 GPUs, MPI, NCCL",
    twins=(
        Twin(
            _SAME_STREAM,
            "NCCL and the compute kernel on one stream",
            "both: serialized, with each number of channels",
        ),
        CORRUPT,
    ),
    add_arguments=_add_arguments,
    run=_run,
    ranks=True,
    own_gpus=True,
)
