"""A GPU made of NumPy whose streams go on in any order that their events allow.

What is issued to a stream waits there. Whenever the host issues more, or waits, some of what could
run is run: which, is chosen by chance, and some streams are slower than others. So a schedule that
lacks a wait goes wrong sooner or later, and one that has them all never does. So does what is made
on the null stream: arrays are filled some time later, and other streams do not wait for that.
"""

from __future__ import annotations

import ctypes
import random
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np

NULL, HOST = -1, -2
"""The numbers of the null stream, and of who is none."""
_LEFT = 1e-3
"""How rarely the slowest stream gets on."""
_TURN_NS = 20_000
"""A stream that is held back as long lets the others go on once."""


class DeviceArray(np.ndarray[Any, Any]):
    """An array whose address is found where CuPy has it, and who is filled on the null stream."""

    null: Any = None

    def __array_finalize__(self, whole: Any) -> None:
        self.null = getattr(whole, "null", None)

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)

    def get(self) -> Any:
        self.null.synchronize()
        return np.array(self)

    def fill(self, value: Any) -> None:
        self.null.issue(lambda: np.ndarray.fill(self, value))


class Event:
    """What was recorded last; a wait holds for that, not for what is recorded later."""

    def __init__(self, gpu: SimulatedGpu) -> None:
        self.gpu = gpu
        self.number = len(gpu.events)
        gpu.events.append(self)
        self.recorded = self.reached = 0

    def record(self, stream: Stream) -> None:
        self.recorded += 1
        ticket = self.recorded
        stream.issue(lambda: setattr(self, "reached", ticket))

    def synchronize(self) -> None:
        if self.gpu.leaves_out(HOST, self.number):
            return
        ticket = self.recorded
        self.gpu.run_until(lambda: self.reached >= ticket)


class Stream:
    def __init__(self, gpu: SimulatedGpu, number: int, priority: int = 0) -> None:
        self.gpu = gpu
        self.number = number
        self.priority = priority
        self.queue: deque[tuple[Callable[[], bool], Callable[[], object]]] = deque()
        self.weight = gpu.random.choice((1.0, 0.1, _LEFT))
        self.ptr = self

    def __enter__(self) -> None:
        self.gpu.current = self

    def __exit__(self, *_: object) -> None:
        self.gpu.current = self.gpu.null

    def issue(self, work: Callable[[], object], ready: Callable[[], bool] = lambda: True) -> None:
        self.gpu.issued.add(self)
        self.queue.append((ready, work))
        self.gpu.get_on()

    def wait_event(self, event: Event) -> None:
        if self.gpu.leaves_out(self.number, event.number):
            return
        ticket = event.recorded
        self.issue(lambda: None, lambda: event.reached >= ticket)

    def synchronize(self) -> None:
        if self.number != NULL and self.gpu.leaves_out(HOST, of_stream(self.number)):
            return
        self.gpu.run_until(lambda: not self.queue)


def of_stream(number: int) -> int:
    """Return what stands for all that was issued to a stream, among the numbers of events."""
    return ~number


