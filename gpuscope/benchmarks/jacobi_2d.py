"""``jacobi-2d``: blocks instead of slabs, whose columns must be packed before they can travel.

Rows and columns of the grid are cut, so that each rank has less edge to exchange. A column does not
lie in one piece: a kernel packs all edges into one buffer, and another unpacks what has come. ::

    edge     [4 edges][pack][d2h]                     [h2d][unpack][4 edges]    high priority
    inner    [reset][step ======================================]  [reset][step =====  low priority
    host                         [Isend, Irecv, Waitall]

The edges, the copies and both kernels for packing are on one stream: each needs what is before it.
Across the streams the waits are those of ``jacobi-mpi-overlap``.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from gpuscope.benchmarks._harness import CORRUPT, Benchmark, Result, Twin, open_ranks
from gpuscope.benchmarks._harness.gpu import pinned_array
from gpuscope.benchmarks._harness.halo import (
    DEVICE,
    STAGED,
    Halo,
    Stages,
    copy_to_device,
    copy_to_host,
)
from gpuscope.benchmarks._harness.jacobi_ranks import (
    HIGH_PRIORITY,
    MPI_OPTIONS,
    Variant,
    add_mpi_arguments,
    choose_path,
    measure,
)
from gpuscope.benchmarks._harness.stencil import StencilKernels, Strips

_ON_COMPUTE = Twin(
    "pack-on-compute-stream",
    "packing, copies and unpacking are on the stream of the interior",
    "overlapped: at most 10 % of the transfers hidden",
)


class _Buffers:
    """The edges of one direction: where they lie in the array, on the device, on the host."""

    def __init__(self, cp: Any, regions: list[Any]) -> None:
        self.strips = Strips(cp, regions)
        self.device = cp.empty(self.strips.points, "float32")
        self.host = pinned_array(cp, self.strips.points)

    def parts(self, sides: Any, path: str) -> dict[str, Any]:
        """Return the part of the buffer that each side has, of that which MPI sees."""
        parts = self.strips.parts(self.device if path == DEVICE else self.host)
        return {side.name: part for side, part in zip(sides, parts, strict=True)}


class _Blocks(Variant):
    """Edges, packing and copies on a stream of high priority, the interior on one of low."""

    def __init__(self, *arguments: Any, twin: str | None, path: str, skew_us: int) -> None:
        super().__init__(*arguments, skew_us=skew_us)
        cp, sides = self.cp, self.block.sides
        self.path = path
        self.edge = cp.cuda.Stream(non_blocking=True, priority=HIGH_PRIORITY)
        self.inner = cp.cuda.Stream(non_blocking=True, priority=0)
        self.streams = [self.inner, self.edge]
        self.travel = self.inner if twin == _ON_COMPUTE.name else self.edge
        """The stream of packing and copies."""
        self.edges_done, self.inner_done, self.copied_out, self.unpacked = (
            cp.cuda.Event(disable_timing=True) for _ in range(4)
        )
        self.outgoing = _Buffers(cp, [side.sends for side in sides])
        self.incoming = _Buffers(cp, [side.receives for side in sides])
        self.halo = Halo(
            self.ranks.mpi,
            self.ranks.comm,
            sides,
            self.outgoing.parts(sides, path),
            self.incoming.parts(sides, path),
        )
        prepare = self.ranks.session.ranges.prepare
        self.starting = prepare("gs:mpi:Isend", self.halo.sent_bytes)
        self.finishing = prepare("gs:mpi:Waitall", self.halo.sent_bytes)

    def compute(self) -> None:
        self._kernels(-1)

    def exchange(self) -> None:
        self._pack(self.tile.now)
        self._exchange(self.tile.now, -1)

    def step(self, index: int) -> None:
        self._kernels(index)
        self._pack(self.tile.other)
        self._exchange(self.tile.other, index)
        self.tile.turn()

    def _kernels(self, index: int) -> None:
        """Issue the edges and the interior of a step."""
        tile, norm = self.tile, self.tile.norm
        self.inner.wait_event(self.edges_done)
        self.skew.delay(self.inner)
        if self.is_due(index - 1):
            norm.copy_out(self.inner)
        norm.reset(self.inner)
        for event in (self.inner_done, norm.was_reset, self.unpacked):
            self.edge.wait_event(event)
        self.skew.delay(self.edge)
        for region in self.block.edges.values():
            tile.step(region, self.edge)
        self.edges_done.record(self.edge)
        tile.step(self.block.inner, self.inner)
        self.inner_done.record(self.inner)

    def _pack(self, array: Any) -> None:
        """Issue the packing of all edges, and their copy to the host."""
        kernels, sent = self.tile.kernels, self.outgoing
        self.travel.wait_event(self.edges_done)
        kernels.pack(array, sent.strips, sent.device, self.travel)
        if self.path == STAGED:
            copy_to_host(self.cp, sent.device, sent.host, self.travel)
        self.copied_out.record(self.travel)

    def _exchange(self, array: Any, index: int) -> None:
        """Exchange what was copied out, and issue its copy in and the unpacking."""
        kernels, came = self.tile.kernels, self.incoming
        self.copied_out.synchronize()
        self.sum_norm(index)  # the copy out is behind that of the norm
        with self.starting:
            self.halo.start()
        with self.finishing:
            self.halo.finish()
        if self.path == STAGED:
            copy_to_device(self.cp, came.host, came.device, self.travel)
        kernels.unpack(array, came.strips, came.device, self.travel)
        self.unpacked.record(self.travel)

    def finish(self) -> None:
        self.tile.norm.copy_out(self.inner)  # the host has seen the edges

    def stages(self) -> Stages:
        tile, sent, came, stream = self.tile, self.outgoing, self.incoming, self.edge
        kernels = tile.kernels

        def edges() -> None:
            for region in self.block.edges.values():
                tile.step(region, stream)

        copies: Stages = {
            "d2h_ns": (stream, lambda: copy_to_host(self.cp, sent.device, sent.host, stream)),
            "h2d_ns": (stream, lambda: copy_to_device(self.cp, came.host, came.device, stream)),
        }
        return {
            "inner_ns": (self.inner, lambda: tile.step(self.block.inner, self.inner)),
            "edge_ns": (stream, edges),
            "pack_ns": (stream, lambda: kernels.pack(tile.now, sent.strips, sent.device, stream)),
            **(copies if self.path == STAGED else {}),
            "unpack_ns": (
                stream,
                lambda: kernels.unpack(tile.now, came.strips, came.device, stream),
            ),
        }


def _run(arguments: argparse.Namespace) -> Result:
    """Run the benchmark."""
    twin = None if arguments.twin is None else BENCHMARK.twin(arguments.twin).name
    skew_us = arguments.skew_us or 0
    with open_ranks(BENCHMARK.name, least=1, oversubscribe=arguments.oversubscribe) as ranks:
        kernels, path = StencilKernels(ranks.session.cp), choose_path(ranks, arguments)
        return measure(
            ranks,
            arguments,
            benchmark=BENCHMARK.name,
            pass_name="overlapped",
            make=partial(_Blocks, ranks, kernels, twin=twin, skew_us=skew_us, path=path),
            cut_columns=True,
            overlapping=twin != _ON_COMPUTE.name,
            further={"path": path},
        )


BENCHMARK = Benchmark(
    name="jacobi-2d",
    summary="a stencil cut into blocks: edges are packed and travel beside the interior",
    options=MPI_OPTIONS,
    needs="2 GPUs, MPI",
    twins=(_ON_COMPUTE, CORRUPT),
    add_arguments=add_mpi_arguments,
    run=_run,
    ranks=True,
)
