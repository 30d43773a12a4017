"""What the Jacobi benchmarks of several ranks share: options, sizes, passes, figures and checks.

A variant says how a rank does the steps of its block; :func:`measure` does the rest. It times the
steps, and apart from them what they consist of: the kernels without the exchange (``compute``), and
the exchange without the kernels (``exchange``).
"""

from __future__ import annotations

import argparse
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from gpuscope.benchmarks._harness import device_mpi
from gpuscope.benchmarks._harness.data import WRONG_DATA
from gpuscope.benchmarks._harness.decomposition import LEAST_SIDE, Block, choose_split, cut
from gpuscope.benchmarks._harness.gpu import Pass, pinned_array, say
from gpuscope.benchmarks._harness.halo import DEVICE, STAGED, NormSum, Stages, copy_to_host
from gpuscope.benchmarks._harness.memory import CACHE_FACTOR, copy_rate_bytes_per_s
from gpuscope.benchmarks._harness.ranks import Ranks
from gpuscope.benchmarks._harness.registry import CORRUPT
from gpuscope.benchmarks._harness.result import (
    NOT_JUDGED,
    NOT_OBSERVABLE,
    Expected,
    ExpectedHidden,
    Quantity,
    Result,
    chosen_options,
)
from gpuscope.benchmarks._harness.sizing import (
    DEVICE_MEMORY_RATIO,
    MIB,
    positive_float,
    positive_int,
)
from gpuscope.benchmarks._harness.stats import Statistics
from gpuscope.benchmarks._harness.stencil import (
    BYTES_AN_UPDATE,
    PROOF_SIZE,
    PROOF_STEPS,
    Reference,
    Skew,
    StencilKernels,
    Tile,
    check_tile,
    prove_tile,
    whole_grid,
)
from gpuscope.benchmarks._harness.symmetric import Heap
from gpuscope.errors import ProgramError, UsageError
from gpuscope.units import NS_PER_S, NS_PER_US, counted, format_bytes, format_ns, format_ratio

HIGH_PRIORITY = -5
"""The highest of a GPU's six; CUDA takes the highest there is where there is none so high."""
COVER_FACTOR = 1.25
"""By default the interior lasts this many times what it is to hide."""
LEAST_HIDDEN, MOST_HIDDEN = 0.8, 0.1
"""Shares of the transfers that must be hidden at least, and in a serialized step at most."""
_TRACING_NS = 200 * NS_PER_US
"""What a profiler adds to a step of a host that waits: on H200s Nsight Systems added 10 to 114 µs
to issuing the kernels, and 50 to 87 to an exchange. What hides without it is to hide in the trace.
"""
COVERED = 1.1
"""Where it lasts less than this many times as long, the times are too close to judge by."""
_HALO_NS = 20 * NS_PER_US
"""By default the copy of one side of the halo lasts this long: long enough to be seen beside what
starting a copy costs."""
_PROBE_BYTES = 8 * MIB
_PROBE_ROWS = 64
_PROBE_SIDE = 2048
_MAX_GROWTHS = 8
_ROW_STEP = 8
_HALO_ROWS = 2
"""Of a slab: one from each neighbour."""
OPTIONS = (
    "--rows N  --columns N  --weak  --steps N  --norm-every N  --ends ENDS  --tolerance T"
    "  --skew-us N"
)
MPI_OPTIONS = f"{OPTIONS}  --path PATH"
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_STEPS = 20
_NORM_EVERY = 5
_MAX_STEPS = 100_000
"""With --tolerance, a norm that has not come down by then will not."""
_REPEATS = 10
_PROOFS = ((PROOF_SIZE, PROOF_SIZE), (PROOF_SIZE - 3, PROOF_SIZE - 5))
"""Rows and columns of the grids that are compared with NumPy's; the second divides by nothing.
They are larger where so many ranks would find too little in them."""
_MAX_SKEW_US = 1_000_000
"""A second: far longer than any step, and a pass still ends."""
_DEFAULTS = MappingProxyType(
    {
        "rows": None,
        "columns": None,
        "steps": _STEPS,
        "norm_every": _NORM_EVERY,
        "ends": "periodic",
        "weak": False,
        "tolerance": None,
    }
)


