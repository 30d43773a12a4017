"""``p2p-latency``: how long a message takes from one GPU to another, and back.

A chain of copies there and back, in the same two buffers and on one stream, so that each waits for
the one before; all are issued behind the start gate. A hop is the time of the chain over their
number; the first ten are not timed. ::

    0→1  [hop 0]       [hop 2]       [hop 4]
    1→0         [hop 1]       [hop 3]       …

Copies that are issued one by one from a slow loop measure the loop; several that do not depend on
each other measure a rate. Two contexts on one GPU (``--two-contexts``) measure how the GPU takes
turns between them.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from gpuscope.benchmarks._harness import (
    CORRUPT,
    MAX_PENDING,
    PATHS,
    STAGED_COMMANDS,
    Benchmark,
    DirectWay,
    Expectation,
    Expected,
    ExpectedPeak,
    ExpectedPingPong,
    MessageFit,
    Pair,
    Pass,
    Pattern,
    Quantity,
    Result,
    StagedWay,
    Twin,
    add_pair_arguments,
    chosen_options,
    enable_peer_access,
    event_for,
    fit_messages,
    format_size,
    open_pair,
    positive_int,
    raise_if_wrong,
    size_argument,
)
from gpuscope.errors import ProgramError, UsageError
from gpuscope.units import NS_PER_MS, NS_PER_S, NS_PER_US, format_bytes, format_ns, format_rate

SIZES_BYTES = tuple(8 << doubling for doubling in range(14))
"""8 B to 64 KiB."""
HOPS = 50
FLAG_HOPS = 1000
LEAD_HOPS = 10
"""Hops before those that are timed: a GPU that waited at the gate takes its time to begin."""
CONTEXTS_SIZE_BYTES = 8
"""Two contexts take a millisecond a hop, whatever its size."""
FLAT_BYTES = 256
FLAT_RATIO = 1.2
"""Up to 256 B no link is short of bandwidth: times that differ by more are not of one kind."""
SLOW_NS = 20 * NS_PER_US
"""Staging through the host takes about 17 µs on an H200; more than that is another trouble."""
NVLINK_NS = (1 * NS_PER_US, 5 * NS_PER_US)
"""What a hop over NVLink is commonly said to take."""
FAR_RATIO = 3.0
"""A pair of GPUs this many times slower than the machine's median has another kind of link."""
SMALL_BYTES, LARGE_BYTES = 64, 64 << 10
TENTH_RATIO = 0.1
"""The rule of thumb that 64 B take at most a tenth of the time of 64 KiB."""
_MATRIX_SIZE_BYTES = 8
_MATRIX_REPEATS = 20
_FLAG_LIMIT_NS = 10 * NS_PER_S
_SM = "sm"
_DEFAULTS = MappingProxyType(
    {
        "size_bytes": None,
        "hops": None,
        "path": "p2p",
        "pair": "0,1",
        "same_device": False,
        "two_contexts": False,
    }
)

_SOURCE = r"""
// One of two kernels, each on a GPU of its own, that hand a token to and fro: hop h writes
// token + h into the flag of the other side, which waits for it. The leader does the odd hops, and
// writes down when the first `lead` were done, and when all. The value is the whole message, so
// that no order among several writes is needed.
extern "C" __global__ void gs_flags(volatile unsigned* mine, volatile unsigned* theirs,
                                    unsigned token, unsigned hops, unsigned lead, unsigned leads,
                                    unsigned long long limit_ns, unsigned* late,
                                    unsigned long long* span) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    for (unsigned hop = leads ? 1 : 2; hop <= hops + 1; hop += 2) {
        unsigned looked = 0;
        while (hop > 1 && *mine != token + hop - 1) {
            if (++looked % 65536 == 0) {
                asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
                if (now - start > limit_ns) {
                    *late = 1;
                    return;
                }
            }
        }
        if (leads && (hop == lead + 1 || hop == hops + 1)) {
            asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
            span[hop == hops + 1] = now;
        }
        if (hop <= hops) *theirs = token + hop;
    }
}
"""


