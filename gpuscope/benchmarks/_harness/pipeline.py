"""The model of a chunked three-stage pipeline: bounds, and the overlap it allows. Pure.

Each chunk is copied to the device, worked on, and copied back. Each stage has one engine, which
does one chunk at a time; a device with a single copy engine does both copies on it. ::

    h2d     [0][1][2][3]
    kernel     [0][1][2][3]           4 equal chunks: 6 steps, not 12
    d2h           [0][1][2][3]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gpuscope.benchmarks._harness.result import NOT_JUDGED, Expected, Quantity
from gpuscope.benchmarks._harness.sizing import rate_bytes_per_s
from gpuscope.benchmarks._harness.stats import Interval, Statistics
from gpuscope.units import format_ns, format_rate, format_ratio

MIN_RATIO_LIMIT = 0.2
"""A pair that could overlap less than this is not judged."""
IMMATERIAL_RATIO = 0.05
"""The analyzer's share of busy time under which a pair is immaterial."""
IMMATERIAL_MARGIN_RATIO = 0.01
"""Around that share the outcome depends on noise: not judged."""
MIN_BUSY_NS = 20_000
"""A class busy for less than this in a pass is too short to judge."""
COLD_BASELINE_FACTOR = 1.03
"""A speed-up above the largest possible one by more than this: the baseline was not warm."""

_ROUNDING = 1e-9
"""A share of an operation that is only a rounding error."""

Stage = Literal["h2d", "kernel", "d2h"]
STAGES: tuple[Stage, ...] = ("h2d", "kernel", "d2h")
PAIRS: tuple[tuple[Stage, Stage], ...] = (("d2h", "h2d"), ("d2h", "kernel"), ("h2d", "kernel"))
"""Pairs of stages, each and all in alphabetical order."""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Duration of each stage of one chunk, in ns."""

    h2d: int
    kernel: int
    d2h: int

    @property
    def chunk_ns(self) -> int:
        """Time of one chunk with nothing beside it."""
        return self.h2d + self.kernel + self.d2h

    def __getitem__(self, stage: Stage) -> int:
        return int(getattr(self, stage))


@dataclass(slots=True)
class _Operation:
    """An operation at work in the replay; ``left`` is the share of it still to do."""

    stream: int
    stage: Stage
    start_ns: float
    left: float = 1.0


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline of equal chunks: its stages, how many chunks, streams and copy engines."""

    stages: StageTimes
    chunks: int
    streams: int
    copy_engines: int = 2

    @property
    def sequential_ns(self) -> int:
        """Time with no overlap at all."""
        return self.chunks * self.stages.chunk_ns

    @property
    def bound_ns(self) -> int:
        """Shortest time that any schedule of the chunks can take, T_lb.

        Two copy engines: the first chunk fills the pipeline, every other adds the longest stage.
        One: both copies share it, so it is the larger of all copies in a row, and all kernels in
        a row between the first copy in and the last copy out.
        """
        h2d, kernel, d2h = self.stages.h2d, self.stages.kernel, self.stages.d2h
        if self.copy_engines == 1:
            return max(self.chunks * (h2d + d2h), h2d + self.chunks * kernel + d2h)
        return self.stages.chunk_ns + (self.chunks - 1) * max(h2d, kernel, d2h)

    @property
    def speedup_max(self) -> float:
        """Largest speed-up over the sequential pass."""
        return self.sequential_ns / self.bound_ns

    @property
    def kernel_copy_ratio(self) -> float:
        """The kernel's time over that of the longer copy."""
        return self.stages.kernel / max(self.stages.h2d, self.stages.d2h)

    def replay(self, both_ways: StageTimes | None = None) -> dict[Stage, list[Interval]]:
        """Run the schedule on paper: when each stage of each chunk is at work.

        Chunk i is issued to stream i modulo ``streams``, all stages of a chunk before the next
        chunk. An operation starts once its stream's previous one has ended and its engine is
        free; of several that could, the one issued first.

        Parameters
        ----------
        both_ways
            Duration of the copies while both directions are at work. None: as when alone.
        """
        waiting: list[deque[tuple[int, Stage]]] = [deque() for _ in range(self.streams)]
        for chunk in range(self.chunks):
            order = enumerate(STAGES, start=chunk * len(STAGES))
            waiting[chunk % self.streams].extend(order)
        copies = ("copy", "copy") if self.copy_engines == 1 else ("h2d", "d2h")
        engine_of: dict[Stage, str] = {"h2d": copies[0], "kernel": "kernel", "d2h": copies[1]}
        at_work: dict[str, _Operation] = {}
        done: dict[Stage, list[Interval]] = {stage: [] for stage in STAGES}
        now_ns = 0.0
        while any(waiting) or at_work:
            taken = {operation.stream for operation in at_work.values()}
            free = [index for index, queue in enumerate(waiting) if queue and index not in taken]
            for stream in sorted(free, key=lambda index: waiting[index][0]):
                engine = engine_of[waiting[stream][0][1]]
                if engine not in at_work:
                    at_work[engine] = _Operation(stream, waiting[stream].popleft()[1], now_ns)
            shared = both_ways is not None and {"h2d", "d2h"} <= at_work.keys()
            times = both_ways if both_ways is not None and shared else self.stages
            step_ns = min(op.left * max(1, times[op.stage]) for op in at_work.values())
            now_ns += step_ns
            for engine, operation in list(at_work.items()):
                operation.left -= step_ns / max(1, times[operation.stage])
                if operation.left < _ROUNDING:
                    done[operation.stage].append((round(operation.start_ns), round(now_ns)))
                    del at_work[engine]
        return done

    def makespan_ns(self, both_ways: StageTimes | None = None) -> int:
        """Return the time that the replayed schedule takes as a whole."""
        return max(end for spans in self.replay(both_ways).values() for _, end in spans)

    def ratio_limits(self) -> dict[tuple[Stage, Stage], float]:
        """Return for each pair the overlap, over the shorter class's busy time, in the replay."""
        import numpy as np

        from gpuscope import intervals

        busy = {
            stage: intervals.union(*np.array(spans, np.int64).T)
            for stage, spans in self.replay().items()
        }
        return {
            (a, b): intervals.length(intervals.intersect(busy[a], busy[b]))
            / max(1, min(intervals.length(busy[a]), intervals.length(busy[b])))
            for a, b in PAIRS
        }

    def expected(self, name: str, *, overlapping: bool) -> tuple[Expected, ...]:
        """Return what the trace of pass `name` must show for each pair of stages that exist.

        A stage whose time is 0 does not.
        """
        limits = self.ratio_limits()
        scope_busy_ns = self.bound_ns if overlapping else self.sequential_ns
        rows = []
        for a, b in PAIRS:
            if not self.stages[a] or not self.stages[b]:
                continue
            busy_ns = self.chunks * min(self.stages[a], self.stages[b])
            from_edge = busy_ns / scope_busy_ns - IMMATERIAL_RATIO
            limit = limits[a, b] if overlapping else 1.0
            if busy_ns < MIN_BUSY_NS or abs(from_edge) < IMMATERIAL_MARGIN_RATIO:
                rows.append(Expected(name, a, b, NOT_JUDGED, None))
            elif from_edge < 0:
                rows.append(Expected(name, a, b, "immaterial", 1.0))
            elif limit < MIN_RATIO_LIMIT:
                rows.append(Expected(name, a, b, NOT_JUDGED, None))
            else:
                verdict = "overlapped" if overlapping else "serialized"
                rows.append(Expected(name, a, b, verdict, limit))
        return tuple(rows)


