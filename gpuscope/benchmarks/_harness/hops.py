"""Messages there and back between two GPUs, by copies and by flags in each other's memory.

A chain of copies in the same two buffers: each waits for the one before, since one stream has them
all, or since the next is issued behind it::

    0→1  [hop 0]       [hop 2]       [hop 4]
    1→0         [hop 1]       [hop 3]       …

The first hops are not timed: a GPU that waited at the gate takes its time to begin.
"""

from __future__ import annotations

import ctypes
import itertools
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from gpuscope.benchmarks._harness.data import Pattern, raise_if_wrong
from gpuscope.benchmarks._harness.gpu import Pass, event_for
from gpuscope.benchmarks._harness.pairs import (
    DirectWay,
    Pair,
    PushedWay,
    StagedWay,
    enable_peer_access,
)
from gpuscope.benchmarks._harness.sizing import format_size
from gpuscope.errors import ProgramError
from gpuscope.units import NS_PER_MS, NS_PER_S

LEAD_HOPS = 10
"""Hops before those that are timed."""
MATRIX_SIZE_BYTES = 8
_MATRIX_REPEATS = 20
_FLAG_LIMIT_NS = 10 * NS_PER_S

_SOURCE = r"""
// One of two kernels, each on a GPU of its own, that hand a token to and fro: hop h writes
// token + h into the flag of the other side, which waits for it. The leader does the odd hops, and
// writes down when the first `lead` were done, and when all. The value is the whole message, so
// that no order among several writes is needed.
extern "C" __global__ void gs_flags(volatile unsigned* mine, volatile unsigned* theirs,
                                    unsigned token, unsigned hops, unsigned lead, unsigned leads,
                                    unsigned long long limit_ns, unsigned* late,
                                    unsigned long long* span) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    for (unsigned hop = leads ? 1 : 2; hop <= hops + 1; hop += 2) {
        unsigned looked = 0;
        while (hop > 1 && *mine != token + hop - 1) {
            if (++looked % 65536 == 0) {
                asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
                if (now - start > limit_ns) {
                    *late = 1;
                    return;
                }
            }
        }
        if (leads && (hop == lead + 1 || hop == hops + 1)) {
            asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
            span[hop == hops + 1] = now;
        }
        if (hop <= hops) *theirs = token + hop;
    }
}
"""


def pass_name(size_bytes: int) -> str:
    return f"hops-{format_size(size_bytes)}"


