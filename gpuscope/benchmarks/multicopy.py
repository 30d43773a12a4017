"""``multicopy``: both copy engines and the kernels at work at once, with and without a kernel.

In each cycle the kernel of one chunk is issued, then the copy in of the next, then the copy out of
the first, each chunk on a stream of its own. ::

    issue        kernel 0, h2d 1, d2h 0, kernel 1, h2d 2, d2h 1, …

    h2d          [0][1][2][3] …
    kernel          [0][1][2] …
    d2h                [0][1] …

It is measured twice: with next to no kernel (`tiny`), when only the two copies can overlap, and
with one that lasts as long as the copy in (`matched`), when all three can. With H, K and D the
times of the stages, a cycle takes at least

- H + K + D where nothing overlaps,
- max(H + D, K) where one copy engine does both copies,
- max(H, K, D) where each direction has its own.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

from gpuscope.benchmarks._harness import (
    CORRUPT,
    MIB,
    Benchmark,
    Chunks,
    Expected,
    Pass,
    Pattern,
    Pipeline,
    Quantity,
    Result,
    Session,
    StageTimes,
    Twin,
    add_chunk_arguments,
    buffer_limit_bytes,
    chosen_bytes,
    chosen_options,
    format_size,
    open_session,
    positive_int,
    refuse_inexact,
)
from gpuscope.errors import UsageError
from gpuscope.units import format_ns

_SIZE_BYTES = 16 * MIB
_DEFAULTS = MappingProxyType({"cycles": 10, "streams": 4, "size_bytes": None, "kernel_steps": None})


@dataclass(frozen=True, slots=True)
class _Options:
    """What is run: a value of None is found by calibration."""

    cycles: int
    streams: int
    size_bytes: int | None
    kernel_steps: int | None


class _Workload(Chunks):
    """The chunks of one kind of kernel, and the passes over them."""

    def __init__(self, session: Session, options: _Options, size_bytes: int, steps: int):
        super().__init__(
            session,
            chunks=options.cycles,
            buffers=options.streams,
            size_bytes=size_bytes,
            steps=steps,
        )

    def sequential(self, streams: list[Any]) -> None:
        """One chunk after another, on one stream."""
        self.passes_begun += 1
        self.issue_all(streams[:1])

    def overlapped(self, streams: list[Any]) -> None:
        """In each cycle the kernel of a chunk, the copy in of the next, the copy out of it."""
        self.passes_begun += 1
        places = [
            (self.buffers[chunk % len(streams)].data.ptr, streams[chunk % len(streams)])
            for chunk in range(len(self.hosts))
        ]
        self.copy_in(0, *places[0])
        for chunk, place in enumerate(places):
            self.work(*place)
            if chunk + 1 < len(places):
                self.copy_in(chunk + 1, *places[chunk + 1])
            self.copy_out(chunk, *place)


def _cycle_limits_ns(stages: StageTimes) -> tuple[int, int, int]:
    """Return the least time of a cycle: nothing overlaps, one copy engine, one a direction."""
    h2d, kernel, d2h = stages.h2d, stages.kernel, stages.d2h
    return h2d + kernel + d2h, max(h2d + d2h, kernel), max(h2d, kernel, d2h)


def _run(arguments: argparse.Namespace) -> Result:
    """Run the benchmark."""
    twin = None if arguments.twin is None else BENCHMARK.twin(arguments.twin).name
    options = _Options(**chosen_options(arguments, BENCHMARK.name, _DEFAULTS))
    refuse_inexact(options.kernel_steps)
    if min(options.cycles, options.streams) < 2:
        raise UsageError("one cycle or one stream cannot overlap: use at least 2 of both.")
    with open_session(BENCHMARK.name) as session:
        return _measure(session, options, twin, arguments.reps)


def _measure(session: Session, options: _Options, twin: str | None, reps: int) -> Result:
    """Calibrate, measure, and put the result together."""
    cp = session.cp
    limit_bytes = buffer_limit_bytes(
        session, device_buffers=2 * options.streams + 1, host_buffers=2 * options.cycles
    )
    notes: list[str] = []
    size_bytes = chosen_bytes(options.size_bytes, _SIZE_BYTES, limit_bytes, notes)
    streams = [cp.cuda.Stream(non_blocking=True) for _ in range(options.streams)]
    if twin == "one-stream":
        streams = streams[:1] * options.streams
    tiny = _Workload(session, options, size_bytes, 1)
    # Most of the chunk is left alone: a step on all of it is not tiny where memory is slow.
    tiny.worked = tiny.elements // 4
    matched = _Workload(session, options, size_bytes, options.kernel_steps or 1)
    pattern = Pattern(cp, cp.empty(matched.elements, "float32"))
    for work in (tiny, matched):
        work.fill(pattern)
    if options.kernel_steps is None:
        matched.calibrate()

    def check() -> None:
        tiny.check(pattern)
        matched.check(pattern)

    measured = session.measure(
        [
            Pass("tiny-sequential", streams, lambda: tiny.sequential(streams)),
            Pass("tiny-overlapped", streams, lambda: tiny.overlapped(streams)),
            Pass("matched-sequential", streams, lambda: matched.sequential(streams)),
            Pass("matched-overlapped", streams, lambda: matched.overlapped(streams)),
        ],
        reps,
        check=check,
        corrupt=matched.hosts[-1] if twin == CORRUPT.name else None,
    )
    pipeline = matched.pipeline(options.streams)
    stages = pipeline.stages
    tiny_pipeline = replace(pipeline, stages=replace(stages, kernel=tiny.kernel_ns(1)))
    passes = measured.passes
    report = matched.report(pipeline, measured, "matched-sequential", "matched-overlapped")
    tiny_ns = passes["tiny-overlapped"].median_ns
    names = ("nothing overlaps", "one copy engine", "one engine a direction")
    limits = dict(zip(names, _cycle_limits_ns(stages), strict=True))
    cycle_ns = passes["matched-overlapped"].median_ns / options.cycles
    return session.conclude(
        measured,
        twin=twin,
        options=asdict(replace(options, size_bytes=size_bytes, kernel_steps=matched.steps)),
        stages=report.stages | {"tiny_kernel_ns": tiny_pipeline.stages.kernel},
        figures=report.figures
        | {
            "tiny_speedup": passes["tiny-sequential"].median_ns / tiny_ns,
            "tiny_t_lb_ns": tiny_pipeline.bound_ns,
        },
        quantities=[
            *report.quantities,
            Quantity(
                "copies only", tiny_ns, "ns", tiny_pipeline.bound_ns, "its stages, timed alone"
            ),
        ],
        expected=_expected(pipeline, tiny_pipeline, twin),
        title=f"{options.cycles} cycles of {format_size(size_bytes)}, {options.streams} streams, "
        f"{matched.steps} kernel steps",
        baselines={
            "tiny-overlapped": "tiny-sequential",
            "matched-overlapped": "matched-sequential",
        },
        lines=[
            *report.lines,
            f"a cycle took {format_ns(cycle_ns)}; at least "
            + ", ".join(f"{format_ns(limit)} where {name}" for name, limit in limits.items()),
        ],
        notes=[*notes, *report.notes],
    )


def _expected(matched: Pipeline, tiny: Pipeline, twin: str | None) -> tuple[Expected, ...]:
    """Return the verdicts that the trace must show, for all four passes."""
    overlapping = twin != "one-stream"
    return (
        *tiny.expected("tiny-sequential", overlapping=False),
        *tiny.expected("tiny-overlapped", overlapping=overlapping),
        *matched.expected("matched-sequential", overlapping=False),
        *matched.expected("matched-overlapped", overlapping=overlapping),
    )


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--cycles", type=positive_int, metavar="N", help="chunks of the data (default: 10)"
    )
    add_chunk_arguments(parser, size_default="16M")


BENCHMARK = Benchmark(
    name="multicopy",
    summary="copies both ways at once, with next to no kernel and with a matched one",
    options="--cycles N  --streams N  --size SIZE  --kernel-steps K",
    needs="1 GPU",
    twins=(
        Twin(
            "one-stream",
            "everything on one non-blocking stream",
            "every pass: serialized, or immaterial where there is next to no kernel",
        ),
        CORRUPT,
    ),
    add_arguments=_add_arguments,
    run=_run,
)
