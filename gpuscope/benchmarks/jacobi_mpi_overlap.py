"""``jacobi-mpi-overlap``: the edges first, so that they travel while the interior is computed.

The grid is cut into slabs of rows, one a rank. What the neighbours need, the first and the last
row, is computed on streams of high priority, copied out and sent, while the interior is computed on
a stream of low priority. ::

    up        [edge][d2h]                  [h2d]      [edge][d2h]          high priority
    down      [edge][d2h]                  [h2d]      [edge][d2h]          high priority
    inner     [reset][step ==========================][reset][step ====    low priority
    host               [Isend, Irecv, Waitall]                  [Isend, …

Who waits for whom, across the streams:

* an edge for the interior of the step before: it reads a row of it, and overwrites what that read;
* the interior for both edges of the step before, for the same reason;
* the reset of the norm for all three kernels of the step before, which add to it;
* an edge for the reset of the norm: or else what it adds may be lost;
* the host for the copies out: then the rows can be sent, and the rows that came before are used up.

What a neighbour's row is needed for first, the next edge, is behind its copy in on one stream.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from gpuscope.benchmarks._harness import (
    CORRUPT,
    Benchmark,
    Result,
    Twin,
    open_ranks,
)
from gpuscope.benchmarks._harness.halo import Stages, slab_halo
from gpuscope.benchmarks._harness.jacobi_ranks import (
    HIGH_PRIORITY,
    MPI_OPTIONS,
    Variant,
    add_mpi_arguments,
    choose_path,
    measure,
)
from gpuscope.benchmarks._harness.stencil import StencilKernels

_BLOCKING = Twin(
    "blocking",
    "the host waits for all kernels, exchanges by Sendrecv, and only then goes on",
    "overlapped: at most 10 % of the transfers hidden",
)
_NO_RESET_EVENT = Twin(
    "no-reset-event",
    "the edges do not wait for the reset of the norm; streams and ranks are skewed",
    "the data check ends the run with exit code 1 and no figures",
    wrong_data=True,
)
_TWIN_SKEW_US = 200


class _Edge:
    """One edge of the slab: its stream, and the events that others wait for."""

    def __init__(self, cp: Any, side: Any, region: Any) -> None:
        self.side = side
        self.region = region
        self.stream = cp.cuda.Stream(non_blocking=True, priority=HIGH_PRIORITY)
        self.computed = cp.cuda.Event(disable_timing=True)
        self.copied_out = cp.cuda.Event(disable_timing=True)


class _Overlapped(Variant):
    """Edges on streams of high priority, the interior on one of low priority."""

    def __init__(self, *arguments: Any, twin: str | None, path: str, skew_us: int) -> None:
        super().__init__(*arguments, skew_us=skew_us)
        cp = self.cp
        self.blocking = twin == _BLOCKING.name
        self.waits_for_reset = twin != _NO_RESET_EVENT.name
        self.edges = [_Edge(cp, side, self.block.edges[side.name]) for side in self.block.sides]
        self.inner = cp.cuda.Stream(non_blocking=True, priority=0)
        self.inner_done = cp.cuda.Event(disable_timing=True)
        self.streams = [self.inner, *(edge.stream for edge in self.edges)]
        self.halo = slab_halo(self.ranks, self.tile, path)
        prepare, size_bytes = self.ranks.session.ranges.prepare, self.halo.sent_bytes
        self.starting = prepare("gs:mpi:Isend", size_bytes)
        self.finishing = prepare("gs:mpi:Waitall", size_bytes)
        self.exchanging = prepare("gs:mpi:Sendrecv", size_bytes)

    def compute(self) -> None:
        self._kernels(-1)

    def exchange(self) -> None:
        self._copy_out(self.tile.now)
        self._exchange(self.tile.now)

    def step(self, index: int) -> None:
        self._kernels(index)
        if self.blocking:
            self._wait_for_all()
        self._copy_out(self.tile.other)
        self._exchange(self.tile.other, index)
        if self.blocking:
            self._wait_for_all()
        self.tile.turn()

    def _kernels(self, index: int) -> None:
        """Issue the three kernels of a step."""
        tile, norm, inner = self.tile, self.tile.norm, self.inner
        for edge in self.edges:
            inner.wait_event(edge.computed)
        self.skew.delay(inner)
        if self.is_due(index - 1):
            norm.copy_out(inner)
        norm.reset(inner)
        for edge in self.edges:
            edge.stream.wait_event(self.inner_done)
            if self.waits_for_reset:
                edge.stream.wait_event(norm.was_reset)
            self.skew.delay(edge.stream)
            tile.step(edge.region, edge.stream)
            edge.computed.record(edge.stream)
        tile.step(self.block.inner, inner)
        self.inner_done.record(inner)

    def _copy_out(self, array: Any) -> None:
        for edge in self.edges:
            self.halo.copy_out(edge.side, array, edge.stream)
            edge.copied_out.record(edge.stream)

    def _exchange(self, array: Any, index: int = -1) -> None:
        """Exchange what was copied out, and issue the copies in."""
        for edge in self.edges:
            edge.copied_out.synchronize()
        self.sum_norm(index)  # the copy out of an edge is behind that of the norm
        halo = self.halo.of(array)
        if self.blocking:
            with self.exchanging:
                halo.exchange()
        else:
            with self.starting:
                halo.start()
            with self.finishing:
                halo.finish()
        for edge in self.edges:
            self.halo.copy_in(edge.side, array, edge.stream)

    def _wait_for_all(self) -> None:
        for stream in self.streams:
            stream.synchronize()

    def finish(self) -> None:
        self.tile.norm.copy_out(self.inner)  # the host has seen the edges

    def stages(self) -> Stages:
        edge, tile = self.edges[0], self.tile
        return {
            "inner_ns": (self.inner, lambda: tile.step(self.block.inner, self.inner)),
            "edge_ns": (edge.stream, lambda: tile.step(edge.region, edge.stream)),
            **self.halo.stages(edge.side, tile.now, edge.stream),
        }


def _run(arguments: argparse.Namespace) -> Result:
    """Run the benchmark."""
    twin = None if arguments.twin is None else BENCHMARK.twin(arguments.twin).name
    skew_us = arguments.skew_us
    if skew_us is None:
        skew_us = _TWIN_SKEW_US if twin == _NO_RESET_EVENT.name else 0
    with open_ranks(BENCHMARK.name, least=1, oversubscribe=arguments.oversubscribe) as ranks:
        kernels, path = StencilKernels(ranks.session.cp), choose_path(ranks, arguments)
        return measure(
            ranks,
            arguments,
            benchmark=BENCHMARK.name,
            pass_name="overlapped",
            make=partial(_Overlapped, ranks, kernels, twin=twin, skew_us=skew_us, path=path),
            cut_columns=False,
            overlapping=twin != _BLOCKING.name,
            further={"path": path},
        )


BENCHMARK = Benchmark(
    name="jacobi-mpi-overlap",
    summary="a stencil on several GPUs whose edges travel while the interior is computed",
    options=MPI_OPTIONS,
    needs="2 GPUs, MPI",
    twins=(_BLOCKING, _NO_RESET_EVENT, CORRUPT),
    add_arguments=add_mpi_arguments,
    run=_run,
    ranks=True,
)