class SimulatedGpu:
    """As much of CuPy as the Jacobi variants use.

    ``waits`` are the pairs of stream, or HOST, and event (or :func:`of_stream`) of every wait so
    far; those in ``left_out`` are ignored.
    """

    def __init__(self, seed: int, left_out: Sequence[tuple[int, int]] = ()) -> None:
        self.random = random.Random(seed)
        self.left_out = set(left_out)
        self.waits: set[tuple[int, int]] = set()
        self.streams: list[Stream] = []
        self.events: list[Event] = []

        self.issued: set[Stream] = set()
        """All that something was issued to."""
        self.null = self.current = Stream(self, NULL)

        def make_stream(non_blocking: bool, priority: int = 0) -> Stream:
            assert non_blocking  # others would wait for the null stream
            self.streams.append(Stream(self, len(self.streams), priority))
            return self.streams[-1]

        make_stream.null = self.null  # type: ignore[attr-defined]
        self.cuda = SimpleNamespace(
            Stream=make_stream,
            Event=lambda disable_timing: Event(self),
            alloc_pinned_memory=bytearray,
            runtime=SimpleNamespace(
                memcpyDeviceToHost="d2h",
                memcpyHostToDevice="h2d",
                memcpyAsync=self._copy,
                memsetAsync=lambda at, value, size, stream: stream.issue(
                    lambda: ctypes.memset(at, value, size)
                ),
                deviceSynchronize=lambda: self.run_until(
                    lambda: not any(stream.queue for stream in (self.null, *self.streams))
                ),
            ),
        )

    def array(self, values: Any, dtype: Any) -> Any:
        wanted = np.array(values, dtype)
        made = self.empty(wanted.shape, dtype)
        self.null.issue(lambda: np.copyto(made, wanted))
        return made

    def empty(self, shape: Any, dtype: Any) -> Any:
        garbage = np.nan if np.issubdtype(dtype, np.floating) else 1
        made = np.full(shape, garbage, dtype).view(DeviceArray)
        made.null = self.null
        return made

    def zeros(self, shape: Any, dtype: Any) -> Any:
        made = self.empty(shape, dtype)
        made.fill(0)
        return made

    def leaves_out(self, who: int, event: int) -> bool:
        """Take down a wait, and say whether it is to be left out."""
        self.waits.add((who, event))
        return (who, event) in self.left_out

    def get_on(self) -> None:
        """Run a few of the operations that could run: of slow streams seldom one."""
        for _ in range(self.random.choice((0, 0, 1, 3))):
            stream = self._choose()
            if stream is not None and self.random.random() < stream.weight:
                stream.queue.popleft()[1]()

    def run_until(self, done: Callable[[], bool]) -> None:
        while not done():
            stream = self._choose()
            assert stream is not None, "the host waits for what can never come"
            stream.queue.popleft()[1]()

    def _choose(self) -> Stream | None:
        streams = (self.null, *self.streams)
        ready = [each for each in streams if each.queue and each.queue[0][0]()]
        weights = [stream.weight for stream in ready]
        return self.random.choices(ready, weights)[0] if ready else None

    def _copy(self, target: int, source: int, size_bytes: int, kind: str, stream: Stream) -> None:
        stream.issue(lambda: ctypes.memmove(target, source, size_bytes))


class SimulatedKernels:
    """The kernels of the stencil in NumPy; each reads and writes when it comes to run."""

    def __init__(self, cp: SimulatedGpu) -> None:
        self.cp = cp

    def start(self, array: Any, block: Any = None) -> None:
        shape = array.shape if block is None else block.grid
        whole = np.random.default_rng(7).random(shape, np.float32)
        if block is not None:
            rows = np.arange(array.shape[0]) + block.first_row - 1
            columns = np.arange(array.shape[1]) + block.first_column - block.margin
            whole = whole[np.ix_(rows % shape[0], columns % shape[1])]
        self.cp.null.issue(lambda: np.copyto(array, whole))

    def step(self, source: Any, target: Any, region: Any, norm: int, stream: Stream) -> None:
        y, x = region.slices

        def work() -> None:
            # A whole grid has no halo: its first row lies below the last.
            up, down = (np.roll(source, by, axis=0)[y, x] for by in (1, -1))
            left, right = (source[y, x.start + by : x.stop + by] for by in (-1, 1))
            mean = np.float32(0.25) * (((up + down) + left) + right)
            change = mean.astype(float) - source[y, x].astype(float)
            target[y, x] = mean
            ctypes.c_double.from_address(norm).value += float(np.sum(change * change))

        if region.points:
            stream.issue(work)

    def wait(self, wait_ns: int, stream: Stream) -> None:
        for _ in range(wait_ns // _TURN_NS):
            stream.issue(lambda: None)

    def differing(self, a: Any, b: Any) -> int:
        self.cp.null.synchronize()
        return int(np.count_nonzero(np.asarray(a) != np.asarray(b)))

    def pack(self, array: Any, strips: Any, buffer: Any, stream: Stream) -> None:
        stream.issue(lambda: self._move(array, strips, buffer, back=False))

    def unpack(self, array: Any, strips: Any, buffer: Any, stream: Stream) -> None:
        stream.issue(lambda: self._move(array, strips, buffer, back=True))

    def _move(self, array: Any, strips: Any, buffer: Any, *, back: bool) -> None:
        for (row, column, columns, _), part in zip(
            strips.table.tolist(), strips.parts(buffer), strict=True
        ):
            rows = part.size // columns
            place = array[row : row + rows, column : column + columns]
            if back:
                place[...] = part.reshape(place.shape)
            else:
                part[...] = place.reshape(-1)


def session(gpu: SimulatedGpu) -> Any:
    """Return a session on it, whose NVTX ranges are nothing."""
    return SimpleNamespace(
        cp=gpu, ranges=SimpleNamespace(prepare=lambda name, payload=None: nullcontext())
    )