@dataclass(frozen=True, slots=True)
class _Options:
    """What is run."""

    size_bytes: int | None
    hops: int | None
    path: str
    pair: str
    same_device: bool
    two_contexts: bool

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the messages, smallest first."""
        if self.size_bytes is not None:
            return (self.size_bytes,)
        return (CONTEXTS_SIZE_BYTES,) if self.two_contexts else SIZES_BYTES

    @property
    def hop_count(self) -> int:
        """How many hops a pass has."""
        return self.hops or (FLAG_HOPS if self.path == _SM else HOPS)


class _End:
    """A buffer at one end of the way, and how it is filled, poisoned and compared."""

    def __init__(self, pair: Pair, side: int, size_bytes: int) -> None:
        import numpy as np

        self._pair, self._side = pair, side
        self.array = pair.empty(side, size_bytes // 4)
        with pair.on(side):
            self._wrong = pair.cp.zeros(1, np.uint64)
            self._pattern = Pattern(pair.cp)
        self.address: int = self.array.data.ptr

    def fill(self, size_bytes: int, first: int) -> None:
        """Write the pattern from position `first` on."""
        with self._pair.on(self._side):
            self._pattern.fill_device(self.array[: size_bytes // 4], first)

    def poison(self, size_bytes: int) -> None:
        """Write what no pattern equals."""
        import numpy as np

        with self._pair.on(self._side):
            self.array[: size_bytes // 4].fill(np.nan)

    def compare(self, size_bytes: int, first: int) -> None:
        """Count what is not the pattern from position `first` on, without waiting."""
        with self._pair.on(self._side):
            self._pattern.count(self.array[: size_bytes // 4], first, 0, 0, self._wrong)

    def wrong(self) -> int:
        """Return how many elements were wrong so far."""
        with self._pair.on(self._side):
            return int(self._wrong.get()[0])


class _SecondContext:
    """A CUDA context beside the one that everything else uses, on the same GPU."""

    def __init__(self, cp: Any, device: int) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        driver = cp.cuda.driver
        self._first = driver.ctxGetCurrent()
        self._second = driver.ctxCreate(device)
        driver.ctxSetCurrent(self._first)
        self._driver = driver

    def allocate(self, size_bytes: int) -> int:
        """Return the address of memory that belongs to the second context."""
        address = ctypes.c_uint64()
        self._driver.ctxSetCurrent(self._second)
        try:
            self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size_bytes))
        finally:
            self._driver.ctxSetCurrent(self._first)
        return address.value

    def copy(self, target: int, source: int, size_bytes: int, stream: int, *, back: bool) -> None:
        """Issue a copy to the second context, or `back` from it."""
        contexts = (self._first, self._second) if back else (self._second, self._first)
        self._call(
            "cuMemcpyPeerAsync",
            ctypes.c_uint64(target),
            ctypes.c_void_p(contexts[0]),
            ctypes.c_uint64(source),
            ctypes.c_void_p(contexts[1]),
            ctypes.c_size_t(size_bytes),
            ctypes.c_void_p(stream),
        )

    def _call(self, function: str, *arguments: Any) -> None:
        code = getattr(self._cuda, function)(*arguments)
        if code:
            raise ProgramError(f"CUDA failed: {function} returned {code}.")


class _ContextEnd(_End):
    """A buffer of the second context; what fills and compares it goes through the first."""

    def __init__(self, pair: Pair, context: _SecondContext, size_bytes: int) -> None:
        super().__init__(pair, 1, size_bytes)
        self._context = context
        self._scratch = self.address
        self.address = context.allocate(size_bytes)

    def _bring(self, size_bytes: int, *, back: bool) -> None:
        places = (self._scratch, self.address) if back else (self.address, self._scratch)
        self._pair.synchronize()
        self._context.copy(*places, size_bytes, 0, back=back)
        self._pair.synchronize()

    def fill(self, size_bytes: int, first: int) -> None:
        """Write the pattern from position `first` on."""
        super().fill(size_bytes, first)
        self._bring(size_bytes, back=False)

    def poison(self, size_bytes: int) -> None:
        """Write what no pattern equals."""
        super().poison(size_bytes)
        self._bring(size_bytes, back=False)

    def compare(self, size_bytes: int, first: int) -> None:
        """Count what is not the pattern from position `first` on."""
        self._bring(size_bytes, back=True)
        super().compare(size_bytes, first)


class _ContextWay:
    """Between the two contexts; `source` is the side that it begins at."""

    def __init__(self, context: _SecondContext, source: int, stream: Any) -> None:
        self._context, self._back = context, source == 1
        self.streams = (stream,)

    def copy(self, target: int, source: int, size_bytes: int) -> None:
        """Issue a copy from address `source` to address `target`."""
        self._context.copy(target, source, size_bytes, self.streams[0].ptr, back=self._back)


class _Copies:
    """Copies there and back. Each pass begins at the other side, with a pattern of its own.

    What is not yet there is poisoned: a first hop that is lost leaves poison, and so does, in every
    other pass, a direction in which nothing arrives. That no single hop in between was lost cannot
    be seen in two buffers that hold the same: the trace counts them. Hops that do not wait for each
    other need buffers of their own.
    """

    def __init__(self, pair: Pair, options: _Options, *, chained: bool) -> None:
        self.pair, self.options, self.chained = pair, options, chained
        size_bytes = options.sizes[-1]
        context = _SecondContext(pair.cp, pair.devices[1]) if options.two_contexts else None
        if context is not None:
            self.ends = [_End(pair, 0, size_bytes), _ContextEnd(pair, context, size_bytes)]
        else:
            self.ends = [
                _End(pair, side, size_bytes) for side in ((0, 1) if chained else (0, 1, 1, 0))
            ]
        stream = pair.stream(0)
        other = stream if chained else pair.stream(0)
        self.ways: list[Any]
        if context is not None:
            self.ways = [_ContextWay(context, side, stream) for side in (0, 1)]
        elif options.path == "staged":
            there, back = stream, pair.stream(1)
            self.ways = [
                StagedWay(pair, streams, size_bytes, 1)
                for streams in ((there, back), (back, there))
            ]
        else:
            self.ways = [DirectWay(pair, 0, stream), DirectWay(pair, 1, other)]
        self.origin = 0
        self.first = 0
        self.size_bytes = 0
        """Of the pass whose data is not yet compared."""
        self.compared = 0
        self.marks: dict[int, list[tuple[Any, Any]]] = {size: [] for size in options.sizes}
        """Of each size, of each pass, events around the hops that are timed."""

    @property
    def streams(self) -> list[Any]:
        """All streams that the ways use, each once."""
        return list({stream.ptr: stream for way in self.ways for stream in way.streams}.values())

    def passes(self) -> list[Pass]:
        """Return a pass a size."""
        return [
            Pass(
                _pass_name(size),
                self.streams,
                partial(self.hop_all, size),
                prepare=partial(self.begin, size),
            )
            for size in self.options.sizes
        ]

    def begin(self, size_bytes: int) -> None:
        """Compare what the last pass left, and write what the next begins with."""
        self.settle()
        self.first += size_bytes // 4
        # Of each size every other pass: how many have gone before tells which.
        self.origin = len(self.marks[size_bytes]) % 2 if self.chained else 0
        self.size_bytes = size_bytes
        for number, end in enumerate(self.ends):
            if number % 2 == self.origin:
                end.fill(size_bytes, self.first)
            else:
                end.poison(size_bytes)
        stream = self.ways[self.origin].streams[0]
        start, end_mark = (event_for(self.pair.cp, stream, timing=True) for _ in range(2))
        self.marks[size_bytes].append((start, end_mark))
        self.pair.synchronize()

    def hop_all(self, size_bytes: int) -> None:
        """Issue all hops of a pass, with marks around those that are timed."""
        addresses = [end.address for end in self.ends]
        stream = self.ways[self.origin].streams[0]
        start, end = self.marks[size_bytes][-1]
        for hop in range(LEAD_HOPS + self.options.hop_count):
            if hop == LEAD_HOPS:
                start.record(stream)
            side = (self.origin + hop) % 2
            if self.chained:
                source, target = addresses[side], addresses[1 - side]
            else:
                source, target = addresses[2 * side], addresses[2 * side + 1]
            self.ways[side].copy(target, source, size_bytes)
        if not self.chained:  # the time is that of both directions
            (other,) = self.ways[1].streams
            done = event_for(self.pair.cp, other)
            done.record(other)
            stream.wait_event(done)
        end.record(stream)

    def hop_times_ns(self, reps: int) -> dict[str, list[float]]:
        """Return of each pass the mean time of a hop, in each of the last repetitions, in ns.

        An even number of hops after the first mark the data is on the side that it was on.
        """
        elapsed = self.pair.cp.cuda.get_elapsed_time
        return {
            _pass_name(size): [
                NS_PER_MS * elapsed(*mark) / self.options.hop_count for mark in marks[-reps:]
            ]
            for size, marks in self.marks.items()
        }

    def settle(self) -> None:
        """Compare what the last pass left, without waiting."""
        if self.size_bytes:
            for end in self.ends:
                end.compare(self.size_bytes, self.first)
            self.compared += self.size_bytes // 4 * len(self.ends)
            self.size_bytes = 0

    def check(self) -> None:
        """Raise if any pass left wrong data."""
        self.settle()
        raise_if_wrong([end.wrong() for end in self.ends], self.compared, "buffer")

    @property
    def result_array(self) -> Any:
        """What the last pass leaves."""
        return self.ends[0].array


class _Flags:
    """Two kernels, one a GPU, that write a token into each other's memory in turn."""

    def __init__(self, pair: Pair, options: _Options) -> None:
        import numpy as np

        cp = pair.cp
        self.pair, self.options = pair, options
        self.flags, self.late, self.spans = [], [], []
        self.times_ns: list[float] = []
        self.streams = [pair.stream(side) for side in (0, 1)]
        self.kernel = cp.RawKernel(_SOURCE, "gs_flags")
        self.token = 0
        for side in (0, 1):
            with pair.on(side):
                self.flags.append(cp.zeros(1, np.uint32))
                self.late.append(cp.zeros(1, np.uint32))
                self.spans.append(cp.zeros(2, np.uint64))
        pair.synchronize()
        self.hop_all(0)  # loads the kernels: not behind a closed gate
        pair.synchronize()

    def note_span(self) -> None:
        """Write down what the last pass took by its own clock, before the next begins."""
        if self.token:
            start, end = self.spans[0].get().tolist()
            self.times_ns.append((end - start) / self.options.hop_count)

    def hop_times_ns(self, reps: int) -> dict[str, list[float]]:
        """Return the mean time of a hop in each of the last repetitions, in ns."""
        self.note_span()
        return {"flags": self.times_ns[-reps:]}

    def hop_all(self, hops: int) -> None:
        """Issue both kernels, for so many hops and those before the first that is timed."""
        import numpy as np

        for side in (0, 1):
            arguments = (
                self.flags[side].data.ptr,
                self.flags[1 - side].data.ptr,
                np.uint32(self.token),
                np.uint32(hops),
                np.uint32(LEAD_HOPS),
                np.uint32(side == 0),
                np.uint64(_FLAG_LIMIT_NS),
                self.late[side].data.ptr,
                self.spans[side].data.ptr,
            )
            with self.pair.on(side), self.streams[side]:
                self.kernel((1,), (1,), arguments)
        self.token += hops

    def passes(self) -> list[Pass]:
        """Return the only pass."""
        hops = LEAD_HOPS + self.options.hop_count
        return [Pass("flags", self.streams, partial(self.hop_all, hops), prepare=self.note_span)]

    def check(self) -> None:
        """Raise if a kernel gave up waiting, or the last hops did not leave their tokens."""
        self.pair.synchronize()
        if any(int(late.get()[0]) for late in self.late):
            raise ProgramError(
                "a GPU waited 10 s for the other's flag: are both free, and at work at once?"
            )
        # The last hop comes back to side 0, the one before it went to side 1.
        wanted = (self.token, self.token - 1)
        found = [int(flag.get()[0]) for flag in self.flags]
        wrong = [int(one != other) for one, other in zip(found, wanted, strict=True)]
        raise_if_wrong(wrong, len(wrong), "flag")

    @property
    def result_array(self) -> Any:
        """What the last pass leaves."""
        return self.flags[0]