_Make = Callable[[Block, int], "Variant"]
"""From a block, and after how many steps each the norm is looked at."""


@dataclass(frozen=True, slots=True)
class Options:
    """What is run: a value of None is found by calibration.

    With ``weak``, ``rows`` and ``columns`` are those of each rank's block, else of the whole grid.
    """

    rows: int | None
    columns: int | None
    steps: int
    norm_every: int
    ends: str
    weak: bool
    tolerance: float | None

    def grid(self, split: tuple[int, int]) -> tuple[int, int]:
        """Return rows and columns of the whole grid, once they are known."""
        assert self.rows is not None
        assert self.columns is not None
        down, across = split if self.weak else (1, 1)
        return self.rows * down, self.columns * across


class Variant(ABC):
    """How one rank does the steps of its block.

    ``streams`` are all that it issues to. After a step, ``tile.now`` holds the result, its halo the
    neighbours' edges.
    """

    streams: Sequence[Any]
    waits = True
    """The host waits while steps are done: they cannot be issued ahead of a closed gate."""
    allocate: Callable[[tuple[int, int]], Any] | None = None
    """Makes an array of a shape for the block, where that is not CuPy's work."""
    looking = True
    """The host comes to know norms on the way. Behind a closed gate it cannot."""
    norm_lag = 2
    """A step's norm is known to all ranks so many steps later, if :meth:`sum_norm` sums it."""

    def __init__(
        self,
        ranks: Ranks,
        kernels: StencilKernels,
        block: Block,
        norm_every: int,
        *,
        skew_us: int,
    ) -> None:
        self.cp = ranks.session.cp
        self.ranks = ranks
        self.block = block
        self.tile = Tile(self.cp, kernels, block, self.allocate)
        self.norm_every = norm_every
        self.skew = Skew(kernels, skew_us * NS_PER_US, ranks.rank)
        self.norm_sum = NormSum(ranks.comm)
        self.totals: dict[int, float] = {}
        """The norms of all ranks, by step, that the last run of steps came to know."""

    @abstractmethod
    def compute(self) -> None:
        """Issue the kernels of one step, and exchange nothing: the result is thrown away."""

    @abstractmethod
    def exchange(self) -> None:
        """Exchange the halo of the grid as it is."""

    @abstractmethod
    def step(self, index: int) -> None:
        """Do a step; `index` counts from the first of this run of steps."""

    @abstractmethod
    def finish(self) -> None:
        """Issue the copy of the last step's norm to the host."""

    @abstractmethod
    def stages(self) -> Stages:
        """Return by name a stream, and what issues one operation of a step to it, to time alone.

        There is an ``inner_ns`` and an ``edge_ns``.
        """

    def is_due(self, index: int) -> bool:
        """Say whether the norm of a step is one that is looked at."""
        return index >= 0 and index % self.norm_every == 0

    def sum_norm(self, index: int) -> None:
        """Take up the sum that was started a step ago, and start that of the step before.

        The norm of that step must have come to the host.
        """
        total = self.norm_sum.finish()
        if total is not None:
            self.totals[index - self.norm_lag] = total
        if self.is_due(index - 1):
            self.norm_sum.start(float(self.tile.norm.host[0]))

    def run(self, steps: int) -> None:
        """Do that many steps."""
        self.totals.clear()
        for index in range(steps):
            self.step(index)
        self.finish()
        self.norm_sum.finish()

    def solve(self, tolerance: float) -> int:
        """Do steps until the norm is within the tolerance; return how many it took.

        All ranks stop at the same step: the sum of the norms is the same on each. It comes to be
        known while later steps are done.
        """
        self.totals.clear()
        for index in range(_MAX_STEPS):
            self.step(index)
            norm = self.totals.get(index - self.norm_lag)
            if norm is not None and math.sqrt(norm) <= tolerance:
                self.finish()
                self.norm_sum.finish()
                return index + 1
        raise ProgramError(
            f"the norm has not come to {tolerance:g} in {_MAX_STEPS} steps: use a larger "
            "--tolerance."
        )

    def total_norm(self) -> float:
        """Return the norm of the last step, of all ranks; every rank must ask."""
        self.cp.cuda.runtime.deviceSynchronize()
        return float(sum(self.ranks.gather(float(self.tile.norm.host[0]))))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that these benchmarks have in common."""
    parser.add_argument("--rows", type=positive_int, metavar="N", help="rows of the grid")
    parser.add_argument("--columns", type=positive_int, metavar="N", help="columns of the grid")
    parser.add_argument(
        "--weak",
        action="store_true",
        default=None,
        help="--rows and --columns are those of each rank: more ranks, a larger grid",
    )
    parser.add_argument(
        "--steps", type=positive_int, metavar="N", help=f"steps a pass (default: {_STEPS})"
    )
    parser.add_argument(
        "--norm-every",
        type=positive_int,
        metavar="N",
        help=f"look at the norm every N steps (default: {_NORM_EVERY})",
    )
    parser.add_argument(
        "--ends",
        choices=("periodic", "open"),
        help="top and bottom of the grid are neighbours, or fixed (default: periodic)",
    )
    parser.add_argument(
        "--tolerance",
        type=positive_float,
        metavar="T",
        help="first do steps until the norm of the change is T",
    )
    parser.add_argument(
        "--skew-us",
        type=_skew_argument,
        metavar="N",
        help="hold streams back by up to N µs, on each rank differently: a stress test",
    )


def _skew_argument(text: str) -> int:
    """Read how long streams are held back at most, in µs, for argparse."""
    if not text.isdecimal() or int(text) > _MAX_SKEW_US:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to {_MAX_SKEW_US}")
    return int(text)


def add_mpi_arguments(parser: argparse.ArgumentParser) -> None:
    """Add these, and the path that messages of MPI take."""
    add_arguments(parser)
    parser.add_argument(
        "--path",
        choices=(STAGED, DEVICE),
        default=STAGED,
        help="through host memory (default), or by MPI from GPU to GPU",
    )


def choose_path(ranks: Ranks, arguments: argparse.Namespace) -> str:
    """Return the path of the messages, after trying whether the MPI can take it.

    Raises
    ------
    MissingError
        It cannot send what is on the GPU.
    """
    path: str = arguments.path
    if path == DEVICE and arguments.plan is None:  # with a plan it was tried before
        device_mpi.require(ranks, device_mpi.SENDRECV, STAGED)
    return path


def choose_options(arguments: argparse.Namespace, benchmark: str) -> Options:
    """Return what was asked for, or planned.

    Raises
    ------
    UsageError
        The plan is none.
    """
    return Options(**chosen_options(arguments, benchmark, _DEFAULTS))


def measure(
    ranks: Ranks,
    arguments: argparse.Namespace,
    *,
    benchmark: str,
    pass_name: str,
    make: _Make,
    cut_columns: bool,
    overlapping: bool,
    pairs: Sequence[tuple[str, str]] = (),
    observable: bool = True,
    lines: Sequence[str] = (),
    further: Mapping[str, Any] = _NOTHING,
    heap: Heap | None = None,
) -> Result:
    """Prove a variant, find its sizes, measure it, and put the result together.

    Parameters
    ----------
    ranks
        This rank, among all.
    arguments
        The parsed options.
    benchmark, pass_name
        Names.
    make
        Makes the variant for a block.
    cut_columns
        Cut the grid into blocks, not slabs of rows.
    overlapping
        The trace must show that the exchange ran beside kernels; if not, that it did not.
    pairs
        The classes whose verdict shows that; without any, it is the share of the transfers that
        kernels hide.
    observable
        The exchange leaves rows in a trace.
    lines
        What the table says besides.
    further
        What was chosen besides the options that all have.
    heap
        Where the arrays of a slab lie, if not where CuPy makes them.
    """
    session = ranks.session
    options = choose_options(arguments, benchmark)
    notes: list[str] = []
    say("comparing with NumPy")
    _prove(ranks, make, cut_columns)
    options, split = _choose_sizes(ranks, options, make, cut_columns, notes, heap)
    grid = options.grid(split)
    block = cut(grid, split, ranks.rank, periodic=options.ends == "periodic")
    variant = start_variant(make, block, options.norm_every)
    tile = variant.tile
    reference = Reference(session.cp, tile.kernels, grid, periodic=block.periodic)

    def check() -> None:
        norm = variant.total_norm()  # of all ranks, before one of them can fail
        check_tile(reference, tile, norm)

    solved = None
    if options.tolerance is not None:
        solved = _solve(variant, options.tolerance, reference)
        session.check(check)
    measured = session.measure(
        [
            Pass(name, variant.streams, issue, waits=variant.waits)
            for name, issue in (
                ("compute", _times(options.steps, variant.compute)),
                ("exchange", _times(options.steps, variant.exchange)),
                (pass_name, lambda: variant.run(options.steps)),
            )
        ],
        arguments.reps,
        check=check,
        corrupt=(lambda: tile.now[block.own.slices][-1])
        if arguments.twin == CORRUPT.name
        else None,
    )
    stages = _stage_times(variant)
    total_ns, compute_ns, exchange_ns = (
        measured.passes[name].median_ns / options.steps
        for name in (pass_name, "compute", "exchange")
    )
    points = whole_grid(grid, periodic=block.periodic).points
    times_ns = total_ns, compute_ns, exchange_ns
    figures = step_figures(points, *times_ns, stages, overlapping=overlapping)
    figures["solve_steps"] = solved
    interior_ns = _interior_ns(stages, compute_ns)
    covered = COVERED * _to_cover_ns(variant, stages, exchange_ns) <= interior_ns
    shared = len(set(ranks.gather(session.pci_bus_id))) < ranks.size
    if shared:
        notes.append("ranks share a GPU: nothing is judged")
    elif overlapping and not covered:
        notes.append("the exchange lasts longer than the interior: whether it hides is not judged")
    rate = copy_rate_bytes_per_s(session)
    memory = "copy by a kernel over 4 × L2 on each GPU"
    if BYTES_AN_UPDATE * block.own.points <= CACHE_FACTOR * session.property("l2CacheSize"):
        rate, memory = None, "none: the grids may stay in the L2 cache"
    limit = None if rate is None else ranks.size * rate / BYTES_AN_UPDATE
    bound = (
        "max(inner, edge + exchange), each alone" if overlapping else "compute + exchange, alone"
    )
    return session.conclude(
        measured,
        twin=arguments.twin,
        options={**asdict(options), **further},
        stages=stages,
        figures=figures,
        quantities=[
            Quantity("step", total_ns, "ns", figures["t_lb_ns"], bound),
            Quantity("updates", figures["updates_per_s"], "updates/s", limit, memory),
        ],
        expected=_expected(
            pass_name,
            pairs,
            overlapping,
            judged=not shared and (covered or not overlapping),
            observable=observable,
        ),
        memory_bound=("compute", pass_name),
        title=f"{grid[0]} × {grid[1]} points, {split[0]} × {split[1]} blocks, "
        f"{counted(options.steps, 'step')}",
        lines=[
            f"a step takes {format_ns(total_ns)}: its kernels alone {format_ns(compute_ns)}, its "
            f"exchange alone {format_ns(exchange_ns)}",
            f"overlap by these times (OMB): {format_ratio(figures['omb_overlap_ratio'])}",
            *(
                []
                if solved is None
                else [f"the norm came to {options.tolerance:g} in {solved} steps"]
            ),
            *lines,
        ],
        notes=notes,
    )


def step_figures(
    points: int,
    total_ns: float,
    compute_ns: float,
    exchange_ns: float,
    stages: Mapping[str, int],
    *,
    overlapping: bool,
) -> dict[str, float | None]:
    """Return what a step reached, and what limits it.

    `points` are those that a step writes. The overlap is that of the OSU micro-benchmarks: the
    share of the exchange that the step does not last longer than its kernels.
    """
    serial_ns = compute_ns + exchange_ns
    together_ns = max(_interior_ns(stages, compute_ns), stages["edge_ns"] + exchange_ns)
    bound_ns = together_ns if overlapping else serial_ns
    exposed = min(1.0, max(0.0, (total_ns - compute_ns) / exchange_ns))
    return {
        "t_lb_ns": bound_ns,
        "t_step_ns": total_ns,
        "t_comp_ns": compute_ns,
        "t_comm_ns": exchange_ns,
        "omb_overlap_ratio": 1.0 - exposed,
        "speedup": serial_ns / total_ns,
        "speedup_max": serial_ns / bound_ns,
        "kernel_copy_ratio": compute_ns / exchange_ns,
        "updates_per_s": points * NS_PER_S / total_ns,
    }


def _interior_ns(stages: Mapping[str, int], compute_ns: float) -> float:
    """Return how long the interior of a step lasts in the passes, at most.

    It is one of the kernels of a step. Timed apart, at another clock, it can come out longer than
    all of them, and would be no bound.
    """
    return min(stages["inner_ns"], compute_ns)


def _expected(
    pass_name: str,
    pairs: Sequence[tuple[str, str]],
    overlapping: bool,
    *,
    judged: bool,
    observable: bool,
) -> tuple[Expected, ...] | tuple[ExpectedHidden, ...]:
    """Return what the trace must show, on every rank: verdicts of pairs, or what is hidden."""
    if not observable:
        return tuple(Expected(pass_name, a, b, NOT_OBSERVABLE, None) for a, b in pairs)
    if not pairs:
        least = LEAST_HIDDEN if judged and overlapping else 0.0
        most = MOST_HIDDEN if judged and not overlapping else 1.0
        return (ExpectedHidden(pass_name, least, most),)
    if not judged:
        return tuple(Expected(pass_name, a, b, NOT_JUDGED, None) for a, b in pairs)
    verdict = "overlapped" if overlapping else "serialized"
    return tuple(Expected(pass_name, a, b, verdict, 1.0) for a, b in pairs)


def _times(count: int, operation: Callable[[], None]) -> Callable[[], None]:
    def repeated() -> None:
        for _ in range(count):
            operation()

    return repeated


def start_variant(make: _Make, block: Block, norm_every: int) -> Variant:
    """Make a variant, and wait until its arrays are filled, on every rank.

    They are filled on the null stream, for which the streams of the variants do not wait.
    """
    variant = make(block, norm_every)
    variant.cp.cuda.runtime.deviceSynchronize()
    variant.ranks.barrier()
    return variant


def _prove(ranks: Ranks, make: _Make, cut_columns: bool) -> None:
    """Compare the variant with NumPy on small grids, every row bit by bit, and the norms.

    Raises
    ------
    ProgramError
        They differ; the message begins with ``wrong data``.
    """
    for rows, columns in _PROOFS:
        down, across = split = _split(ranks, (rows, columns), cut_columns)
        grid = max(rows, LEAST_SIDE * down), max(columns, LEAST_SIDE * across)
        for periodic in (True, False):
            block = cut(grid, split, ranks.rank, periodic=periodic)
            if not block.sides:
                continue  # one rank with open ends: nothing is exchanged, and nothing waited for
            variant = start_variant(make, block, _NORM_EVERY)
            variant.looking = True  # no gate is closed here
            variant.run(PROOF_STEPS)
            norms = {**variant.totals, PROOF_STEPS - 1: variant.total_norm()}
            ranks.session.check(partial(prove_tile, variant.tile, norms))


def _solve(variant: Variant, tolerance: float, reference: Reference) -> int:
    """Do steps until the norm is within the tolerance, and see that one GPU stops there as well.

    Raises
    ------
    ProgramError
        It does not.
    """
    say(f"stepping until the norm is {tolerance:g}")
    steps = variant.solve(tolerance)
    last = steps - 1 - variant.norm_lag  # the step whose norm was within
    for index in range(0, last + 1, variant.norm_every):
        reference.advance(index + 1)
        if (math.sqrt(reference.norm()) <= tolerance) != (index == last):
            raise ProgramError(
                f"{WRONG_DATA}: the norm came to {tolerance:g} in step {last}; on one GPU it is "
                f"{math.sqrt(reference.norm()):g} in step {index}. No figures are given."
            )
    return steps


def _choose_sizes(
    ranks: Ranks,
    options: Options,
    make: _Make,
    cut_columns: bool,
    notes: list[str],
    heap: Heap | None,
) -> tuple[Options, tuple[int, int]]:
    """Return the options with rows and columns, and how the grid is cut."""
    if (options.rows is None) != (options.columns is None):
        raise UsageError("give both --rows and --columns, or neither.")
    if ranks.size == 1 and options.ends == "open":
        raise UsageError("one rank with open ends exchanges nothing: leave --ends open out.")
    if options.rows is None:
        say("calibrating")
        rows, columns = _calibrate(ranks, options, make, cut_columns, notes, heap)
        down, across = _split(ranks, (rows, columns), cut_columns)
        if options.weak:
            down = across = 1
        options = replace(options, rows=rows * down, columns=columns * across)
        notes.append(f"sizes calibrated: --rows {options.rows} --columns {options.columns}")
    assert options.rows is not None
    assert options.columns is not None
    split = _split(ranks, (options.rows, options.columns), cut_columns)
    _refuse_too_large(ranks, options, split, heap)
    return options, split


def _split(ranks: Ranks, shape: tuple[int, int], cut_columns: bool) -> tuple[int, int]:
    return choose_split(ranks.size, shape) if cut_columns else (ranks.size, 1)


def _calibrate(
    ranks: Ranks,
    options: Options,
    make: _Make,
    cut_columns: bool,
    notes: list[str],
    heap: Heap | None,
) -> tuple[int, int]:
    """Return rows and columns of a rank's block, so that the interior can hide the exchange.

    A slab is so wide that one side of its halo takes a while, and as high as that takes; a block
    is square. It is smaller if the memory is.
    """
    side = _PROBE_SIDE
    rows, columns = (side, side) if cut_columns else (_PROBE_ROWS, _visible_columns(ranks))
    for _ in range(_MAX_GROWTHS):
        split = _split(ranks, (rows, columns), cut_columns)
        grid = rows * split[0], columns * split[1]
        block = cut(grid, split, ranks.rank, periodic=options.ends == "periodic")
        variant = start_variant(make, block, options.norm_every)
        stages = _stage_times(variant)
        exchange_ns = _exchange_ns(variant)
        to_cover_ns = _to_cover_ns(variant, stages, exchange_ns)
        if variant.waits:
            to_cover_ns += _TRACING_NS
        wanted = COVER_FACTOR * to_cover_ns / stages["inner_ns"]
        del variant, block
        if wanted <= 1:
            break
        larger = (
            (2 * rows, 2 * columns)
            if cut_columns
            else (math.ceil(wanted * rows / _ROW_STEP) * _ROW_STEP, columns)
        )
        too_many = larger[0] * split[0] * larger[1] * split[1] > _most_points(ranks)
        # What is measured in the end is made once more, and nothing in the heap is freed before.
        if too_many or (heap is not None and 2 * slab_bytes(*larger) > heap.left_bytes):
            notes.append("a grid whose interior hides the exchange does not fit the memory")
            break
        rows, columns = larger
    return rows, columns


def _visible_columns(ranks: Ranks) -> int:
    """Return columns, a power of two, for which the copy of one row lasts long enough."""
    session = ranks.session
    source = session.cp.zeros(_PROBE_BYTES // 4, "float32")
    target = pinned_array(session.cp, source.size)
    stream = session.cp.cuda.Stream(non_blocking=True)
    copy = partial(copy_to_host, session.cp, source, target, stream)
    (spans,) = session.time_operations([(stream, [copy] * (1 + _REPEATS))])
    copy_ns = Statistics.of([end - start for start, end in spans[1:]]).median_ns
    return ranks.agree(1 << round(math.log2(_PROBE_BYTES / 4 * _HALO_NS / copy_ns)))


def _host_ns(variant: Variant, operation: Callable[[], None]) -> int:
    """Return the time that an operation holds the host: the median of some, the longest rank's."""
    times_ns = []
    for _ in range(1 + _REPEATS):
        variant.ranks.barrier()
        begin_ns = time.perf_counter_ns()
        operation()
        times_ns.append(time.perf_counter_ns() - begin_ns)
        variant.cp.cuda.runtime.deviceSynchronize()
    (median_ns,) = variant.ranks.largest([Statistics.of(times_ns[1:]).median_ns])
    return median_ns


