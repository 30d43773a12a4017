"""``hyperq``: many small kernels on many streams, and how many of them run at once.

Kernels of a single block leave nearly all of the GPU free, so kernels of different streams could
all run at the same time. Whether they do is decided on the way there: the host reaches the GPU
through a number of connections (hardware queues), and streams that share one wait for each other
where none has to. ::

    32 connections       1 connection, issued stream by stream
    s0 [k0][k1]          s0 [k0][k1]
    s1 [k0][k1]          s1     [k0][k1]           k0 of s1 stands behind k1 of s0
    s2 [k0][k1]          s2         [k0][k1]

CUDA_DEVICE_MAX_CONNECTIONS sets the number, and is read when the first context is made.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict, dataclass
from types import MappingProxyType

from gpuscope.benchmarks._harness import (
    CORRUPT,
    MAX_PENDING,
    Benchmark,
    ExpectedPeak,
    Pass,
    Quantity,
    Result,
    Session,
    Twin,
    chosen_options,
    open_session,
    positive_float,
    positive_int,
    raise_if_wrong,
    use_connections,
)
from gpuscope.errors import UsageError
from gpuscope.units import NS_PER_MS, format_ns

RESIDENT_GRIDS = 128
"""Kernels that can run at once from compute capability 7.5 on (CUDA programming guide)."""
PEAK_SHARE = 0.9
"""Share of the possible peak that must be seen: kernels that start late may miss it."""
_DEFAULTS = MappingProxyType({"streams": 32, "kernels": 2, "connections": 32, "kernel_ms": 10.0})

_SOURCE = r"""
// Lasts time_ns by the GPU's clock; one block of one thread. The value is carried from kernel to
// kernel of a stream: one that ran out of order, twice or never leaves another number.
extern "C" __global__ void spin(unsigned* value, unsigned term, unsigned long long time_ns,
                                unsigned long long* span) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - start < time_ns);
    *value = *value * 1664525u + term;
    span[0] = start;
    span[1] = now;
}
"""


@dataclass(frozen=True, slots=True)
class _Options:
    """What is run."""

    streams: int
    kernels: int
    connections: int
    kernel_ms: float

    @property
    def kernel_ns(self) -> int:
        """Time that a kernel spins."""
        return round(self.kernel_ms * NS_PER_MS)


class _Workload:
    """A value and the times of each kernel for each stream, and the pass over all of them."""

    def __init__(self, session: Session, options: _Options, twin: str | None):
        import numpy as np

        cp = self.cp = session.cp
        self.options = options
        self.kernel = cp.RawKernel(_SOURCE, "spin")
        self.kernel.compile()
        if twin == "one-stream":
            self.streams = [cp.cuda.Stream(non_blocking=True)] * options.streams
        else:
            self.streams = [cp.cuda.Stream(non_blocking=True) for _ in range(options.streams)]
        self.values = cp.arange(options.streams, dtype=np.uint32)
        self.spans = cp.zeros((options.streams, options.kernels, 2), np.uint64)
        self.expected = np.arange(options.streams, dtype=np.uint32)
        self.passes_begun = 0

    def load(self) -> None:
        """Load the kernel, not behind a closed gate, and take back what it changed.

        Values are written on the null stream, which no other waits for: the host does.
        """
        synchronize = self.cp.cuda.runtime.deviceSynchronize
        self.launch(0, 0, 0)
        synchronize()
        self.values[0] = 0
        synchronize()

    def launch(self, index: int, number: int, time_ns: int) -> None:
        """Issue kernel `number` of stream `index`."""
        import numpy as np

        place = index * self.options.kernels + number
        arguments = (
            self.values.data.ptr + 4 * index,
            np.uint32(self._term(number)),
            np.uint64(time_ns),
            self.spans.data.ptr + 16 * place,
        )
        with self.streams[index]:
            self.kernel((1,), (1,), arguments)

    def _term(self, number: int) -> int:
        return 2 * (self.passes_begun * self.options.kernels + number) + 1

    def concurrent(self) -> None:
        """All kernels of a stream, then those of the next."""
        import numpy as np

        self.passes_begun += 1
        for index in range(len(self.streams)):
            for number in range(self.options.kernels):
                self.launch(index, number, self.options.kernel_ns)
        for number in range(self.options.kernels):
            self.expected *= np.uint32(1664525)
            self.expected += np.uint32(self._term(number))

    def check(self) -> None:
        """Compare the value of each stream with what its kernels, in order, must leave."""
        wrong = self.values.get() != self.expected
        raise_if_wrong(wrong.astype(int).tolist(), len(wrong), "stream")

    def peak(self) -> int:
        """Return how many kernels of the last pass ran at once, by their own clock."""
        spans = self.spans.get().reshape(-1, 2).tolist()
        return _peak([(start, end) for start, end in spans])


def _peak(spans: list[tuple[int, int]]) -> int:
    """Return the largest number of half-open spans that share a moment."""
    edges = sorted([(end, -1) for _, end in spans] + [(start, 1) for start, _ in spans])
    running = most = 0
    for _, change in edges:
        running += change
        most = max(most, running)
    return most


def _rounds(options: _Options, *, one_stream: bool) -> int:
    """Return how many kernels follow each other, by the rule of the connections.

    A connection holds the kernels of its streams in the order of issue. The first of a stream
    stands behind the last of the stream before, but need not wait for it to end: of the kernels
    of m streams, 1 + m·(k−1) follow each other.
    """
    if one_stream:
        return options.streams * options.kernels
    queued = math.ceil(options.streams / options.connections)
    return 1 + queued * (options.kernels - 1)


def _possible_peak(options: _Options, resident: int, *, one_stream: bool) -> int:
    """Return how many kernels can run at once by the same rule.

    In a connection that several streams share, the last kernel of one stream and the first of the
    next run together.
    """
    if one_stream:
        return 1
    if options.kernels == 1 or options.connections >= options.streams:
        return min(options.streams, resident)
    return min(2 * options.connections, options.streams, resident)


def _run(arguments: argparse.Namespace) -> Result:
    """Run the benchmark."""
    twin = None if arguments.twin is None else BENCHMARK.twin(arguments.twin).name
    chosen = chosen_options(arguments, BENCHMARK.name, _DEFAULTS)
    if twin == "one-connection":
        chosen["connections"] = 1
    options = _Options(**chosen)
    _refuse(options)
    use_connections(options.connections)
    with open_session(BENCHMARK.name) as session:
        return _measure(session, options, twin, arguments.reps)


def _refuse(options: _Options) -> None:
    """Raise UsageError for what cannot be run."""
    if options.streams * options.kernels > MAX_PENDING:
        raise UsageError(
            f"{options.streams} streams of {options.kernels} kernels are more than the "
            f"{MAX_PENDING} that can wait to be started together: use fewer --streams."
        )


def _measure(session: Session, options: _Options, twin: str | None, reps: int) -> Result:
    """Measure, and put the result together."""
    work = _Workload(session, options, twin)
    work.load()
    resident = min(
        RESIDENT_GRIDS,
        session.property("multiProcessorCount") * session.property("maxBlocksPerMultiProcessor"),
    )
    measured = session.measure(
        [Pass("concurrent", work.streams, work.concurrent)],
        reps,
        check=work.check,
        corrupt=work.values if twin == CORRUPT.name else None,
    )
    one_stream = twin == "one-stream"
    median_ns = measured.passes["concurrent"].median_ns
    serial_ns = options.streams * options.kernels * options.kernel_ns
    ideal_ns = options.kernels * options.kernel_ns
    rule_ns = _rounds(options, one_stream=one_stream) * options.kernel_ns
    possible = _possible_peak(options, resident, one_stream=one_stream)
    peak = work.peak()
    return session.conclude(
        measured,
        twin=twin,
        options=asdict(options),
        stages={"kernel_ns": options.kernel_ns},
        figures={
            "serial_ns": serial_ns,
            "ideal_ns": ideal_ns,
            "t_lb_ns": rule_ns,
            "speedup": serial_ns / median_ns,
            "speedup_max": serial_ns / rule_ns,
            "peak_kernels": peak,
            "peak_kernels_possible": possible,
        },
        quantities=[
            Quantity("kernels at once", peak, "kernels", possible, "streams and connections"),
            Quantity("all kernels", median_ns, "ns", rule_ns, "streams and connections"),
        ],
        expected=[_expected(possible)],
        title=f"{options.streams} streams of {options.kernels} kernels of "
        f"{format_ns(options.kernel_ns)}, {options.connections} connections",
        lines=[
            f"one after the other they take {format_ns(serial_ns)}, all streams at once "
            f"{format_ns(ideal_ns)}"
        ],
    )


def _expected(possible: int) -> ExpectedPeak:
    """Return the peak that the trace must show."""
    return ExpectedPeak("concurrent", "kernel", math.ceil(PEAK_SHARE * possible), possible)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--streams", type=positive_int, metavar="N", help="streams (default: 32)")
    parser.add_argument(
        "--kernels", type=positive_int, metavar="N", help="kernels a stream (default: 2)"
    )
    parser.add_argument(
        "--connections",
        type=positive_int,
        metavar="N",
        help="CUDA_DEVICE_MAX_CONNECTIONS, 1 to 32 (default: 32; CUDA's own is 8)",
    )
    parser.add_argument(
        "--kernel-ms",
        type=positive_float,
        metavar="MS",
        help="duration of a kernel, in ms (default: 10)",
    )


BENCHMARK = Benchmark(
    name="hyperq",
    summary="one-block kernels on many streams: how many run at once",
    options="--streams N  --kernels N  --connections N  --kernel-ms MS",
    needs="1 GPU",
    twins=(
        Twin("one-stream", "all kernels on one stream", "concurrent: 1 kernel at the peak"),
        Twin(
            "one-connection",
            "all streams share one hardware queue",
            "concurrent: 2 kernels at the peak",
        ),
        CORRUPT,
    ),
    add_arguments=_add_arguments,
    run=_run,
)