def _run(arguments: argparse.Namespace) -> Result:
    """Run the benchmark."""
    twin = None if arguments.twin is None else BENCHMARK.twin(arguments.twin).name
    options = _Options(**chosen_options(arguments, BENCHMARK.name, _DEFAULTS))
    _refuse(options, twin)
    same_device = options.same_device or options.two_contexts
    with open_pair(
        BENCHMARK.name, path=options.path, pair=options.pair, same_device=same_device
    ) as pair:
        return _measure(pair, options, twin, arguments.reps)


def _refuse(options: _Options, twin: str | None) -> None:
    """Raise UsageError for what cannot be run."""
    one_gpu = options.same_device or options.two_contexts
    if options.path == _SM and (one_gpu or options.size_bytes is not None):
        raise UsageError(
            "--path sm hands a flag of 4 bytes from GPU to GPU: it takes neither --size, nor "
            "--same-device, nor --two-contexts."
        )
    if options.two_contexts and (options.path != "p2p" or options.same_device):
        raise UsageError("--two-contexts is a path of its own: leave --path and --same-device out.")
    if twin == "unchained" and (options.path not in {"p2p", "driver"} or options.two_contexts):
        raise UsageError("the twin unchained is of peer copies: --path p2p or driver.")
    if options.hop_count % 2:
        raise UsageError("--hops must be even: there and back.")
    most = MAX_PENDING // (STAGED_COMMANDS if options.path == "staged" else 1)
    if options.path != _SM and LEAD_HOPS + options.hop_count > most:
        raise UsageError(
            f"--hops may be {most - LEAD_HOPS} at most: more cannot wait to be started together."
        )


