"""``streams``: chunks of data through copy in, kernel, copy out, on several streams.

The question is the oldest one about a GPU's copy engines: if work is cut into chunks and issued to
several streams, do the copies of one chunk hide under the kernel of another? ::

    sequential   [h2d 0][kernel 0][d2h 0][h2d 1][kernel 1][d2h 1] …     one stream

    streamed     [h2d 0 ][h2d 1   ][h2d 2   ][h2d 3   ] …               chunk i on stream i mod n
                         [kernel 0][kernel 1][kernel 2] …
                                   [d2h 0   ][d2h 1   ] …

Four things make the second picture come true: page-locked host memory, non-blocking streams, a
device buffer for each stream, and no wait on the host before everything is issued. Each twin below
takes one of them away.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType

from gpuscope.benchmarks._harness import (
    CORRUPT,
    MIB,
    Benchmark,
    Chunks,
    Expected,
    Pass,
    Pattern,
    Pipeline,
    Result,
    Session,
    Twin,
    add_chunk_arguments,
    choose_chunk_bytes,
    chosen_options,
    format_size,
    open_session,
    positive_float,
    positive_int,
    read_plan,
    refuse_inexact,
    say,
)
from gpuscope.errors import UsageError

_DEFAULTS = MappingProxyType(
    {"chunks": 8, "streams": 4, "size_bytes": None, "kernel_steps": None, "kernel_ratio": None}
)
_PRESETS: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {"seed": {"chunks": 4, "streams": 4, "size_bytes": 256 * MIB, "kernel_steps": 1024}}
)
_COOL_DOWN_S = 2.0


@dataclass(frozen=True, slots=True)
class _Options:
    """What is run: a size or number of steps of None is found by calibration."""

    preset: str | None
    chunks: int
    streams: int
    size_bytes: int | None
    kernel_steps: int | None
    kernel_ratio: float | None = None


class _Workload(Chunks):
    """The chunks, the streams of a twin, and the passes over them."""

    def __init__(self, session: Session, options: _Options, size_bytes: int, twin: str | None):
        super().__init__(
            session,
            chunks=options.chunks,
            buffers=options.streams,
            size_bytes=size_bytes,
            steps=options.kernel_steps or 1,
            pinned=twin != "pageable",
        )
        cp = self.cp
        if twin == "default-stream":
            self.streams = [cp.cuda.Stream.null] * options.streams
        elif twin == "one-stream":
            self.streams = [cp.cuda.Stream(non_blocking=True)] * options.streams
        else:
            self.streams = [cp.cuda.Stream(non_blocking=True) for _ in range(options.streams)]
        if twin == "shared-buffer":
            self.buffers = self.buffers[:1] * options.streams
        if twin == "tiny-kernel":
            # Most of the chunk is left alone: a step on all of it is not tiny where the device's
            # memory is slow.
            self.worked = self.elements // 4
        self.done = [cp.cuda.Event(disable_timing=True) for _ in self.hosts]

    # The passes. Each issues everything and leaves the waiting to the caller.

    def sequential(self) -> None:
        """One chunk after another, on one stream."""
        self.passes_begun += 1
        self.issue_all(self.streams[:1])

    def streamed(self) -> None:
        """Chunk i on stream i modulo n, with that stream's buffer."""
        self.passes_begun += 1
        self.issue_all(self.streams)

    def streamed_event_chain(self) -> None:
        """As streamed, but each chunk waits until the one before is done."""
        self.passes_begun += 1
        for chunk in range(len(self.hosts)):
            turn = chunk % len(self.streams)
            if chunk:
                self.streams[turn].wait_event(self.done[chunk - 1])
            self.issue_chunk(chunk, self.buffers[turn].data.ptr, self.streams[turn])
            self.done[chunk].record(self.streams[turn])

    def streamed_host_sync(self) -> None:
        """As streamed, but the host waits for each chunk before it issues the next."""
        self.passes_begun += 1
        for chunk in range(len(self.hosts)):
            turn = chunk % len(self.streams)
            self.issue_chunk(chunk, self.buffers[turn].data.ptr, self.streams[turn])
            self.streams[turn].synchronize()

    def streamed_alloc_free(self) -> None:
        """As streamed, but each chunk's buffer is allocated, and freed once all is issued to it.

        cudaFree waits until the device is idle, so nothing of the next chunk is issued before.
        """
        self.passes_begun += 1
        runtime = self.cp.cuda.runtime
        for chunk in range(len(self.hosts)):
            buffer = runtime.malloc(self.size_bytes)
            self.issue_chunk(chunk, buffer, self.streams[chunk % len(self.streams)])
            runtime.free(buffer)


_STREAMED: Mapping[str, Callable[[_Workload], None]] = MappingProxyType(
    {
        "event-chain": _Workload.streamed_event_chain,
        "host-sync": _Workload.streamed_host_sync,
        "alloc-free": _Workload.streamed_alloc_free,
    }
)
"""Twins that issue the streamed pass differently; the others change what it is issued to."""

_WAITING_TWINS = frozenset({"pageable", "host-sync", "alloc-free"})
"""Twins whose streamed pass waits for the GPU while it issues."""

_OVERLAPPING_TWINS = frozenset({None, "tiny-kernel", "cold-baseline", CORRUPT.name})
"""The benchmark itself, and the twins that must overlap as well."""


