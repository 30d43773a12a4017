"""A rank of the stencil in NumPy: the benchmarks' decomposition, halo and norm, without a GPU.

`stencil.py ROWS COLUMNS DOWN ACROSS STEPS`. Every rank compares its block and the norm of each step
with the whole grid, for periodic and open ends, exchanged at once and while the inner points are
done; each time that they agree, rank 0 says so.
"""

import sys
from typing import Any

import numpy as np
from mpi4py import MPI

from gpuscope.benchmarks._harness.decomposition import Block, Region, cut
from gpuscope.benchmarks._harness.halo import Halo, NormSum
from gpuscope.benchmarks._harness.stencil import reference_step

world = MPI.COMM_WORLD
rows, columns, down, across, steps = map(int, sys.argv[1:])


def beginning(block: Block, whole: Any) -> Any:
    """Return the block's array, whose halo is what the neighbours begin with."""
    ys = np.arange(block.first_row - 1, block.first_row + block.rows + 1) % rows
    xs = np.arange(block.columns + 2 * block.margin) + block.first_column - block.margin
    return whole[np.ix_(ys, xs % columns)]


def update(now: Any, after: Any, region: Region) -> float:
    """Do one step on a region of the block; return the norm of it."""
    if not region.points:
        return 0.0
    y, x = region.slices
    up, below = (now[y.start + by : y.stop + by, x] for by in (-1, 1))
    left, right = (now[y, x.start + by : x.stop + by] for by in (-1, 1))
    after[y, x] = np.float32(0.25) * (((up + below) + left) + right)
    change = after[y, x].astype(float) - now[y, x].astype(float)
    return float(np.sum(change * change))


def run(periodic: bool, overlapped: bool) -> None:
    """Do the steps, and compare."""
    block = cut((rows, columns), (down, across), world.Get_rank(), periodic=periodic)
    whole = np.random.default_rng(5).random(block.grid, np.float32)
    now = beginning(block, whole)
    after = now.copy()
    sides = block.sides
    outgoing, incoming = (
        {side.name: np.empty(side.sends.points, np.float32) for side in sides} for _ in range(2)
    )
    halo, norms = Halo(MPI, world, sides, outgoing, incoming), NormSum(world)
    before: float | None = None
    for _ in range(steps):
        whole, expected = reference_step(whole, periodic=periodic)
        mine = sum(update(now, after, region) for region in block.edges.values())
        for side in sides:
            outgoing[side.name][...] = after[side.sends.slices].reshape(-1)
        if overlapped:
            halo.start()
            mine += update(now, after, block.inner)
            halo.finish()
            found = norms.finish()  # of the step before: it was on its way meanwhile
            assert (found is None) == (before is None)
            if found is not None and before is not None:
                assert np.isclose(found, before, rtol=1e-12)
            norms.start(mine)
            before = expected
        else:
            mine += update(now, after, block.inner)
            halo.exchange()
            norms.start(mine)
            total = norms.finish()
            assert total is not None
            assert np.isclose(total, expected, rtol=1e-12)
        for side in sides:
            after[side.receives.slices] = incoming[side.name].reshape(side.receives.shape)
        now, after = after, now
    norms.finish()
    assert np.array_equal(now[block.own.slices], whole[block.place.slices])


for periodic in (True, False):
    for overlapped in (True, False):
        run(periodic, overlapped)
        world.Barrier()
        if world.Get_rank() == 0:
            print(f"as one: {periodic=} {overlapped=}", flush=True)
