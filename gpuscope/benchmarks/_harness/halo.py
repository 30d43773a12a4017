"""The halo of a block, exchanged with its neighbours over MPI, and the norm summed over ranks.

The buffers are NumPy arrays, or arrays on the GPU where the MPI can send those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuscope.benchmarks._harness.decomposition import SIDES, Side


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
