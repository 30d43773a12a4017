"""NCCL's collectives: how each is called, what it must leave, and what its rate means.

`size` is that of the whole: what an all-reduce adds up, what an all-gather collects, what a
reduce-scatter cuts up. The algorithm's bandwidth is size over time; the bus bandwidth is what a
link carries one way, by the factors of NCCL's own tests: ::

    all-reduce        2 (n - 1) / n      each byte goes out once to be added, and once as the sum
    all-gather,
    reduce-scatter      (n - 1) / n      1 / n of the data is where it must be already
    others                        1
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpuscope.benchmarks._harness.data import raise_if_wrong

FLOAT32 = 7
"""``ncclFloat32``."""
SUM = 0
"""``ncclSum``."""
ROOT = 0
ELEMENT_BYTES = 4
_THREADS = 256
_ALIGNMENT = 64
"""Elements; NCCL copies 16 bytes at a time from where that is possible."""
_POISON = float("nan")

_SOURCE = r"""
// 16 bits that depend on the position, the turn and the rank: sums over 256 ranks are exact.
__device__ unsigned value(unsigned long long position, unsigned turn, unsigned rank) {
    unsigned long long x = position + 0x9E3779B97F4A7C15ull * (turn * 1024ull + rank + 1);
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return (unsigned)(x >> 48);
}
extern "C" __global__ void gs_message(float* data, unsigned count, unsigned long long first,
                                      unsigned turn, unsigned rank) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) data[i] = (float)value(first + i, turn, rank);
}
// Counts the elements that are not the sum over the ranks from `begin` to `end`. NaN counts.
extern "C" __global__ void gs_message_check(const float* data, unsigned count,
                                            unsigned long long first, unsigned turn,
                                            unsigned begin, unsigned end,
                                            unsigned long long* wrong) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    unsigned sum = 0;
    for (unsigned rank = begin; rank < end; ++rank) sum += value(first + i, turn, rank);
    if (!(data[i] == (float)sum)) atomicAdd(wrong, 1ull);
}
"""


@dataclass(frozen=True, slots=True)
class Part:
    """What a stretch of the received data must be: the sum over ranks of what they sent."""

    begin: int
    """Where in what was received, in elements."""
    count: int
    first: int
    """Position of the first element in what was sent."""
    ranks: range


class Call(NamedTuple):
    """One call of an operation on one rank."""

    communicator: Any
    sent: int
    """Address of what is sent; `received` is where to receive."""
    received: int
    elements: int
    """Of the whole."""
    rank: int
    ranks: int
    stream: int


@dataclass(frozen=True, slots=True)
class Collective:
    """One operation.

    ``parts`` takes the elements of the whole, this rank and how many there are, and says what this
    rank must have received.
    """

    name: str
    function: str
    """NCCL's name without ``nccl``."""
    bus_factor: Callable[[int], float]
    issue: Callable[[Call], None]
    parts: Callable[[int, int, int], list[Part]]


def _all_reduce(call: Call) -> None:
    arguments = (call.sent, call.received, call.elements, FLOAT32, SUM, call.stream)
    call.communicator.allReduce(*arguments)


def _broadcast(call: Call) -> None:
    arguments = (call.sent, call.received, call.elements, FLOAT32, ROOT, call.stream)
    call.communicator.broadcast(*arguments)


def _reduce(call: Call) -> None:
    arguments = (call.sent, call.received, call.elements, FLOAT32, SUM, ROOT, call.stream)
    call.communicator.reduce(*arguments)