BothWays = tuple[int | None, int | None]
"""Times of a copy in and a copy out with the other direction busy, in ns; None: not measured."""


@dataclass(frozen=True, slots=True)
class PipelineReport:
    """What the result of every pipeline of chunks says, in the parts of a result.

    ``lines`` and ``notes`` are for people.
    """

    stages: dict[str, int | None]
    figures: dict[str, float | None]
    quantities: tuple[Quantity, ...]
    lines: tuple[str, ...]
    notes: tuple[str, ...]


def report_pipeline(
    pipeline: Pipeline,
    both_ways: BothWays,
    sequential: Statistics,
    streamed: Statistics,
    *,
    size_bytes: int,
    pcie_bytes_per_s: float | None,
) -> PipelineReport:
    """Say what a pipeline of chunks of `size_bytes` reached, and what limits it.

    `sequential` and `streamed` are the times of all chunks, one after another and overlapping;
    `pcie_bytes_per_s` is what the link carries one way.
    """
    figures = pipeline_figures(pipeline, both_ways, sequential, streamed, size_bytes)
    return PipelineReport(
        stages={
            "h2d_ns": pipeline.stages.h2d,
            "kernel_ns": pipeline.stages.kernel,
            "d2h_ns": pipeline.stages.d2h,
            "h2d_contended_ns": both_ways[0],
            "d2h_contended_ns": both_ways[1],
        },
        figures=figures,
        quantities=pipeline_quantities(figures, streamed, pcie_bytes_per_s),
        lines=tuple(pipeline_lines(pipeline, both_ways, figures)),
        notes=tuple(pipeline_remarks(figures, pipeline.copy_engines)),
    )


