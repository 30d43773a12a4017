"""A stand-in for CuPy that runs nothing and writes down what was asked of it, in order."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest


class FakeStream:
    null: FakeStream

    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name, self.ptr = log, name, name
        self.device_id = 0

    def __enter__(self) -> FakeStream:
        self.log.append(f"current {self.name}")
        return self

    def __exit__(self, *_: object) -> None:
        self.log.pop()  # the kernel's line names its stream itself

    def wait_event(self, event: FakeEvent) -> None:
        self.log.append(f"{self.name} waits for {event.name}")

    def synchronize(self) -> None:
        self.log.append(f"host waits for {self.name}")

    def begin_capture(self) -> None:
        self.log.append(f"capture {self.name}")

    def end_capture(self) -> Any:
        self.log.append(f"captured {self.name}")
        return SimpleNamespace(
            upload=lambda stream: self.log.append(f"upload {stream.name}"),
            launch=lambda stream: self.log.append(f"launch {stream.name}"),
        )


class FakeEvent:
    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name

    def record(self, stream: FakeStream) -> None:
        self.log.append(f"{self.name} in {stream.name}")

    def synchronize(self) -> None:
        self.log.append(f"host waits for {self.name}")


class FakeCupy:
    """As much of CuPy as the benchmarks use; ``log`` has one line a call."""

    float32 = np.float32

    def __init__(self) -> None:
        self.log: list[str] = []
        self.buffers = 0
        self.streams = 0
        self.events = 0
        null = FakeStream(self.log, "null")

        class Stream(FakeStream):
            def __new__(cls, non_blocking: bool, priority: int = 0) -> Any:
                assert non_blocking
                self.streams += 1
                return FakeStream(self.log, f"s{self.streams}")

        Stream.null = null
        self.cuda = SimpleNamespace(
            Stream=Stream,
            Event=self._event,
            Device=lambda number: nullcontext(),
            get_elapsed_time=lambda start, end: 2.0,
            alloc_pinned_memory=bytearray,
            runtime=SimpleNamespace(
                memcpyHostToDevice="h2d",
                memcpyDeviceToHost="d2h",
                memcpyAsync=self._copy,
                malloc=self._malloc,
                free=lambda buffer: self.log.append(f"free {buffer}"),
                profilerStart=lambda: self.log.append("profilerStart"),
                profilerStop=lambda: self.log.append("profilerStop"),
                deviceSynchronize=lambda: self.log.append("deviceSynchronize"),
                getDeviceProperties=lambda index: {"asyncEngineCount": 2},
                deviceGetPCIBusId=lambda index: f"0000:ff:1f.{7 - index}",
                setDevice=lambda index: self.log.append(f"device {index}"),
            ),
        )

    def _event(self, disable_timing: bool = False) -> FakeEvent:
        self.events += 1
        return FakeEvent(self.log, f"e{self.events}")

    def _copy(self, target: Any, source: Any, size_bytes: int, kind: str, stream: str) -> None:
        buffer = target if kind == "h2d" else source
        self.log.append(f"{kind} {buffer} {stream}")

    def _malloc(self, size_bytes: int) -> str:
        self.log.append("malloc")
        return "new"

    def full(self, elements: int, value: float, dtype: Any) -> Any:
        self.buffers += 1
        return SimpleNamespace(data=SimpleNamespace(ptr=f"b{self.buffers}"))

    def empty(self, elements: int, dtype: Any) -> Any:
        self.buffers += 1
        ptr = 1_000_000 * self.buffers
        return SimpleNamespace(
            data=SimpleNamespace(ptr=ptr), size=elements, fill=lambda value: None
        )

    zeros = empty

    def arange(self, elements: int, dtype: Any) -> Any:
        return self.empty(elements, dtype)

    def RawKernel(self, source: str, name: str) -> Any:
        assert name in source

        class Kernel:
            def compile(kernel) -> None:
                pass

            def __call__(kernel, grid: Any, block: Any, arguments: Any) -> None:
                current = self.log[-1].removeprefix("current ")
                target = arguments[0] if name in {"fma_steps", "spin"} else ""
                self.log.insert(-1, " ".join(filter(None, [name, str(target), current])))

        return Kernel()


@pytest.fixture
def cupy() -> FakeCupy:
    return FakeCupy()