def _reduce_scatter(call: Call) -> None:
    arguments = (call.sent, call.received, call.elements // call.ranks, FLOAT32, SUM, call.stream)
    call.communicator.reduceScatter(*arguments)


def _all_gather(call: Call) -> None:
    arguments = (call.sent, call.received, call.elements // call.ranks, FLOAT32, call.stream)
    call.communicator.allGather(*arguments)


def _send_recv(call: Call) -> None:
    after, before = (call.rank + 1) % call.ranks, (call.rank - 1) % call.ranks
    with group():
        call.communicator.send(call.sent, call.elements, FLOAT32, after, call.stream)
        call.communicator.recv(call.received, call.elements, FLOAT32, before, call.stream)


@contextmanager
def group() -> Iterator[None]:
    """Issue the NCCL calls of the block together, at its end."""
    from cupy.cuda import nccl

    nccl.groupStart()
    try:
        yield
    finally:
        nccl.groupEnd()


def _once(ranks: int) -> float:
    return 1.0


def _others(ranks: int) -> float:
    return (ranks - 1) / ranks


def _twice_others(ranks: int) -> float:
    return 2 * _others(ranks)


def _sum_everywhere(count: int, rank: int, ranks: int) -> list[Part]:
    return [Part(0, count, 0, range(ranks))]


def _of_root(count: int, rank: int, ranks: int) -> list[Part]:
    return [Part(0, count, 0, range(ROOT, ROOT + 1))]


def _sum_at_root(count: int, rank: int, ranks: int) -> list[Part]:
    return _sum_everywhere(count, rank, ranks) if rank == ROOT else []


def _own_part(count: int, rank: int, ranks: int) -> list[Part]:
    return [Part(0, count // ranks, rank * (count // ranks), range(ranks))]


def _all_parts(count: int, rank: int, ranks: int) -> list[Part]:
    part = count // ranks
    return [Part(source * part, part, 0, range(source, source + 1)) for source in range(ranks)]


def _of_neighbour(count: int, rank: int, ranks: int) -> list[Part]:
    before = (rank - 1) % ranks
    return [Part(0, count, 0, range(before, before + 1))]


COLLECTIVES = (
    Collective("all-reduce", "AllReduce", _twice_others, _all_reduce, _sum_everywhere),
    Collective("broadcast", "Broadcast", _once, _broadcast, _of_root),
    Collective("reduce", "Reduce", _once, _reduce, _sum_at_root),
    Collective("reduce-scatter", "ReduceScatter", _others, _reduce_scatter, _own_part),
    Collective("all-gather", "AllGather", _others, _all_gather, _all_parts),
    Collective("send-recv", "SendRecv", _once, _send_recv, _of_neighbour),
)
"""All operations; sent and received is to the next rank and from the one before."""


def elements_of(size_bytes: int, ranks: int) -> int:
    """Return the elements of a whole of this size, rounded up so that each rank has as many."""
    return -(-size_bytes // (ELEMENT_BYTES * ranks)) * ranks


class MessageData:
    """Fills what is sent with numbers of a turn and a rank, and checks what was received."""

    def __init__(self, cp: Any) -> None:
        self._cp = cp
        self._fill = cp.RawKernel(_SOURCE, "gs_message")
        self._check = cp.RawKernel(_SOURCE, "gs_message_check")

    def fill(self, data: Any, turn: int, rank: int, first: int = 0) -> None:
        """Write what `rank` sends in this turn to a device array, from position `first` on."""
        import numpy as np

        arguments = (data, np.uint32(data.size), np.uint64(first), np.uint32(turn), np.uint32(rank))
        self._fill((-(-data.size // _THREADS),), (_THREADS,), arguments)

    def check(self, received: Any, parts: Sequence[Part], turn: int, what: str) -> None:
        """Compare what was received with what must have been.

        Raises
        ------
        ProgramError
            Elements differ; the message begins with :data:`WRONG_DATA`.
        """
        import numpy as np

        wrong = self._cp.zeros(max(1, len(parts)), np.uint64)
        for number, part in enumerate(parts):
            arguments = (
                received[part.begin : part.begin + part.count],
                np.uint32(part.count),
                np.uint64(part.first),
                np.uint32(turn),
                np.uint32(part.ranks.start),
                np.uint32(part.ranks.stop),
                wrong[number:],
            )
            self._check((-(-part.count // _THREADS),), (_THREADS,), arguments)
        total = sum(part.count for part in parts)
        raise_if_wrong(wrong.get().tolist(), total, f"{what} part")


class Buffers:
    """What is sent, and for each of several messages a place to receive it."""

    def __init__(self, cp: Any, sent: int, received: Sequence[int]) -> None:
        """Make them for so many elements; a place starts where NCCL copies fast."""
        import numpy as np

        self._cp = cp
        self.data = MessageData(cp)
        self.sent = cp.empty(sent, np.float32)
        self._places = []
        begin = 0
        for count in received:
            self._places.append((begin, count))
            begin += -(-count // _ALIGNMENT) * _ALIGNMENT
        self._received = cp.empty(begin, np.float32)

    @staticmethod
    def bytes_for(sent: int, received: Sequence[int]) -> int:
        """Return the memory that such buffers take."""
        return ELEMENT_BYTES * (sent + sum(received) + _ALIGNMENT * len(received))

    def place(self, number: int) -> Any:
        """Return where message `number` is received."""
        begin, count = self._places[number]
        return self._received[begin : begin + count]

    def renew(self, numbers: Sequence[int], turn: int, rank: int, stream: Any) -> None:
        """Write what is sent in a turn, and poison where messages `numbers` are received."""
        with stream:
            self.data.fill(self.sent, turn, rank)
            for number in numbers:
                self.place(number).fill(_POISON)
        stream.synchronize()
