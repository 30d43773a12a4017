"""The model of a chunked three-stage pipeline: bounds, and the overlap it allows. Pure.

Each chunk is copied to the device, worked on, and copied back. Each stage has one engine, which
does one chunk at a time; a device with a single copy engine does both copies on it. ::

    h2d     [0][1][2][3]
    kernel     [0][1][2][3]           4 equal chunks: 6 steps, not 12
    d2h           [0][1][2][3]
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

from gpuscope.benchmarks._harness.result import NOT_JUDGED, Expected
from gpuscope.benchmarks._harness.stats import Interval

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
        """Return what the trace of pass `name` must show for each pair of classes."""
        limits = self.ratio_limits()
        scope_busy_ns = self.bound_ns if overlapping else self.sequential_ns
        rows = []
        for a, b in PAIRS:
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


def efficiency_ratio(sequential_ns: int, streamed_ns: int, bound_ns: int) -> float | None:
    """Return the share of the possible gain that was reached; None where none was possible."""
    if sequential_ns <= bound_ns:
        return None
    return (sequential_ns - streamed_ns) / (sequential_ns - bound_ns)