def _resolve(arguments: argparse.Namespace) -> _Options:
    """Combine plan, options, preset and defaults: the first that names a value wins."""
    preset = arguments.preset
    if arguments.plan is not None:
        preset = read_plan(arguments.plan, BENCHMARK.name).get("preset")
    if preset is None and arguments.twin == "cold-baseline":
        preset = "seed"  # the published figure was taken with these sizes
    defaults = {**_DEFAULTS, **_PRESETS.get(preset or "", {})}
    chosen = chosen_options(arguments, BENCHMARK.name, defaults)
    if arguments.twin == "tiny-kernel":
        chosen["kernel_steps"] = 1
    refuse_inexact(chosen["kernel_steps"])
    streams = min(chosen["streams"], chosen["chunks"])
    if streams < 2 and arguments.twin in _OVERLAPPING_TWINS:
        raise UsageError(
            "one chunk or one stream cannot overlap: use at least 2 of both, or another --twin."
        )
    if arguments.twin == "cold-baseline" and arguments.reps != 1:
        say("cold-baseline is one repetition: a second would be warm")
    return _Options(**{**chosen, "preset": preset, "streams": streams})


def _run(arguments: argparse.Namespace) -> Result:
    """Run the benchmark."""
    twin = None if arguments.twin is None else BENCHMARK.twin(arguments.twin).name
    options = _resolve(arguments)
    with open_session(BENCHMARK.name) as session:
        return _measure(session, options, twin, arguments.reps)


def _measure(session: Session, options: _Options, twin: str | None, reps: int) -> Result:
    """Calibrate, measure, and put the result together."""
    cold = twin == "cold-baseline"
    notes: list[str] = []
    size_bytes = choose_chunk_bytes(
        session,
        options.size_bytes,
        chunks=options.chunks,
        buffers=options.streams,
        notes=notes,
        pinned=twin != "pageable",
    )
    work = _Workload(session, options, size_bytes, twin)
    pattern = Pattern(session.cp, session.cp.empty(work.elements, "float32"))
    if cold:
        pattern.fill(work.hosts)  # and nothing else: loading the kernel is part of what is cold
    else:
        work.fill(pattern)
    if options.kernel_steps is None:
        work.calibrate(options.kernel_ratio or 1.0)
    if cold:
        time.sleep(_COOL_DOWN_S)

    streamed = _STREAMED.get(twin or "", _Workload.streamed)
    passes = [
        Pass("sequential", work.streams, work.sequential, waits=cold or twin == "pageable"),
        Pass("streamed", work.streams, lambda: streamed(work), waits=twin in _WAITING_TWINS),
    ]
    measured = session.measure(
        passes,
        1 if cold else reps,
        check=lambda: work.check(pattern),
        warm=not cold,
        corrupt=work.hosts[-1] if twin == CORRUPT.name else None,
    )

    # The stages are timed last: they are warm then, and a cold baseline stays cold.
    pipeline = work.pipeline(options.streams)
    report = work.report(pipeline, measured, "sequential", "streamed")
    return session.conclude(
        measured,
        twin=twin,
        options=asdict(replace(options, size_bytes=size_bytes, kernel_steps=work.steps)),
        stages=report.stages,
        figures=report.figures,
        quantities=report.quantities,
        expected=_expected(pipeline, twin),
        title=f"{options.chunks} chunks of {format_size(size_bytes)}, "
        f"{options.streams} streams, {work.steps} kernel steps",
        baselines={"streamed": "sequential"},
        lines=report.lines,
        notes=[*notes, *report.notes],
        cold=cold,
    )


def _expected(pipeline: Pipeline, twin: str | None) -> tuple[Expected, ...]:
    """Return the verdicts that the trace must show, for both passes."""
    return pipeline.expected("sequential", overlapping=False) + pipeline.expected(
        "streamed", overlapping=twin in _OVERLAPPING_TWINS
    )


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--chunks", type=positive_int, metavar="N", help="pieces of the data (default: 8)"
    )
    add_chunk_arguments(parser, size_default="about 3 ms of copying, 16M to 256M")
    parser.add_argument(
        "--kernel-ratio",
        type=positive_float,
        metavar="R",
        help="calibrate the kernel to last this many times the copy in (default: 1)",
    )
    parser.add_argument(
        "--preset",
        choices=sorted(_PRESETS),
        help="seed: 4 chunks of 256M, 4 streams, 1024 kernel steps, as first published",
    )


_SERIALIZED = "streamed: all three pairs serialized"

BENCHMARK = Benchmark(
    name="streams",
    summary="copy in, kernel, copy out in chunks: one stream against several",
    options="--chunks N  --streams N  --size SIZE  --kernel-steps K  --kernel-ratio R  "
    "--preset seed",
    needs="1 GPU",
    twins=(
        Twin("default-stream", "everything on the default stream", _SERIALIZED),
        Twin("one-stream", "everything on one non-blocking stream", _SERIALIZED),
        Twin("pageable", "host memory that is not page-locked", _SERIALIZED),
        Twin("event-chain", "each chunk waits for the event of the one before", _SERIALIZED),
        Twin("host-sync", "the host waits for each chunk", _SERIALIZED),
        Twin("alloc-free", "each chunk's buffer is allocated and freed on the way", _SERIALIZED),
        Twin(
            "tiny-kernel",
            "a kernel of one step on a quarter of each chunk",
            "streamed: copies overlapped, both pairs with the kernel immaterial",
        ),
        Twin(
            "shared-buffer",
            "all streams work in one device buffer, and race",
            "the data check ends the run with exit code 1 and no figures",
            wrong_data=True,
        ),
        CORRUPT,
        Twin(
            "cold-baseline",
            "one repetition with nothing warmed up, the sequential pass first",
            "streamed: overlapped; a speed-up above the possible one is pointed out",
        ),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
