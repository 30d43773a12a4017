"""Two GPUs of one process, and the ways that data takes between them.

::

    p2p      GPU 0 ───────── copy ─────────→ GPU 1   with peer access, straight to its memory
    driver   GPU 0 ───────── copy ─────────→ GPU 1   without: the driver goes through the host
    staged   GPU 0 ── d2h ──→ host ── h2d ─→ GPU 1   two copies, through pinned memory

Each is measured in a process of its own: what peer access changed stays with the process.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from gpuscope.benchmarks._harness.chunks import buffer_limit_bytes
from gpuscope.benchmarks._harness.gpu import Session, event_for, import_cupy, open_session
from gpuscope.benchmarks._harness.links import link_between
from gpuscope.errors import MissingError, UsageError
from gpuscope.units import counted

PATHS = ("p2p", "driver", "staged")
STAGED_COMMANDS = 4
"""What one chained staged copy puts behind the gate: two copies, an event, and a wait for it."""
PUSHED_COMMANDS = 3
"""A wait, a copy and an event."""


def pair_argument(text: str) -> str:
    """Check two different numbers of GPUs such as ``0-1``, for argparse."""
    numbers = text.split("-")
    if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
        raise argparse.ArgumentTypeError(f"{text!r} is not two GPUs: write them like 0-1")
    if int(numbers[0]) == int(numbers[1]):
        raise argparse.ArgumentTypeError(
            f"{text!r} is one GPU twice: --same-device measures a copy within one"
        )
    return text


def add_pair_arguments(parser: argparse.ArgumentParser, paths: Sequence[str]) -> None:
    """Add the options that say between which GPUs data goes, and how."""
    parser.add_argument(
        "--path", choices=paths, help=f"how data gets there: {', '.join(paths)} (default: p2p)"
    )
    parser.add_argument(
        "--pair", type=pair_argument, metavar="A-B", help="the two GPUs (default: 0-1)"
    )
    parser.add_argument(
        "--same-device",
        action="store_true",
        default=None,
        help="copy within one GPU instead: there is no link in it",
    )


def choose_devices(
    benchmark: str, pair: str | None, gpus: int, *, same_device: bool
) -> tuple[int, int]:
    """Return the numbers of the two GPUs, of which there are `gpus`.

    Raises
    ------
    MissingError
        There are not so many.
    """
    first, second = (int(number) for number in (pair or "0-1").split("-"))
    if same_device:
        second = first
    needed = max(first, second) + 1
    if needed > gpus:
        instead = "" if same_device else " (`--same-device` measures a local copy)"
        raise MissingError(f"{benchmark} needs {counted(needed, 'GPU')}, found {gpus}{instead}.")
    return first, second


def enable_peer_access(cp: Any, accessing: int, owning: int) -> None:
    """Let a GPU reach the memory of another.

    Raises
    ------
    UsageError
        It cannot.
    """
    if not cp.cuda.runtime.deviceCanAccessPeer(accessing, owning):
        raise UsageError(
            f"peer access GPU{accessing}→GPU{owning} unsupported: use `--path staged`."
        )
    with cp.cuda.Device(accessing):
        cp.cuda.runtime.deviceEnablePeerAccess(owning)


class Pair:
    """Two GPUs, side 0 and side 1; both may be the same one.

    ``devices`` are their numbers, ``link`` is what connects them.
    """

    def __init__(self, session: Session, devices: tuple[int, int], path: str) -> None:
        self.session = session
        self.cp = session.cp
        self.devices = devices
        self.path = path
        self.same = devices[0] == devices[1]
        bus_id = self.cp.cuda.runtime.deviceGetPCIBusId
        self.link = link_between(bus_id(devices[0]), bus_id(devices[1]))
        if not self.same:
            session.watch(devices[1])
            if path not in {"driver", "staged"}:
                for accessing, owning in itertools.permutations(devices):
                    enable_peer_access(self.cp, accessing, owning)

    def __str__(self) -> str:
        """Write the pair for people, with the way between."""
        if self.same:
            return f"GPU {self.devices[0]} and itself"
        return f"GPU {self.devices[0]} and {self.devices[1]}, {self.link}, path {self.path}"

    @property
    def copy_class(self) -> str:
        """The class of one of its direct copies in a trace."""
        return "d2d" if self.same else "p2p"

    def on(self, side: int) -> AbstractContextManager[Any]:
        """Make the GPU of a side current for a while."""
        made: AbstractContextManager[Any] = self.cp.cuda.Device(self.devices[side])
        return made

    def stream(self, side: int) -> Any:
        """Return a new stream of the GPU of a side."""
        with self.on(side):
            return self.cp.cuda.Stream(non_blocking=True)

    def empty(self, side: int, elements: int) -> Any:
        """Return float32 memory of the GPU of a side."""
        with self.on(side):
            return self.cp.empty(elements, self.cp.float32)

    def synchronize(self) -> None:
        """Wait for both GPUs."""
        for side in (0, 1):
            with self.on(side):
                self.cp.cuda.runtime.deviceSynchronize()

    def buffer_limit_bytes(self, *, device_buffers: int, host_buffers: int) -> int:
        """Return the largest buffer for which all stay within their share of the free memory.

        `device_buffers` are those of one side.
        """
        limits = []
        for side in (0, 1):
            with self.on(side):
                buffers = device_buffers * (2 if self.same else 1)
                limits.append(
                    buffer_limit_bytes(
                        self.session, device_buffers=buffers, host_buffers=host_buffers
                    )
                )
        return min(limits)


class DirectWay:
    """From one side to the other in one copy; the driver does what it takes."""

    def __init__(self, pair: Pair, source: int, stream: Any) -> None:
        self._pair = pair
        self._devices = pair.devices[source], pair.devices[1 - source]
        self.streams = (stream,)

    def copy(self, target: int, source: int, size_bytes: int) -> None:
        """Issue a copy from address `source` to address `target`."""
        source_device, target_device = self._devices
        self._pair.cp.cuda.runtime.memcpyPeerAsync(
            target, target_device, source, source_device, size_bytes, self.streams[0].ptr
        )


class PushedWay(DirectWay):
    """A direct way whose copies are issued by the side they leave, after the last one back.

    Two ways that name each other as ``back`` take turns::

        0→1  [copy]──event──┐      ┌─[copy]
        1→0                 └─[copy]──event──┘
    """

    back: PushedWay

    def __init__(self, pair: Pair, source: int) -> None:
        super().__init__(pair, source, pair.stream(source))
        self._done = event_for(pair.cp, self.streams[0])

    def copy(self, target: int, source: int, size_bytes: int) -> None:
        """Issue a copy from address `source` to address `target`."""
        self.streams[0].wait_event(self.back._done)
        super().copy(target, source, size_bytes)
        self._done.record(self.streams[0])


class StagedWay:
    """From one side to the other through pinned host memory: out on one stream, in on another.

    There are `slots` host buffers in turn. ::

        out   [d2h 0][d2h 1]     [d2h 2]            slot 0 is free again when h2d 0 is done
        in           [h2d 0][h2d 1]     [h2d 2]

    Where the caller orders all copies anyway, there is one slot, and nothing waits for it.
    """

    def __init__(self, pair: Pair, streams: tuple[Any, Any], size_bytes: int, slots: int) -> None:
        cp = self._cp = pair.cp
        self.streams = streams
        out, into = streams
        self._hosts = [cp.cuda.alloc_pinned_memory(size_bytes) for _ in range(slots)]
        self._filled = [event_for(cp, out) for _ in range(slots)]
        self._emptied = [event_for(cp, into) for _ in range(slots)]
        self._used = 0

    def copy(self, target: int, source: int, size_bytes: int) -> None:
        """Issue both copies of the data at address `source` to address `target`."""
        runtime = self._cp.cuda.runtime
        out, into = self.streams
        slots = len(self._hosts)
        slot = self._used % slots
        if slots > 1 and self._used >= slots:
            out.wait_event(self._emptied[slot])
        self._used += 1
        host = self._hosts[slot].ptr
        runtime.memcpyAsync(host, source, size_bytes, runtime.memcpyDeviceToHost, out.ptr)
        self._filled[slot].record(out)
        into.wait_event(self._filled[slot])
        runtime.memcpyAsync(target, host, size_bytes, runtime.memcpyHostToDevice, into.ptr)
        if slots > 1:
            self._emptied[slot].record(into)


@contextmanager
def open_pair(benchmark: str, *, path: str, pair: str | None, same_device: bool) -> Iterator[Pair]:
    """Prepare the process for measuring between two GPUs, as :func:`open_session` does for one.

    Raises
    ------
    MissingError
        There are not enough GPUs, or what any benchmark needs is missing.
    UsageError
        The GPUs cannot reach each other's memory, and the path needs it.
    """
    gpus = import_cupy().cuda.runtime.getDeviceCount()
    devices = choose_devices(benchmark, pair, gpus, same_device=same_device)
    with open_session(benchmark, devices[0]) as session:
        yield Pair(session, devices, path)
