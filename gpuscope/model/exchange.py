"""What is known of the communication kernels of a trace: what each moved, who waited for whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpuscope.model.tables import Int32, Int64

UNKNOWN = -1
"""What is not known of an operation."""


@dataclass(frozen=True, slots=True)
class Clock:
    """How a trace's clock stands to that of the first rank.

    By the ends of matched kernels, or else by MPI's collectives.
    """

    offset_ns: int
    """What to add to this trace's UTC times to get the first rank's: the median difference."""
    residual_ns: int
    """Median distance of the ends from each other once the offset is applied.

    By collectives: how far off the offset can be at most.
    """
    worst_ns: int
    """The largest such distance."""
    matched: int
    """Number of kernels, or collectives, compared."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """Communication kernels, an entry an operation of the trace; UNKNOWN where nothing is known."""

    calls: Int32
    """What NCCL was asked for, by number in `call_texts`."""
    call_texts: tuple[str, ...]
    """Such as ``ncclAllReduce``, or ``ncclRecv + ncclSend`` for a group."""
    size_bytes: Int64
    """Bytes of the messages, from the payload of NCCL's NVTX ranges."""
    peer: Int32
    """The only peer or root, from the payload."""
    communicator: Int64
    """The only communicator, from the payload: a hash of 64 bits, here with a sign."""
    transfer_ns: Int64
    """How long the data took, at the end of the kernel."""
    estimated: bool
    """The transfer is the shortest of equal operation and bytes on one rank, not over the ranks."""
    late: Int32
    """Which rank arrived last, by number in `ranks`."""
    late_ns: Int64
    """How much later it arrived than the first one."""
    ranks: tuple[str, ...]
    """The ranks that were matched; empty where there was nothing to match."""
    rank_numbers: tuple[int, ...]
    """Their numbers, or positions where they do not tell them."""
    clocks: Mapping[int, Clock]
    """Of each device (index into Trace.devices) that was matched.

    By MPI's collectives processes without a device have one too, at UNKNOWN.
    """
    reason: str | None
    """Why ranks, or some of the kernels, were not matched."""

    @classmethod
    def unknown(cls, operations: int) -> Exchange:
        """Return the exchange of a trace with so many operations and no communication kernels."""
        nothing: Int64 = np.broadcast_to(np.int64(UNKNOWN), operations)
        number = nothing.astype(np.int32)
        return cls(
            calls=number,
            call_texts=(),
            size_bytes=nothing,
            peer=number,
            communicator=nothing,
            transfer_ns=nothing,
            estimated=False,
            late=number,
            late_ns=nothing,
            ranks=(),
            rank_numbers=(),
            clocks={},
            reason=None,
        )
