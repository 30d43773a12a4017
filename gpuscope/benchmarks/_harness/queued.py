"""Steps of the stencil that are all issued ahead: the GPUs do them, and the host waits for none.

What carries rows to the neighbours works on a stream, as NCCL and NVSHMEM do. ::

    serialized   [step ======][exchange][step ======][exchange] …          one stream

    overlapped   [edges][exchange ===] [edges][exchange ===] [edges] …     high priority
                 [inner rows =========][inner rows =========][inner …      low priority

    same-stream  [edges][exchange][inner rows][edges][exchange] …          one stream

    event-chain  [edges][exchange]             [edges][exchange]           high priority
                                  [inner rows]                  …          low priority: it waits
                                                                           for the exchange
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from gpuscope.benchmarks._harness.decomposition import Region
from gpuscope.benchmarks._harness.halo import Stages
from gpuscope.benchmarks._harness.jacobi_ranks import HIGH_PRIORITY, Variant
from gpuscope.benchmarks._harness.stencil import Norm

SERIALIZED, OVERLAPPED, SAME_STREAM, CHAINED = (
    "serialized",
    "overlapped",
    "same-stream",
    "event-chain",
)


class Queued(Variant):
    """A rank's steps, issued in one of the orders above.

    ``high`` and ``low`` are its streams. The inner rows of a step read the edges of the step
    before; the edges read the inner rows of the step before. So each stream waits for the other
    once a step, and for no more. Two sums of the norm take turns: what a step adds up is copied out
    and reset while the next one adds to the other.
    """

    waits = False

    def __init__(self, *arguments: Any, order: str, skew_us: int) -> None:
        super().__init__(*arguments, skew_us=skew_us)
        stream, event = self.cp.cuda.Stream, self.cp.cuda.Event
        self.high = stream(non_blocking=True, priority=HIGH_PRIORITY)
        self.low = stream(non_blocking=True, priority=0)
        self.streams = [self.high, self.low]
        self.order = order
        self.inner_done = event(disable_timing=True)
        self.edges_done = event(disable_timing=True)
        self.exchanged = event(disable_timing=True)
        self.looked_at = event(disable_timing=True)
        self.next_norm = Norm(self.cp)
        """Reset already; ``tile.norm`` has what the last step added up."""
        self.copied = self.tile.norm
        """Which of the two was copied out last."""
        self.norm_lag = self.norm_every + 2
        self.looking = False

    @abstractmethod
    def carry(self, array: Any, stream: Any) -> None:
        """Issue the exchange of the edges of `array`: into its halo come the neighbours'."""

    def edges(self, stream: Any) -> None:
        """Issue the step on the rows that neighbours need."""
        for region in self.block.edges.values():
            self.tile.step(region, stream)

    def boundary(self, stream: Any) -> None:
        """Issue the step on the edges, and what carries them to the neighbours."""
        self.edges(stream)
        self.edges_done.record(stream)
        self.carry(self.tile.other, stream)

    def after_exchange(self, stream: Any) -> None:
        """Issue what a twin adds behind the exchange."""

    def compute(self) -> None:
        self.tile.norm.reset(self.high)
        self.tile.step(self.block.written, self.high)

    def exchange(self) -> None:
        self.carry(self.tile.now, self.high)

    def step(self, index: int) -> None:
        if self.order == SERIALIZED:
            self.skew.delay(self.high)
            self._norm(index)
            self.tile.step(self.block.written, self.high)
            self.carry(self.tile.other, self.high)
        else:
            low = self.high if self.order == SAME_STREAM else self.low
            low.wait_event(self.edges_done)  # of the step before
            self.high.wait_event(self.inner_done)
            self.skew.delay(self.high)
            self._norm(index)
            self.boundary(self.high)
            self.after_exchange(self.high)
            if self.order == CHAINED:
                self.exchanged.record(self.high)
                low.wait_event(self.exchanged)
            self.skew.delay(low)
            self.tile.step(self.block.inner, low)
            self.inner_done.record(low)
        self.tile.turn()

    def _norm(self, index: int) -> None:
        """Issue the copy of the last step's norm, if it is looked at, and its reset.

        The host looks at a copy when the next is issued. Its sum over all ranks is on its way while
        another step is issued.
        """
        total = self.norm_sum.finish()
        if total is not None:
            self.totals[index - self.norm_lag] = total
        norm = self.tile.norm
        if self.is_due(index - 1):
            if self.looking and index > self.norm_every:
                self.looked_at.synchronize()
                self.norm_sum.start(float(self.copied.host[0]))
            norm.copy_out(self.high)
            self.copied = norm
            self.looked_at.record(self.high)
        norm.reset(self.high)
        self.tile.norm, self.next_norm = self.next_norm, norm

    def finish(self) -> None:
        self.high.wait_event(self.inner_done)
        self.tile.norm.copy_out(self.high)

    def solve(self, tolerance: float) -> int:
        """Do steps until the norm is within the tolerance; return how many it took.

        The host looks at each norm when as many steps have been issued behind it as lie between two
        looks, so that the GPU does not run dry.
        """
        self.looking = True
        try:
            return super().solve(tolerance)
        finally:
            self.looking = False

    def stages(self) -> Stages:
        stream = self.high
        return {
            "inner_ns": (stream, lambda: self.tile.step(self.block.inner, stream)),
            "edge_ns": (stream, lambda: self.edges(stream)),
        }


class NcclSteps(Queued):
    """The neighbours' rows come by NCCL: one group of sends and receives, which is one kernel."""

    def __init__(self, *arguments: Any, communicator: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        from cupy.cuda import nccl

        self.nccl, self.communicator = nccl, communicator
        sides = self.block.sides
        sent_bytes = sum(4 * side.sends.points for side in sides)
        self.sending = self.ranks.session.ranges.prepare("gs:nccl:SendRecv", sent_bytes)
        # Two ranks send each other two rows: what goes up first comes from below first.
        self.receiving = sorted(sides, key=lambda side: side.receive_tag)

    def carry(self, array: Any, stream: Any) -> None:
        communicator, kind = self.communicator, self.nccl.NCCL_FLOAT32
        with self.sending:
            self.nccl.groupStart()
            for side in self.block.sides:
                row = address(array, side.sends)
                communicator.send(row, side.sends.points, kind, side.neighbour, stream.ptr)
            for side in self.receiving:
                row = address(array, side.receives)
                communicator.recv(row, side.receives.points, kind, side.neighbour, stream.ptr)
            self.nccl.groupEnd()


def address(array: Any, region: Region) -> int:
    """Return where a region of an array begins on the device."""
    rows, columns = array.strides
    return int(array.data.ptr + region.row * rows + region.column * columns)