def pipeline_figures(
    pipeline: Pipeline,
    both_ways: BothWays,
    sequential: Statistics,
    streamed: Statistics,
    size_bytes: int,
) -> dict[str, float | None]:
    """Return what a pipeline of chunks of `size_bytes` reached, and what limits it."""
    sequential_ns, streamed_ns = sequential.median_ns, streamed.median_ns
    h2d_ns, d2h_ns = both_ways
    contended_ns = None
    if h2d_ns is not None and d2h_ns is not None:
        contended_ns = pipeline.makespan_ns(StageTimes(h2d_ns, pipeline.stages.kernel, d2h_ns))
    return {
        "t_lb_ns": pipeline.bound_ns,
        "t_lb_contended_ns": contended_ns,
        "speedup": sequential_ns / streamed_ns,
        "speedup_max": pipeline.speedup_max,
        "kernel_copy_ratio": pipeline.kernel_copy_ratio,
        "pipeline_efficiency": efficiency_ratio(sequential_ns, streamed_ns, pipeline.bound_ns),
        "pipeline_efficiency_contended": None
        if contended_ns is None
        else efficiency_ratio(sequential_ns, streamed_ns, contended_ns),
        "h2d_rate_bytes_per_s": rate_bytes_per_s(size_bytes, pipeline.stages.h2d),
        "d2h_rate_bytes_per_s": rate_bytes_per_s(size_bytes, pipeline.stages.d2h),
        "h2d_contended_rate_bytes_per_s": rate_bytes_per_s(size_bytes, h2d_ns),
        "d2h_contended_rate_bytes_per_s": rate_bytes_per_s(size_bytes, d2h_ns),
    }


def pipeline_lines(
    pipeline: Pipeline, both_ways: BothWays, figures: Mapping[str, float | None]
) -> list[str]:
    """Return the stages and the limits of a pipeline as lines for people."""
    lines = [f"{'stage':<12}{'alone':>10}{'':>12}{'both ways':>12}"]
    alone = pipeline.stages
    for name, alone_ns, shared_ns in (
        ("h2d", alone.h2d, both_ways[0]),
        ("kernel", alone.kernel, None),
        ("d2h", alone.d2h, both_ways[1]),
    ):
        rate = format_rate(figures.get(f"{name}_rate_bytes_per_s"))
        shared_rate = format_rate(figures.get(f"{name}_contended_rate_bytes_per_s"))
        cells = f"{format_ns(alone_ns):>10}{rate:>12}{format_ns(shared_ns):>12}{shared_rate:>12}"
        lines.append(f"{name:<12}{cells}")
    for title, suffix in (("stages alone", ""), ("copies both ways", "_contended")):
        bound = format_ns(figures[f"t_lb{suffix}_ns"])
        reached = format_ratio(figures[f"pipeline_efficiency{suffix}"])
        lines.append(f"bound from {title}: {bound}, {reached} of that gain reached")
    lines.append(f"speed-up {figures['speedup']:.2f}× of {figures['speedup_max']:.2f}× possible")
    return lines


def pipeline_quantities(
    figures: Mapping[str, float | None], streamed: Statistics, pcie_bytes_per_s: float | None
) -> tuple[Quantity, ...]:
    """Return what of a pipeline the machine limits."""
    link = "PCIe generation × width"
    return (
        Quantity("copy in", figures["h2d_rate_bytes_per_s"], "bytes/s", pcie_bytes_per_s, link),
        Quantity("copy out", figures["d2h_rate_bytes_per_s"], "bytes/s", pcie_bytes_per_s, link),
        Quantity(
            "pipeline", streamed.median_ns, "ns", figures["t_lb_ns"], "its stages, timed alone"
        ),
    )


def pipeline_remarks(figures: Mapping[str, float | None], copy_engines: int) -> list[str]:
    """Return what a reader would otherwise conclude wrongly from the figures."""
    remarks = []
    speedup, limit = figures["speedup"], figures["speedup_max"]
    if speedup is not None and limit is not None and speedup > COLD_BASELINE_FACTOR * limit:
        remarks.append(
            f"a speed-up of {speedup:.2f}× is more than the {limit:.2f}× that is possible: the "
            "sequential pass was not warm"
        )
    if copy_engines == 1:
        remarks.append("the GPU has one copy engine: copies in and out cannot overlap")
    return remarks


def efficiency_ratio(sequential_ns: int, streamed_ns: int, bound_ns: int) -> float | None:
    """Return the share of the possible gain that was reached; None where none was possible."""
    if sequential_ns <= bound_ns:
        return None
    return (sequential_ns - streamed_ns) / (sequential_ns - bound_ns)