def _measure(pair: Pair, options: _Options, twin: str | None, reps: int) -> Result:
    """Measure, and put the result together."""
    work = (
        _Flags(pair, options)
        if options.path == _SM
        else _Copies(pair, options, chained=twin != "unchained")
    )
    measured = pair.session.measure(
        work.passes(),
        reps,
        check=work.check,
        corrupt=work.result_array if twin == CORRUPT.name else None,
    )
    hops = {name: _Hop.of(times) for name, times in work.hop_times_ns(reps).items()}
    sizes = {} if options.path == _SM else {_pass_name(size): size for size in options.sizes}
    matrix = _matrix(pair, options) if options.path in {"p2p", "driver"} and not pair.same else {}
    medians = {size: hops[name].median_ns for name, size in sizes.items()}
    fit = fit_messages(medians)
    figures = _figures(hops, medians, fit, matrix)
    return pair.session.conclude(
        measured,
        twin=twin,
        options=asdict(options),
        stages={},
        figures=figures,
        quantities=_quantities(pair, hops, sizes),
        expected=_expected(list(hops), pair, options, twin),
        title=f"{options.hop_count} hops there and back, {_where(pair, options)}",
        lines=_lines(figures, hops, medians, fit, matrix),
        notes=_notes(pair, options, figures, hops, matrix),
    )