def _exchange_ns(variant: Variant) -> int:
    """Return the time of an exchange: the host's, or if that does not wait for it, the longer one.

    The other is that of the stream.
    """
    host_ns = _host_ns(variant, variant.exchange)
    if variant.waits:
        return host_ns
    return max(host_ns, _alone_ns(variant, variant.streams[0], variant.exchange))


def _alone_ns(variant: Variant, stream: Any, operation: Callable[[], None]) -> int:
    """Return the time of an operation of a stream: the median of some, the longest rank's."""
    queue = [(stream, [operation] * (1 + _REPEATS))]
    (spans,) = variant.ranks.session.time_operations(queue)
    median_ns = Statistics.of([end - start for start, end in spans[1:]]).median_ns
    (longest_ns,) = variant.ranks.largest([median_ns])
    return longest_ns


def _to_cover_ns(variant: Variant, stages: Mapping[str, int], exchange_ns: float) -> float:
    """Return how long the interior must last to hide what else there is to a step.

    A host that waits issues the kernels before it turns to the exchange.
    """
    issue_ns = stages["issue_ns"] if variant.waits else 0
    return issue_ns + stages["edge_ns"] + exchange_ns


def _stage_times(variant: Variant) -> dict[str, int]:
    """Return the time of each operation of a step alone, in ns: the longest of all ranks.

    ``issue_ns`` is the host's, to issue the kernels.
    """
    found = {"issue_ns": _host_ns(variant, variant.compute)}
    for name, (stream, operation) in variant.stages().items():
        operation()  # loads what it launches: not behind a closed gate
        variant.cp.cuda.runtime.deviceSynchronize()
        found[name] = _alone_ns(variant, stream, operation)
    return found


