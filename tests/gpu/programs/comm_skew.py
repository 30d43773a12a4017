"""Two ranks, each with a GPU: one computes longer before every sum, and the other's kernel spins.

A sum is needed two kernels later, so that it runs beside the kernel in between: with equal work
nothing waits. Run by mpirun with two ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import cupy as cp
from cupy.cuda import nccl
from mpi4py import MPI

from tests.gpu.programs._parts import MIB, MS, Gpu, phase, record

STEPS = 8
COUNT = 16 * MIB
"""Floats in a sum."""


def main() -> None:
    world = MPI.COMM_WORLD
    cp.cuda.Device(world.rank).use()
    number = world.bcast(nccl.get_unique_id() if world.rank == 0 else None)
    communicator = nccl.NcclCommunicator(world.size, number, world.rank)
    gpu = Gpu(size_bytes=4 * COUNT, chunks=2)
    computing, sending = (cp.cuda.Stream(non_blocking=True) for _ in range(2))
    computed, summed = ([cp.cuda.Event(disable_timing=True) for _ in range(2)] for _ in range(2))

    def steps(name: str, lengths_ns: Sequence[int]) -> None:
        world.Barrier()
        with phase(name):
            for step in range(STEPS):
                turn = step % 2
                if step >= 2:
                    computing.wait_event(summed[turn])
                gpu.kernel(computing, lengths_ns[world.rank])
                computed[turn].record(computing)
                sending.wait_event(computed[turn])
                data = gpu.buffers[turn].ptr
                communicator.allReduce(
                    data, data, COUNT, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, sending.ptr
                )
                summed[turn].record(sending)

    record(lambda: steps("comm_skew", (MS, 3 * MS)), lambda: steps("repaired", (2 * MS, 2 * MS)))


if __name__ == "__main__":
    main()