def _pass_name(size_bytes: int) -> str:
    return f"hops-{format_size(size_bytes)}"


def _size_text(size_bytes: int) -> str:
    return f"{size_bytes} B" if size_bytes % 1024 else f"{size_bytes // 1024} KiB"


def _where(pair: Pair, options: _Options) -> str:
    return f"two contexts of GPU {pair.devices[0]}" if options.two_contexts else str(pair)


@dataclass(frozen=True, slots=True)
class _Hop:
    """The time of one hop: the median over the passes, and their standard deviation, in ns."""

    median_ns: float
    deviation_ns: float

    @classmethod
    def of(cls, times_ns: Sequence[float]) -> _Hop:
        """Take it from the mean times of a hop in each pass."""
        return cls(statistics.median(times_ns), statistics.pstdev(times_ns))


Matrix = Mapping[tuple[str, int, int], float]
"""Time of a copy in ns, by who issues it (push: the sender), from, and to."""


def _matrix(pair: Pair, options: _Options) -> Matrix:
    """Time copies of 8 B from every GPU to every other, one after the other on one stream.

    They are issued by the sending GPU (push), and by the receiving one (pull).
    """
    cp, session = pair.cp, pair.session
    gpus = range(cp.cuda.runtime.getDeviceCount())
    ways = set(itertools.permutations(gpus, 2))
    if options.path == "p2p":
        ways = _reach(cp, pair.devices, gpus)
    buffers, streams = {}, {}
    for gpu in gpus:
        with cp.cuda.Device(gpu):
            buffers[gpu] = cp.zeros(_MATRIX_SIZE_BYTES // 4, cp.float32).data.ptr
            streams[gpu] = cp.cuda.Stream(non_blocking=True)
            cp.cuda.runtime.deviceSynchronize()
    found = {}
    for source, target in sorted(ways):
        for method, stream in (("push", streams[source]), ("pull", streams[target])):

            def issue(source: int = source, target: int = target, stream: Any = stream) -> None:
                for _ in range(options.hop_count):
                    cp.cuda.runtime.memcpyPeerAsync(
                        buffers[target], target, buffers[source], source, _MATRIX_SIZE_BYTES,
                        stream.ptr,
                    )  # fmt: skip

            times = [session.time_batch([stream], issue) for _ in range(1 + _MATRIX_REPEATS)]
            found[method, source, target] = statistics.median(times[1:]) / options.hop_count
    return found


def _reach(cp: Any, enabled: Sequence[int], gpus: Sequence[int]) -> set[tuple[int, int]]:
    """Let all GPUs reach each other where they can, but those that do; return which can."""
    reached = set()
    for source, target in itertools.permutations(gpus, 2):
        mutual = [cp.cuda.runtime.deviceCanAccessPeer(*way) for way in
                  ((source, target), (target, source))]  # fmt: skip
        if all(mutual):
            reached.add((source, target))
            if not {source, target} <= set(enabled):
                enable_peer_access(cp, source, target)
    return reached


def _figures(
    hops: Mapping[str, _Hop],
    medians: Mapping[int, float],
    fit: MessageFit | None,
    matrix: Matrix,
) -> dict[str, float | None]:
    """Return all figures of the hops; `medians` are those of copies by their size."""
    found: dict[str, float | None] = {}
    for name, hop in hops.items():
        key = name.replace("-", "_")
        found[f"{key}_ns"] = hop.median_ns
        found[f"{key}_deviation_ns"] = hop.deviation_ns
    flat = [time for size, time in medians.items() if size <= FLAT_BYTES]
    ends = medians.get(SMALL_BYTES), medians.get(LARGE_BYTES)
    found |= {
        "alpha_ns": None if fit is None else fit.alpha_ns,
        "beta_bytes_per_s": None if fit is None else fit.beta_bytes_per_s,
        "half_bytes": None if fit is None else fit.half_bytes,
        "fit_worst_ratio": None if fit is None else fit.worst_ratio,
        "flatness_ratio": max(flat) / min(flat) if len(flat) > 1 else None,
        "growth_ratio": medians[max(medians)] / medians[min(medians)] if len(medians) > 1 else None,
        "small_to_large_ratio": ends[0] / ends[1] if ends[0] and ends[1] else None,
    }
    for (method, source, target), time in matrix.items():
        found[f"{method}_{source}_{target}_ns"] = time
    return found


def _quantities(pair: Pair, hops: Mapping[str, _Hop], sizes: Mapping[str, int]) -> list[Quantity]:
    """Return the time of each hop; the link's rate limits it, if only by a little."""
    rate = pair.link.limit_bytes_per_s
    found = []
    for name, hop in hops.items():
        size = sizes.get(name)
        title = "hop of a flag" if size is None else f"hop of {_size_text(size)}"
        least_ns = None if size is None or rate is None else size * NS_PER_S / rate
        if least_ns is None or least_ns < 1:
            found.append(Quantity(title, hop.median_ns, "ns", None, "no limit known"))
        else:
            found.append(Quantity(title, hop.median_ns, "ns", least_ns, f"rate of {pair.link}"))
    return found


def _expected(
    passes: Sequence[str], pair: Pair, options: _Options, twin: str | None
) -> Sequence[Expectation]:
    """Return what the trace must show of each pass."""
    if options.path == _SM:
        return [ExpectedPeak(name, "kernel", 1, 1) for name in passes]
    if options.path == "staged":
        return [Expected(name, "d2h", "h2d", "serialized", 1.0) for name in passes]
    # What the driver stages is recorded as two copies: out of one GPU, and into the other.
    hops = LEAD_HOPS + options.hop_count
    copies = 2 * hops if options.path == "driver" and not pair.same else hops
    return [ExpectedPingPong(name, pair.copy_class, copies, twin != "unchained") for name in passes]


def _lines(
    figures: Mapping[str, float | None],
    hops: Mapping[str, _Hop],
    medians: Mapping[int, float],
    fit: MessageFit | None,
    matrix: Matrix,
) -> list[str]:
    """Return what stands below the table."""
    deviations = [hop.deviation_ns for hop in hops.values()]
    lines = [
        f"standard deviation of a hop: {format_ns(min(deviations))} to {format_ns(max(deviations))}"
    ]
    if fit is not None:
        half = "–" if fit.half_bytes is None else format_bytes(fit.half_bytes)
        lines.append(
            f"T = α + n/β: α {format_ns(fit.alpha_ns)}, β {format_rate(fit.beta_bytes_per_s)}, "
            f"half of β from {half} on; off by {fit.worst_ratio:.0%} at worst"
        )
    if (flatness := figures["flatness_ratio"]) is not None:
        lines.append(f"8 to {FLAT_BYTES} B: largest over smallest {flatness:.2f}")
    if (growth := figures["growth_ratio"]) is not None:
        lines.append(
            f"{_size_text(max(medians))} take {growth:.2f} times as long as "
            f"{_size_text(min(medians))}"
        )
    if (ratio := figures["small_to_large_ratio"]) is not None:
        holds = "holds" if ratio <= TENTH_RATIO else "does not hold: a hop is latency, not transfer"
        lines.append(f"64 B take {ratio:.2f} of the time of 64 KiB; the rule of a tenth {holds}")
    return [*lines, *_matrix_lines(matrix)]


def _matrix_lines(matrix: Matrix) -> list[str]:
    """Return the matrices of push and pull, a line a sending GPU."""
    if not matrix:
        return []
    gpus = sorted({gpu for _, source, target in matrix for gpu in (source, target)})
    lines = [f"copies of {_MATRIX_SIZE_BYTES} B back to back, from the GPU of the line"]
    for method in ("push", "pull"):
        titles = "".join(f"{f'to {gpu}':>10}" for gpu in gpus)
        lines.append(f"  {method:<8}{titles}")
        for source in gpus:
            times = (matrix.get((method, source, target)) for target in gpus)
            cells = "".join(f"{'–' if time is None else format_ns(time):>10}" for time in times)
            lines.append(f"  {f'from {source}':<8}{cells}")
    return lines


def _notes(
    pair: Pair,
    options: _Options,
    figures: Mapping[str, float | None],
    hops: Mapping[str, _Hop],
    matrix: Matrix,
) -> list[str]:
    """Return what is out of the ordinary."""
    slowest = max(hop.median_ns for hop in hops.values())
    least = min(hop.median_ns for hop in hops.values())
    notes = []
    if options.two_contexts:
        notes.append(
            "two contexts take turns on the GPU: this is the time of a turn, not of any link"
        )
    elif pair.same:
        notes.append("both buffers are on one GPU: no link is measured")
    elif slowest > SLOW_NS:
        notes.append(
            f"a hop takes up to {format_ns(slowest)}, over {format_ns(SLOW_NS)}: something other "
            "than the link holds it up"
        )
    low, high = NVLINK_NS
    direct = options.path == "p2p" and not pair.same
    if direct and pair.link.kind == "NVLink" and not low <= least <= high:
        notes.append(
            f"the shortest hop takes {format_ns(least)}; over NVLink {format_ns(low)} to "
            f"{format_ns(high)} are commonly expected"
        )
    flatness = figures["flatness_ratio"]
    if flatness is not None and flatness > FLAT_RATIO:
        notes.append(
            f"up to {FLAT_BYTES} B the times differ by a factor of {flatness:.2f}, over "
            f"{FLAT_RATIO}: they are not of latency alone"
        )
    for method in ("push", "pull"):
        times = {key: time for key, time in matrix.items() if key[0] == method}
        middle = statistics.median(times.values()) if times else 0.0
        notes += [
            f"GPU {source} to {target} ({method}) takes {format_ns(time)}, over {FAR_RATIO:.0f} "
            f"times the median of all pairs, {format_ns(middle)}"
            for (_, source, target), time in times.items()
            if time > FAR_RATIO * middle
        ]
    return notes


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--size",
        dest="size_bytes",
        type=size_argument,
        metavar="SIZE",
        help="bytes of a message (default: all from 8 to 64K, doubling)",
    )
    parser.add_argument(
        "--hops",
        type=positive_int,
        metavar="N",
        help=f"hops in a chain (default: {HOPS}, of --path sm {FLAG_HOPS})",
    )
    add_pair_arguments(parser, (*PATHS, _SM))
    parser.add_argument(
        "--two-contexts",
        action="store_true",
        default=None,
        help="between two contexts of one GPU: what that measures is no link",
    )


BENCHMARK = Benchmark(
    name="p2p-latency",
    summary="messages there and back between two GPUs: how long a hop takes",
    options="--path PATH  --pair A,B  --size SIZE  --hops N  --same-device  --two-contexts",
    needs="2 GPUs",
    twins=(
        Twin(
            "unchained",
            "the hops of either direction on a stream of their own, with no order between",
            "the copies are called not a ping-pong",
        ),
        CORRUPT,
    ),
    add_arguments=_add_arguments,
    run=_run,
    default_reps=200,
)
