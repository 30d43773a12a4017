"""``p2p-latency``: how long a message takes from one GPU to another, and back.

A chain of copies there and back, in the same two buffers and on one stream, so that each waits for
the one before; all are issued behind the start gate. A hop is the time of the chain over their
number; the first ten are not timed. ::

    0→1  [hop 0]       [hop 2]       [hop 4]
    1→0         [hop 1]       [hop 3]       …

Copies that are issued one by one from a slow loop measure the loop; several that do not depend on
each other measure a rate. Two contexts on one GPU (``--two-contexts``) measure how the GPU takes
turns between them.

Where CUDA spreads the streams over several hardware queues, a hop waits for the queues' turns: on
an H200 it took from 6.1 to 8.4 µs, another time in each process. So there is one.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType

from gpuscope.benchmarks._harness import (
    CORRUPT,
    MAX_PENDING,
    PATHS,
    PUSHED_COMMANDS,
    STAGED_COMMANDS,
    Benchmark,
    Expectation,
    Expected,
    ExpectedPeak,
    ExpectedPingPong,
    MessageFit,
    Pair,
    Quantity,
    Result,
    Twin,
    add_pair_arguments,
    chosen_options,
    fit_messages,
    open_pair,
    positive_int,
    size_argument,
    use_connections,
)
from gpuscope.benchmarks._harness.hops import (
    LEAD_HOPS,
    MATRIX_SIZE_BYTES,
    CopyHops,
    FlagHops,
    Matrix,
    pass_name,
    time_matrix,
)
from gpuscope.errors import UsageError
from gpuscope.units import NS_PER_S, NS_PER_US, format_bytes, format_ns, format_rate

SIZES_BYTES = tuple(8 << doubling for doubling in range(14))
"""8 B to 64 KiB."""
HOPS = 50
FLAG_HOPS = 1000
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
_SM = "sm"
_UNCHAINED_CONNECTIONS = 8
"""CUDA's own number."""
_DEFAULTS = MappingProxyType(
    {
        "size_bytes": None,
        "hops": None,
        "path": "p2p",
        "pair": "0-1",
        "push": False,
        "same_device": False,
        "two_contexts": False,
        "connections": None,
    }
)


@dataclass(frozen=True, slots=True)
class _Options:
    """What is run."""

    size_bytes: int | None
    hops: int | None
    path: str
    pair: str
    push: bool
    same_device: bool
    two_contexts: bool
    connections: int | None

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


def _run(arguments: argparse.Namespace) -> Result:
    """Run the benchmark."""
    twin = None if arguments.twin is None else BENCHMARK.twin(arguments.twin).name
    options = _Options(**chosen_options(arguments, BENCHMARK.name, _DEFAULTS))
    if options.connections is None:
        # In one queue, the copies of two streams would be chained after all.
        number = _UNCHAINED_CONNECTIONS if twin == "unchained" else 1
        options = replace(options, connections=number)
    _refuse(options, twin)
    same_device = options.same_device or options.two_contexts
    assert options.connections is not None  # just chosen
    use_connections(options.connections)
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
    direct = options.path in {"p2p", "driver"} and not options.two_contexts
    if twin == "unchained" and not direct:
        raise UsageError("the twin unchained is of peer copies: --path p2p or driver.")
    if options.hop_count % 2:
        raise UsageError("--hops must be even: there and back.")
    if options.push and (
        options.path not in {"p2p", "driver"} or options.two_contexts or twin == "unchained"
    ):
        raise UsageError(
            "--push says which GPU issues a copy: it is for --path p2p or driver, and not for the "
            "twin unchained."
        )
    pushed = PUSHED_COMMANDS if options.push else 1
    most = MAX_PENDING // (STAGED_COMMANDS if options.path == "staged" else pushed)
    if options.path != _SM and LEAD_HOPS + options.hop_count > most:
        raise UsageError(
            f"--hops may be {most - LEAD_HOPS} at most: more cannot wait to be started together."
        )


def _measure(pair: Pair, options: _Options, twin: str | None, reps: int) -> Result:
    """Measure, and put the result together."""
    work: CopyHops | FlagHops
    if options.path == _SM:
        work = FlagHops(pair, options.hop_count)
    else:
        work = CopyHops(
            pair,
            options.sizes,
            options.hop_count,
            chained=twin != "unchained",
            push=options.push,
            two_contexts=options.two_contexts,
        )
    measured = pair.session.measure(
        work.passes(),
        reps,
        check=work.check,
        corrupt=work.result_array if twin == CORRUPT.name else None,
    )
    hops = {name: _Hop.of(times) for name, times in work.hop_times_ns(reps).items()}
    sizes = {} if options.path == _SM else {pass_name(size): size for size in options.sizes}
    matrix = (
        time_matrix(pair, options.hop_count)
        if options.path in {"p2p", "driver"} and not pair.same
        else {}
    )
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


def _size_text(size_bytes: int) -> str:
    return f"{size_bytes} B" if size_bytes % 1024 else f"{size_bytes // 1024} KiB"


def _where(pair: Pair, options: _Options) -> str:
    if options.two_contexts:
        return f"two contexts of GPU {pair.devices[0]}"
    return f"{pair}, each pushed by its sender" if options.push else str(pair)


@dataclass(frozen=True, slots=True)
class _Hop:
    """The time of one hop: the median over the passes, and their standard deviation, in ns."""

    median_ns: float
    deviation_ns: float

    @classmethod
    def of(cls, times_ns: Sequence[float]) -> _Hop:
        """Take it from the mean times of a hop in each pass."""
        return cls(statistics.median(times_ns), statistics.pstdev(times_ns))


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
    lines = [f"copies of {MATRIX_SIZE_BYTES} B back to back, from the GPU of the line"]
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
    beta, limit = figures["beta_bytes_per_s"], pair.link.limit_bytes_per_s
    if beta is not None and limit is not None and beta > limit and direct:
        notes.append(
            f"β is more than the {format_rate(limit)} of {pair.link}: these messages are too short "
            "to tell it"
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
        "--push",
        action="store_true",
        default=None,
        help="each copy is issued by the GPU that sends, not all of them by the first",
    )
    parser.add_argument(
        "--connections",
        type=positive_int,
        metavar="N",
        help="CUDA_DEVICE_MAX_CONNECTIONS, 1 to 32 (default: 1, so that no hop waits for a queue's "
        "turn; of the twin unchained 8, as CUDA has it)",
    )
    parser.add_argument(
        "--two-contexts",
        action="store_true",
        default=None,
        help="between two contexts of one GPU: what that measures is no link",
    )


BENCHMARK = Benchmark(
    name="p2p-latency",
    summary="messages there and back between two GPUs: how long a hop takes",
    options="--path PATH  --pair A-B  --size SIZE  --hops N  --push  --connections N  "
    "--same-device  --two-contexts",
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