class _End:
    """A buffer at one end of the way, and how it is filled, poisoned and compared."""

    def __init__(self, pair: Pair, side: int, size_bytes: int) -> None:
        import numpy as np

        self._pair, self._side = pair, side
        self.array = pair.empty(side, size_bytes // 4)
        with pair.on(side):
            self._wrong = pair.cp.zeros(1, np.uint64)
            self._pattern = Pattern(pair.cp)
        self.address: int = self.array.data.ptr

    def fill(self, size_bytes: int, first: int) -> None:
        """Write the pattern from position `first` on."""
        with self._pair.on(self._side):
            self._pattern.fill_device(self.array[: size_bytes // 4], first)

    def poison(self, size_bytes: int) -> None:
        """Write what no pattern equals."""
        import numpy as np

        with self._pair.on(self._side):
            self.array[: size_bytes // 4].fill(np.nan)

    def compare(self, size_bytes: int, first: int) -> None:
        """Count what is not the pattern from position `first` on, without waiting."""
        with self._pair.on(self._side):
            self._pattern.count(self.array[: size_bytes // 4], first, 0, 0, self._wrong)

    def wrong(self) -> int:
        """Return how many elements were wrong so far."""
        with self._pair.on(self._side):
            return int(self._wrong.get()[0])


class _SecondContext:
    """A CUDA context beside the one that everything else uses, on the same GPU."""

    def __init__(self, cp: Any, device: int) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        driver = cp.cuda.driver
        self._first = driver.ctxGetCurrent()
        self._second = driver.ctxCreate(device)
        driver.ctxSetCurrent(self._first)
        self._driver = driver

    def allocate(self, size_bytes: int) -> int:
        """Return the address of memory that belongs to the second context."""
        address = ctypes.c_uint64()
        self._driver.ctxSetCurrent(self._second)
        try:
            self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size_bytes))
        finally:
            self._driver.ctxSetCurrent(self._first)
        return address.value

    def copy(self, target: int, source: int, size_bytes: int, stream: int, *, back: bool) -> None:
        """Issue a copy to the second context, or `back` from it."""
        contexts = (self._first, self._second) if back else (self._second, self._first)
        self._call(
            "cuMemcpyPeerAsync",
            ctypes.c_uint64(target),
            ctypes.c_void_p(contexts[0]),
            ctypes.c_uint64(source),
            ctypes.c_void_p(contexts[1]),
            ctypes.c_size_t(size_bytes),
            ctypes.c_void_p(stream),
        )

    def _call(self, function: str, *arguments: Any) -> None:
        code = getattr(self._cuda, function)(*arguments)
        if code:
            raise ProgramError(f"CUDA failed: {function} returned {code}.")


class _ContextEnd(_End):
    """A buffer of the second context; what fills and compares it goes through the first."""

    def __init__(self, pair: Pair, context: _SecondContext, size_bytes: int) -> None:
        super().__init__(pair, 1, size_bytes)
        self._context = context
        self._scratch = self.address
        self.address = context.allocate(size_bytes)

    def _bring(self, size_bytes: int, *, back: bool) -> None:
        places = (self._scratch, self.address) if back else (self.address, self._scratch)
        self._pair.synchronize()
        self._context.copy(*places, size_bytes, 0, back=back)
        self._pair.synchronize()

    def fill(self, size_bytes: int, first: int) -> None:
        """Write the pattern from position `first` on."""
        super().fill(size_bytes, first)
        self._bring(size_bytes, back=False)

    def poison(self, size_bytes: int) -> None:
        """Write what no pattern equals."""
        super().poison(size_bytes)
        self._bring(size_bytes, back=False)

    def compare(self, size_bytes: int, first: int) -> None:
        """Count what is not the pattern from position `first` on."""
        self._bring(size_bytes, back=True)
        super().compare(size_bytes, first)


class _ContextWay:
    """Between the two contexts; `source` is the side that it begins at."""

    def __init__(self, context: _SecondContext, source: int, stream: Any) -> None:
        self._context, self._back = context, source == 1
        self.streams = (stream,)

    def copy(self, target: int, source: int, size_bytes: int) -> None:
        """Issue a copy from address `source` to address `target`."""
        self._context.copy(target, source, size_bytes, self.streams[0].ptr, back=self._back)


class CopyHops:
    """Copies there and back. Each pass begins at the other side, with a pattern of its own.

    What is not yet there is poisoned: a first hop that is lost leaves poison, and so does, in every
    other pass, a direction in which nothing arrives. That no single hop in between was lost cannot
    be seen in two buffers that hold the same: the trace counts them. Hops that do not wait for each
    other need buffers of their own.
    """

    def __init__(
        self,
        pair: Pair,
        sizes: Sequence[int],
        hops: int,
        *,
        chained: bool,
        push: bool,
        two_contexts: bool,
    ) -> None:
        """Prepare `hops` hops of each of the sizes, smallest first; they alone are timed."""
        self.pair, self.sizes, self.hops = pair, sizes, hops
        self.chained, self.push = chained, push
        size_bytes = sizes[-1]
        context = _SecondContext(pair.cp, pair.devices[1]) if two_contexts else None
        if context is not None:
            self.ends = [_End(pair, 0, size_bytes), _ContextEnd(pair, context, size_bytes)]
        else:
            self.ends = [
                _End(pair, side, size_bytes) for side in ((0, 1) if chained else (0, 1, 1, 0))
            ]
        stream = pair.stream(0)
        other = stream if chained else pair.stream(0)
        self.ways: list[Any]
        if context is not None:
            self.ways = [_ContextWay(context, side, stream) for side in (0, 1)]
        elif pair.path == "staged":
            far = pair.stream(1)
            self.ways = [
                StagedWay(pair, each, size_bytes, 1) for each in ((stream, far), (far, stream))
            ]
        elif push:
            there, back = (PushedWay(pair, side) for side in (0, 1))
            there.back, back.back = back, there
            self.ways = [there, back]
        else:
            self.ways = [DirectWay(pair, 0, stream), DirectWay(pair, 1, other)]
        self.origin = 0
        self.first = 0
        self.size_bytes = 0
        """Of the pass whose data is not yet compared."""
        self.compared = 0
        self.marks: dict[int, list[tuple[Any, Any]]] = {size: [] for size in sizes}
        """Of each size, of each pass, events around the hops that are timed."""

    @property
    def streams(self) -> list[Any]:
        """All streams that the ways use, each once."""
        return list({stream.ptr: stream for way in self.ways for stream in way.streams}.values())

    def passes(self) -> list[Pass]:
        """Return a pass a size."""
        return [
            Pass(
                pass_name(size),
                self.streams,
                partial(self.hop_all, size),
                prepare=partial(self.begin, size),
            )
            for size in self.sizes
        ]

    def begin(self, size_bytes: int) -> None:
        """Compare what the last pass left, and write what the next begins with."""
        self.settle()
        self.first += size_bytes // 4
        # Of each size every other pass: how many have gone before tells which.
        self.origin = len(self.marks[size_bytes]) % 2 if self.chained else 0
        self.size_bytes = size_bytes
        for number, end in enumerate(self.ends):
            if number % 2 == self.origin:
                end.fill(size_bytes, self.first)
            else:
                end.poison(size_bytes)
        stream = self.ways[self.origin].streams[0]
        start, end_mark = (event_for(self.pair.cp, stream, timing=True) for _ in range(2))
        self.marks[size_bytes].append((start, end_mark))
        self.pair.synchronize()

    def hop_all(self, size_bytes: int) -> None:
        """Issue all hops of a pass, with marks around those that are timed."""
        addresses = [end.address for end in self.ends]
        start, end = self.marks[size_bytes][-1]
        for hop in range(LEAD_HOPS + self.hops):
            if hop == LEAD_HOPS:
                self._mark(start, wait=self.push)
            side = (self.origin + hop) % 2
            if self.chained:
                source, target = addresses[side], addresses[1 - side]
            else:
                source, target = addresses[2 * side], addresses[2 * side + 1]
            self.ways[side].copy(target, source, size_bytes)
        self._mark(end, wait=self.push or not self.chained)

    def _mark(self, event: Any, *, wait: bool) -> None:
        """Record an event where the pass began, after the hops so far: maybe on another stream."""
        here, there = (self.ways[side].streams[0] for side in (self.origin, 1 - self.origin))
        if wait:
            done = event_for(self.pair.cp, there)
            done.record(there)
            here.wait_event(done)
        event.record(here)

    def hop_times_ns(self, reps: int) -> dict[str, list[float]]:
        """Return of each pass the mean time of a hop, in each of the last repetitions, in ns.

        An even number of hops after the first mark the data is on the side that it was on.
        """
        elapsed = self.pair.cp.cuda.get_elapsed_time
        return {
            pass_name(size): [NS_PER_MS * elapsed(*mark) / self.hops for mark in marks[-reps:]]
            for size, marks in self.marks.items()
        }

    def settle(self) -> None:
        """Compare what the last pass left, without waiting."""
        if self.size_bytes:
            for end in self.ends:
                end.compare(self.size_bytes, self.first)
            self.compared += self.size_bytes // 4 * len(self.ends)
            self.size_bytes = 0

    def check(self) -> None:
        """Raise if any pass left wrong data."""
        self.settle()
        raise_if_wrong([end.wrong() for end in self.ends], self.compared, "buffer")

    @property
    def result_array(self) -> Any:
        """What the last pass leaves."""
        return self.ends[0].array


class FlagHops:
    """Two kernels, one a GPU, that write a token into each other's memory in turn."""

    def __init__(self, pair: Pair, hops: int) -> None:
        """Prepare `hops` hops: they alone are timed."""
        import numpy as np

        cp = pair.cp
        self.pair, self.hops = pair, hops
        self.flags, self.late, self.spans = [], [], []
        self.times_ns: list[float] = []
        self.streams = [pair.stream(side) for side in (0, 1)]
        self.kernel = cp.RawKernel(_SOURCE, "gs_flags")
        self.token = 0
        for side in (0, 1):
            with pair.on(side):
                self.flags.append(cp.zeros(1, np.uint32))
                self.late.append(cp.zeros(1, np.uint32))
                self.spans.append(cp.zeros(2, np.uint64))
        pair.synchronize()
        self.hop_all(0)  # loads the kernels: not behind a closed gate
        pair.synchronize()

    def note_span(self) -> None:
        """Write down what the last pass took by its own clock, before the next begins."""
        if self.token:
            start, end = self.spans[0].get().tolist()
            self.times_ns.append((end - start) / self.hops)

    def hop_times_ns(self, reps: int) -> dict[str, list[float]]:
        """Return the mean time of a hop in each of the last repetitions, in ns."""
        self.note_span()
        return {"flags": self.times_ns[-reps:]}

    def hop_all(self, hops: int) -> None:
        """Issue both kernels, for so many hops and those before the first that is timed."""
        import numpy as np

        for side in (0, 1):
            arguments = (
                self.flags[side].data.ptr,
                self.flags[1 - side].data.ptr,
                np.uint32(self.token),
                np.uint32(hops),
                np.uint32(LEAD_HOPS),
                np.uint32(side == 0),
                np.uint64(_FLAG_LIMIT_NS),
                self.late[side].data.ptr,
                self.spans[side].data.ptr,
            )
            with self.pair.on(side), self.streams[side]:
                self.kernel((1,), (1,), arguments)
        self.token += hops

    def passes(self) -> list[Pass]:
        """Return the only pass."""
        hops = LEAD_HOPS + self.hops
        return [Pass("flags", self.streams, partial(self.hop_all, hops), prepare=self.note_span)]

    def check(self) -> None:
        """Raise if a kernel gave up waiting, or the last hops did not leave their tokens."""
        self.pair.synchronize()
        if any(int(late.get()[0]) for late in self.late):
            raise ProgramError(
                "a GPU waited 10 s for the other's flag: are both free, and at work at once?"
            )
        # The last hop comes back to side 0, the one before it went to side 1.
        wanted = (self.token, self.token - 1)
        found = [int(flag.get()[0]) for flag in self.flags]
        wrong = [int(one != other) for one, other in zip(found, wanted, strict=True)]
        raise_if_wrong(wrong, len(wrong), "flag")

    @property
    def result_array(self) -> Any:
        """What the last pass leaves."""
        return self.flags[0]


Matrix = Mapping[tuple[str, int, int], float]
"""Time of a copy in ns, by who issues it (push: the sender), from, and to."""


def time_matrix(pair: Pair, hops: int) -> Matrix:
    """Time copies of 8 B from every GPU to every other, one after the other on one stream.

    They are issued by the sending GPU (push), and by the receiving one (pull).
    """
    cp, session = pair.cp, pair.session
    gpus = range(cp.cuda.runtime.getDeviceCount())
    ways = set(itertools.permutations(gpus, 2))
    if pair.path == "p2p":
        ways = _reach(cp, pair.devices, gpus)
    buffers, streams = {}, {}
    for gpu in gpus:
        with cp.cuda.Device(gpu):
            buffers[gpu] = cp.zeros(MATRIX_SIZE_BYTES // 4, cp.float32).data.ptr
            streams[gpu] = cp.cuda.Stream(non_blocking=True)
            cp.cuda.runtime.deviceSynchronize()
    found = {}
    for source, target in sorted(ways):
        for method, stream in (("push", streams[source]), ("pull", streams[target])):

            def issue(source: int = source, target: int = target, stream: Any = stream) -> None:
                for _ in range(hops):
                    cp.cuda.runtime.memcpyPeerAsync(
                        buffers[target], target, buffers[source], source, MATRIX_SIZE_BYTES,
                        stream.ptr,
                    )  # fmt: skip

            times = [session.time_batch([stream], issue) for _ in range(1 + _MATRIX_REPEATS)]
            found[method, source, target] = statistics.median(times[1:]) / hops
    return found


def _reach(cp: Any, enabled: Sequence[int], gpus: Sequence[int]) -> set[tuple[int, int]]:
    """Let all GPUs reach each other where they can, but those that do; return which can."""
    reached = set()
    for source, target in itertools.permutations(gpus, 2):
        mutual = [cp.cuda.runtime.deviceCanAccessPeer(*way) for way in
                  ((source, target), (target, source))]  # fmt: skip
        if all(mutual):
            reached.add((source, target))
            if not {source, target} <= set(enabled):
                enable_peer_access(cp, source, target)
    return reached
