"""A stand-in for CuPy whose device is the host: copies copy, and kernels are NumPy functions.

What it does at once, a GPU would do later: it shows whether the data is right, not whether waits
are. A copy to or from a buffer that a test has not made is an error.
"""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np

from gpuscope.benchmarks._harness.gpu import Measured, Pass, Session
from gpuscope.benchmarks._harness.links import Link
from gpuscope.benchmarks._harness.ranks import Ranks, import_mpi
from gpuscope.benchmarks._harness.registry import Benchmark, add_common_arguments
from gpuscope.benchmarks._harness.stats import Statistics


class Array(np.ndarray[Any, Any]):
    """A device array."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)

    def set(self, host: Any) -> None:
        self[...] = host

    def get(self, stream: Any = None, out: Any = None) -> Any:
        if out is None:
            return np.array(self)
        out[...] = self
        return out


class Stream:
    """Does everything at once."""

    ptr = 0

    def __init__(self, non_blocking: bool = False, priority: int = 0) -> None:
        assert non_blocking

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass


def make(kernels: Mapping[str, Callable[..., None]]) -> Any:
    """Return the module, with `kernels` by name: each gets the arguments of a launch."""

    def memcpy(target: int, source: int, size: int, kind: str, stream: int) -> None:
        ctypes.memmove(target, source, size)

    def launcher(name: str) -> Any:
        return lambda grid, block, arguments: kernels[name](*arguments)

    event = SimpleNamespace(record=lambda stream: None, synchronize=lambda: None)
    return SimpleNamespace(
        empty=lambda count, kind: np.zeros(count, kind).view(Array),
        zeros=lambda count, kind: np.zeros(count, kind).view(Array),
        RawModule=lambda code: SimpleNamespace(get_function=launcher),
        cuda=SimpleNamespace(
            Stream=Stream,
            Event=lambda disable_timing: event,
            alloc_pinned_memory=bytearray,
            runtime=SimpleNamespace(
                memcpyAsync=memcpy,
                memcpyDeviceToHost="d2h",
                memcpyHostToDevice="h2d",
                deviceSynchronize=lambda: None,
            ),
        ),
    )


class OnHost(Session):
    """Does every pass once, calls any time a millisecond, and hands back what makes the result."""

    def __init__(self, cupy: Any, ranks: Ranks) -> None:
        self.cp, self.team, self.pci_bus_id = cupy, ranks, "0000:01:00.0"
        self.ranges: Any = SimpleNamespace(prepare=lambda name, payload: nullcontext())

    def measure(
        self,
        passes: Sequence[Pass],
        repetitions: int,
        *,
        check: Callable[[], None],
        warm: bool = True,
        corrupt: Any = None,
    ) -> Measured:
        for one in passes:
            if one.prepare:
                one.prepare()
            self.team.barrier()
            one.issue()
        if corrupt is not None:
            corrupt[-1:] += 1
        self.check(check)
        times = {one.name: Statistics.of([1_000_000]) for one in passes}
        return Measured(times, times, 0, None)  # type: ignore[arg-type]

    def time_operations(self, queues: Any, *, waits: bool = False) -> Any:
        for _, operations in queues:
            for operation in operations:
                operation()
        return [[(0, 1_000_000) for _ in operations] for _, operations in queues]

    def conclude(self, measured: Measured, **values: Any) -> Any:
        return SimpleNamespace(measured=measured, **values)


def parse(benchmark: Benchmark, words: Sequence[str]) -> argparse.Namespace:
    """Read the options of a benchmark as its process does."""
    parser = argparse.ArgumentParser()
    benchmark.add_arguments(parser)
    add_common_arguments(parser, benchmark)
    return parser.parse_args(words)


def put_in_place(benchmark: Any, cupy: Any) -> Ranks:
    """Have the module of a benchmark run on the host; return its ranks."""
    mpi = import_mpi()
    ranks = Ranks(mpi, mpi.COMM_WORLD)
    ranks.session = OnHost(cupy, ranks)

    @contextmanager
    def open_ranks(name: str, *, oversubscribe: bool) -> Iterator[Ranks]:
        yield ranks

    benchmark.open_ranks = open_ranks
    benchmark.buffer_limit_bytes = lambda session, **buffers: 1 << 40
    benchmark.link_between = lambda a, b: Link("NVLink", 18, 450e9)
    return ranks