def _point_bytes(ranks: Ranks) -> float:
    """Return what a point takes: on a rank two arrays, and two whole grids to check them with."""
    return 4 * 2 * (1 + 1 / ranks.size)


def _most_points(ranks: Ranks) -> int:
    """Return how many points a grid may have, on the GPU that has least memory free."""
    free_bytes = min(ranks.gather(int(ranks.session.cp.cuda.runtime.memGetInfo()[0])))
    return int(DEVICE_MEMORY_RATIO * free_bytes / _point_bytes(ranks))


def slab_bytes(rows: int, columns: int) -> int:
    """Return what both arrays of a slab of so many rows take, with the rows of its halo."""
    return 2 * 4 * (rows + _HALO_ROWS) * columns


def _refuse_too_large(
    ranks: Ranks, options: Options, split: tuple[int, int], heap: Heap | None
) -> None:
    """Raise UsageError for a grid that does not fit, with a size that does."""
    rows, columns = options.grid(split)
    most, needed_bytes = _most_points(ranks), math.ceil(_point_bytes(ranks) * rows * columns)
    why = (
        f"with the grid that it is checked against, a rank needs {format_bytes(needed_bytes)}, and "
        "may take 25 % of the free device memory"
    )
    if heap is not None:
        fitting = heap.left_bytes // (2 * 4 * columns) - _HALO_ROWS
        in_heap = max(0, fitting) * ranks.size * columns
        if in_heap < most:
            most, needed_bytes = in_heap, slab_bytes(-(-rows // ranks.size), columns)
            why = (
                f"a rank needs {format_bytes(needed_bytes)} in the heap of NVSHMEM, and "
                f"{format_bytes(heap.left_bytes)} are left there"
            )
    if rows * columns <= most:
        return
    fitting = most // columns // (split[0] if options.weak else 1)
    each = 1 if options.weak else split[0]
    remedy = f"`--rows {fitting}`" if fitting >= LEAST_SIDE * each else "fewer --columns"
    raise UsageError(
        f"a grid of {rows} × {columns} points does not fit: {why}, which is room for {most} "
        f"points: use {remedy}."
    )
