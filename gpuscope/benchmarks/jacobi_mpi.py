"""``jacobi-mpi``: the stencil on several GPUs, first computed, then exchanged.

The grid is cut into slabs of rows, one a rank. A step is done on the whole slab, and then the first
and the last row are copied out; when the host has seen that, they go to the neighbours by MPI. ::

    GPU     [step ============][d2h]            [h2d][step ============][d2h]
    host                            [Sendrecv ×2]                            [Sendrecv ×2]

Nothing overlaps, and nothing should: this is what ``jacobi-mpi-overlap`` improves on.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from gpuscope.benchmarks._harness import CORRUPT, Benchmark, Result, open_ranks
from gpuscope.benchmarks._harness.halo import Stages, slab_halo
from gpuscope.benchmarks._harness.jacobi_ranks import (
    MPI_OPTIONS,
    Variant,
    add_mpi_arguments,
    choose_path,
    measure,
)
from gpuscope.benchmarks._harness.stencil import StencilKernels


class _Serialized(Variant):
    """One stream, and the host waits for it."""

    def __init__(self, *arguments: Any, path: str, skew_us: int) -> None:
        super().__init__(*arguments, skew_us=skew_us)
        self.stream = self.cp.cuda.Stream(non_blocking=True)
        self.streams = [self.stream]
        self.halo = slab_halo(self.ranks, self.tile, path)
        self.exchanging = self.ranks.session.ranges.prepare("gs:mpi:Sendrecv", self.halo.sent_bytes)

    def compute(self) -> None:
        self.skew.delay(self.stream)
        self.tile.norm.reset(self.stream)
        self.tile.step(self.block.written, self.stream)

    def exchange(self) -> None:
        self._exchange(self.tile.now)

    def step(self, index: int) -> None:
        tile = self.tile
        if self.is_due(index - 1):
            tile.norm.copy_out(self.stream)
        self.compute()
        self._exchange(tile.other, index)
        tile.turn()

    def _exchange(self, array: Any, index: int = -1) -> None:
        sides = self.block.sides
        for side in sides:
            self.halo.copy_out(side, array, self.stream)
        self.stream.synchronize()
        self.sum_norm(index)  # its copy out, too, is done
        with self.exchanging:
            self.halo.of(array).exchange()
        for side in sides:
            self.halo.copy_in(side, array, self.stream)

    def finish(self) -> None:
        self.tile.norm.copy_out(self.stream)

    def stages(self) -> Stages:
        (side, *_) = self.block.sides
        stream = self.stream
        return {
            "inner_ns": (stream, lambda: self.tile.step(self.block.inner, stream)),
            "edge_ns": (stream, lambda: self.tile.step(self.block.edges[side.name], stream)),
            **self.halo.stages(side, self.tile.now, stream),
        }


def _run(arguments: argparse.Namespace) -> Result:
    """Run the benchmark."""
    if arguments.twin is not None:
        BENCHMARK.twin(arguments.twin)
    with open_ranks(BENCHMARK.name, least=1, oversubscribe=arguments.oversubscribe) as ranks:
        kernels, path = StencilKernels(ranks.session.cp), choose_path(ranks, arguments)
        skew_us = arguments.skew_us or 0
        return measure(
            ranks,
            arguments,
            benchmark=BENCHMARK.name,
            pass_name="serialized",
            make=partial(_Serialized, ranks, kernels, skew_us=skew_us, path=path),
            cut_columns=False,
            overlapping=False,
            further={"path": path},
        )


BENCHMARK = Benchmark(
    name="jacobi-mpi",
    summary="a stencil on several GPUs: compute, then exchange through MPI",
    options=MPI_OPTIONS,
    needs="2 GPUs, MPI",
    twins=(CORRUPT,),
    add_arguments=add_mpi_arguments,
    run=_run,
    ranks=True,
)
