"""A rank of the Jacobi benchmarks themselves, on a simulated GPU, over a real MPI.

`variants.py ROWS COLUMNS`. Every schedule is done in several orders, for periodic and open ends,
with a fixed number of steps and until the norm is small enough; rank 0 says which agreed.
"""

import math
import sys
from functools import partial

import numpy as np
from mpi4py import MPI

from gpuscope.benchmarks._harness.decomposition import choose_split, cut
from gpuscope.benchmarks._harness.jacobi_ranks import Variant, start_variant
from gpuscope.benchmarks._harness.ranks import Ranks
from gpuscope.benchmarks._harness.stencil import prove_tile, reference_step
from gpuscope.benchmarks.jacobi_2d import _Blocks
from gpuscope.benchmarks.jacobi_mpi import _Serialized
from gpuscope.benchmarks.jacobi_mpi_overlap import _Overlapped
from tests.simulated_gpu import SimulatedGpu, SimulatedKernels, session

STEPS = 7
EVERY = 2
grid = int(sys.argv[1]), int(sys.argv[2])
ranks = Ranks(MPI, MPI.COMM_WORLD)


def prove(variant: Variant, before: int) -> None:
    """Hold the grid and the norms since step `before` against NumPy's."""
    norms = {**variant.totals, variant.tile.steps_done - before - 1: variant.total_norm()}
    prove_tile(variant.tile, {before + step: norm for step, norm in norms.items()})


def norms_of_one(steps: int, *, periodic: bool) -> list[float]:
    """Return the norm of each step on the whole grid."""
    gpu = SimulatedGpu(0)
    start = gpu.empty(grid, np.float32)
    SimulatedKernels(gpu).start(start)
    whole = start.get()
    found = []
    for _ in range(steps):
        whole, norm = reference_step(whole, periodic=periodic)
        found.append(math.sqrt(norm))
    return found


for make, cut_columns in (
    (partial(_Serialized, skew_us=0, path="staged"), False),
    (partial(_Serialized, skew_us=0, path="device"), False),
    (partial(_Overlapped, twin=None, skew_us=0, path="staged"), False),
    (partial(_Overlapped, twin="blocking", skew_us=0, path="device"), False),
    (partial(_Blocks, twin=None, skew_us=0, path="device"), True),
    (partial(_Blocks, twin="pack-on-compute-stream", skew_us=0, path="staged"), True),
):
    for periodic in (True, False):
        one = norms_of_one(12, periodic=periodic)
        for seed in range(3):
            gpu = SimulatedGpu(100 * seed + ranks.rank)  # the ranks are skewed, too
            ranks.session = session(gpu)
            split = choose_split(ranks.size, grid) if cut_columns else (ranks.size, 1)
            block = cut(grid, split, ranks.rank, periodic=periodic)
            own = partial(make, ranks, SimulatedKernels(gpu))
            variant = start_variant(own, block, EVERY)
            variant.run(STEPS)
            prove(variant, 0)
            # Norms fall: the first that is looked at and no more than that of step 3 is of step 4.
            variant = start_variant(own, block, EVERY)
            assert variant.solve(one[3]) == 4 + variant.norm_lag + 1
            prove(variant, 0)
    ranks.barrier()
    if ranks.rank == 0:
        print("as one", flush=True)
