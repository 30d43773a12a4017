"""``graph``: the pipeline of `streams`, issued operation by operation, and as one CUDA graph.

Many operations on several streams cost the host a launch each. A CUDA graph is captured once from
the same calls and then launched with one. Does it keep the overlap, and what does a launch cost? ::

    sequential   one chunk after another on one stream
    streamed     24 launches, chunk i on stream i mod n
    graph        1 launch of what `streamed` issues, captured before

The events that join the streams at both ends of the capture become the edges of the graph: chunks
of one stream follow each other, those of different streams need not.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType

from gpuscope.benchmarks._harness import (
    CORRUPT,
    Benchmark,
    Chunks,
    Expected,
    Pass,
    Pattern,
    Pipeline,
    Quantity,
    Result,
    Session,
    Twin,
    add_chunk_arguments,
    choose_chunk_bytes,
    chosen_options,
    format_size,
    open_session,
    pass_term,
    positive_int,
    refuse_inexact,
)
from gpuscope.errors import UsageError
from gpuscope.units import format_ns

_DEFAULTS = MappingProxyType({"chunks": 8, "streams": 4, "size_bytes": None, "kernel_steps": None})


@dataclass(frozen=True, slots=True)
class _Options:
    """What is run: a value of None is found by calibration."""

    chunks: int
    streams: int
    size_bytes: int | None
    kernel_steps: int | None


class _Workload(Chunks):
    """The chunks, the streams, the graph, and the passes."""

    def __init__(self, session: Session, options: _Options, size_bytes: int):
        import numpy as np

        self.term = session.cp.zeros(1, np.float32)
        super().__init__(
            session,
            chunks=options.chunks,
            buffers=options.streams,
            size_bytes=size_bytes,
            steps=options.kernel_steps or 1,
            term_from=self.term,
        )
        cp = self.cp
        self.streams = [cp.cuda.Stream(non_blocking=True) for _ in range(options.streams)]

    def prepare(self) -> None:
        """Write down what the kernels of the next pass add; none of the last is at work."""
        self.passes_begun += 1
        self.term.fill(pass_term(self.passes_begun))
        self.cp.cuda.runtime.deviceSynchronize()

    def sequential(self) -> None:
        """One chunk after another, on one stream."""
        self.issue_all(self.streams[:1])

    def streamed(self) -> None:
        """Chunk i on stream i modulo n."""
        self.issue_all(self.streams)

    def capture(self, *, linear: bool) -> None:
        """Record the operations of `streamed` as a graph; `linear` puts all on one stream."""
        cp = self.cp
        streams = self.streams[:1] if linear else self.streams
        origin, others = streams[0], streams[1:]
        origin.begin_capture()
        fork = cp.cuda.Event(disable_timing=True)
        fork.record(origin)
        for stream in others:
            stream.wait_event(fork)
        self.issue_all(streams)
        for stream in others:
            join = cp.cuda.Event(disable_timing=True)
            join.record(stream)
            origin.wait_event(join)
        self.graph = origin.end_capture()
        self.graph.upload(origin)

    def launch_graph(self) -> None:
        """All operations, by one launch."""
        self.graph.launch(self.streams[0])


def _run(arguments: argparse.Namespace) -> Result:
    """Run the benchmark."""
    twin = None if arguments.twin is None else BENCHMARK.twin(arguments.twin).name
    chosen = chosen_options(arguments, BENCHMARK.name, _DEFAULTS)
    chosen["streams"] = min(chosen["streams"], chosen["chunks"])
    options = _Options(**chosen)
    refuse_inexact(options.kernel_steps)
    if options.streams < 2:
        raise UsageError("one chunk or one stream cannot overlap: use at least 2 of both.")
    with open_session(BENCHMARK.name) as session:
        return _measure(session, options, twin, arguments.reps)


def _measure(session: Session, options: _Options, twin: str | None, reps: int) -> Result:
    """Calibrate, capture, measure, and put the result together."""
    notes: list[str] = []
    size_bytes = choose_chunk_bytes(
        session,
        options.size_bytes,
        chunks=options.chunks,
        buffers=options.streams,
        notes=notes,
    )
    work = _Workload(session, options, size_bytes)
    pattern = Pattern(session.cp, session.cp.empty(work.elements, "float32"))
    work.fill(pattern)
    if options.kernel_steps is None:
        work.calibrate()
    work.capture(linear=twin == "linear")
    measured = session.measure(
        [
            Pass("sequential", work.streams, work.sequential, prepare=work.prepare),
            Pass("streamed", work.streams, work.streamed, prepare=work.prepare),
            Pass("graph", work.streams, work.launch_graph, prepare=work.prepare),
        ],
        reps,
        check=lambda: work.check(pattern),
        corrupt=work.hosts[-1] if twin == CORRUPT.name else None,
    )
    pipeline = work.pipeline(options.streams)
    report = work.report(pipeline, measured, "sequential", "graph")
    passes, issued = measured.passes, measured.issued
    figures = report.figures | {
        "streamed_speedup": passes["sequential"].median_ns / passes["streamed"].median_ns,
        "streamed_issue_ns": issued["streamed"].median_ns,
        "graph_issue_ns": issued["graph"].median_ns,
    }
    streamed = Quantity(
        "issued to streams",
        passes["streamed"].median_ns,
        "ns",
        pipeline.bound_ns,
        "its stages, timed alone",
    )
    return session.conclude(
        measured,
        twin=twin,
        options=asdict(replace(options, size_bytes=size_bytes, kernel_steps=work.steps)),
        stages=report.stages,
        figures=figures,
        quantities=[*report.quantities, streamed],
        expected=_expected(pipeline, twin),
        title=f"{options.chunks} chunks of {format_size(size_bytes)}, "
        f"{options.streams} streams, {work.steps} kernel steps",
        baselines={"streamed": "sequential", "graph": "sequential"},
        lines=[
            *report.lines,
            f"issuing took the host {format_ns(figures['streamed_issue_ns'])} operation by "
            f"operation, {format_ns(figures['graph_issue_ns'])} as a graph",
        ],
        notes=[*notes, *report.notes],
    )


def _expected(pipeline: Pipeline, twin: str | None) -> tuple[Expected, ...]:
    """Return the verdicts that the trace must show, for all three passes."""
    return (
        *pipeline.expected("sequential", overlapping=False),
        *pipeline.expected("streamed", overlapping=True),
        *pipeline.expected("graph", overlapping=twin != "linear"),
    )


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--chunks", type=positive_int, metavar="N", help="pieces of the data (default: 8)"
    )
    add_chunk_arguments(parser, size_default="about 3 ms of copying, 16M to 256M")


BENCHMARK = Benchmark(
    name="graph",
    summary="the pipeline of `streams` as one CUDA graph: its overlap, and what a launch costs",
    options="--chunks N  --streams N  --size SIZE  --kernel-steps K",
    needs="1 GPU",
    twins=(
        Twin("linear", "the graph is one chain", "graph: all three pairs serialized"),
        CORRUPT,
    ),
    add_arguments=_add_arguments,
    run=_run,
)
