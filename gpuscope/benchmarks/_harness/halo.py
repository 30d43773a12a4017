"""The halo of a block, exchanged with its neighbours over MPI, and the norm summed over ranks.

The buffers are NumPy arrays, or arrays on the GPU where the MPI can send those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpuscope.benchmarks._harness.decomposition import SIDES, Block, Side
from gpuscope.benchmarks._harness.gpu import pinned_array
from gpuscope.benchmarks._harness.ranks import Ranks
from gpuscope.benchmarks._harness.stencil import Tile

Stages = Mapping[str, tuple[Any, Callable[[], None]]]
"""By name a stream, and what issues one operation of a step to it."""
STAGED, DEVICE = "staged", "device"
"""Paths: through host memory, or by MPI from one GPU's memory to the other's."""


class Halo:
    """Sends what lies in ``outgoing`` to the neighbours, and receives into ``incoming``.

    Both have a buffer for each side that has a neighbour.
    """

    def __init__(
        self,
        mpi: Any,
        comm: Any,
        sides: Sequence[Side],
        outgoing: Mapping[str, Any],
        incoming: Mapping[str, Any],
    ) -> None:
        self._mpi = mpi
        self._comm = comm
        self._sides = {side.name: side for side in sides}
        self.outgoing, self.incoming = dict(outgoing), dict(incoming)
        self._requests: list[Any] = []
        self.sent_bytes = sum(int(buffer.nbytes) for buffer in self.outgoing.values())

    def exchange(self) -> None:
        """Exchange one way after the other, and return when it is done."""
        nobody = self._mpi.PROC_NULL
        for tag, name in enumerate(SIDES):
            # What goes up comes from below.
            to = self._sides.get(name)
            source = next((each for each in self._sides.values() if each.receive_tag == tag), None)
            if to is None and source is None:
                continue
            self._comm.Sendrecv(
                None if to is None else self.outgoing[name],
                dest=nobody if to is None else to.neighbour,
                sendtag=tag,
                recvbuf=None if source is None else self.incoming[source.name],
                source=nobody if source is None else source.neighbour,
                recvtag=tag,
            )

    def start(self) -> None:
        """Start all messages; what is in ``incoming`` must not be needed any more."""
        for side in self._sides.values():
            buffer = self.incoming[side.name]
            self._requests.append(self._comm.Irecv(buffer, side.neighbour, side.receive_tag))
        for side in self._sides.values():
            buffer = self.outgoing[side.name]
            self._requests.append(self._comm.Isend(buffer, side.neighbour, side.send_tag))

    def finish(self) -> None:
        """Wait until all messages have come and gone."""
        self._mpi.Request.Waitall(self._requests)
        self._requests.clear()


class StagedHalo(Halo):
    """The halo of a slab of rows, on its way through page-locked host memory."""

    def of(self, array: Any) -> Halo:
        """Return what exchanges the edges that were copied out of an array."""
        return self

    def __init__(self, ranks: Ranks, block: Block) -> None:
        self._cp = ranks.session.cp
        sides = block.sides
        outgoing, incoming = (
            {side.name: pinned_array(self._cp, side.sends.points) for side in sides}
            for _ in range(2)
        )
        super().__init__(ranks.mpi, ranks.comm, sides, outgoing, incoming)

    def copy_out(self, side: Side, array: Any, stream: Any) -> None:
        """Issue the copy of the row that a neighbour needs to the host."""
        row = array[side.sends.slices]
        copy_to_host(self._cp, row, self.outgoing[side.name], stream)

    def copy_in(self, side: Side, array: Any, stream: Any) -> None:
        """Issue the copy of the row that has come from a neighbour to its place in the halo."""
        row = array[side.receives.slices]
        copy_to_device(self._cp, self.incoming[side.name], row, stream)

    def stages(self, side: Side, array: Any, stream: Any) -> Stages:
        """Return the copies of one side, to time alone."""
        return {
            "d2h_ns": (stream, lambda: self.copy_out(side, array, stream)),
            "h2d_ns": (stream, lambda: self.copy_in(side, array, stream)),
        }


class DeviceHalo:
    """The halo of a slab of rows, sent from the GPU's memory and received into it by MPI itself."""

    def __init__(self, ranks: Ranks, tile: Tile) -> None:
        sides = tile.block.sides
        self._halos = {
            array.data.ptr: Halo(
                ranks.mpi,
                ranks.comm,
                sides,
                {side.name: array[side.sends.slices] for side in sides},
                {side.name: array[side.receives.slices] for side in sides},
            )
            for array in (tile.now, tile.other)
        }
        self.sent_bytes = self.of(tile.now).sent_bytes

    def of(self, array: Any) -> Halo:
        """Return what exchanges the edges of an array."""
        return self._halos[array.data.ptr]

    def copy_out(self, side: Side, array: Any, stream: Any) -> None:
        """Copy nothing: MPI takes the row from where it is."""

    def copy_in(self, side: Side, array: Any, stream: Any) -> None:
        """Copy nothing: MPI has put the row where it belongs."""

    def stages(self, side: Side, array: Any, stream: Any) -> Stages:
        """Return nothing: there is no copy to time."""
        return {}


def slab_halo(ranks: Ranks, tile: Tile, path: str) -> StagedHalo | DeviceHalo:
    """Return the halo of a slab of rows that goes by a path."""
    return DeviceHalo(ranks, tile) if path == DEVICE else StagedHalo(ranks, tile.block)


def copy_to_host(cp: Any, source: Any, target: Any, stream: Any) -> None:
    """Issue the copy of an array on the device to one on the host of the same size."""
    runtime = cp.cuda.runtime
    runtime.memcpyAsync(
        target.ctypes.data,
        source.data.ptr,
        target.nbytes,
        runtime.memcpyDeviceToHost,
        stream.ptr,
    )


def copy_to_device(cp: Any, source: Any, target: Any, stream: Any) -> None:
    """Issue the copy of an array on the host to one on the device of the same size."""
    runtime = cp.cuda.runtime
    runtime.memcpyAsync(
        target.data.ptr,
        source.ctypes.data,
        source.nbytes,
        runtime.memcpyHostToDevice,
        stream.ptr,
    )


class NormSum:
    """The norm of all ranks: one sum is on its way while the next steps are done."""

    def __init__(self, comm: Any) -> None:
        import numpy as np

        self._comm = comm
        self._mine, self._all = np.zeros(1), np.zeros(1)
        self._request: Any = None

    def start(self, mine: float) -> None:
        """Start to add up the sums of all ranks; this one's is `mine`."""
        self._mine[0] = mine
        self._request = self._comm.Iallreduce(self._mine, self._all)

    def finish(self) -> float | None:
        """Wait for the sum that is on its way, and return it: the same on every rank.

        None where none was started.
        """
        if self._request is None:
            return None
        self._request.Wait()
        self._request = None
        return float(self._all[0])
