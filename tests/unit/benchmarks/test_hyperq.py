import argparse
import os
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from gpuscope.benchmarks import hyperq
from gpuscope.benchmarks._harness import Session, add_common_arguments
from gpuscope.benchmarks.hyperq import BENCHMARK, _Options, _Workload
from gpuscope.errors import ProgramError, UsageError


def options(connections: int = 32, streams: int = 32, kernels: int = 2) -> _Options:
    return _Options(streams, kernels, connections, 10.0)


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    BENCHMARK.add_arguments(parser)
    add_common_arguments(parser, BENCHMARK)
    return parser.parse_args(arguments)


def make_workload(cupy: Any, chosen: _Options, twin: str | None = None) -> _Workload:
    work = _Workload(cast("Session", SimpleNamespace(cp=cupy)), chosen, twin)
    cupy.log.clear()
    return work


@pytest.mark.parametrize(
    ("connections", "rounds", "peak"),
    [(32, 2, 32), (16, 3, 32), (8, 5, 16), (2, 17, 4), (1, 33, 2)],
)
def test_what_the_connections_allow(connections: int, rounds: int, peak: int) -> None:
    # 32 streams of two 10 ms kernels took 20.7, 50.3 and 330 ms with 32, 8 and 1 of them.
    assert hyperq._rounds(options(connections), one_stream=False) == rounds
    assert hyperq._possible_peak(options(connections), 128, one_stream=False) == peak


def test_one_stream_is_one_queue() -> None:
    assert hyperq._rounds(options(), one_stream=True) == 64
    assert hyperq._possible_peak(options(), 128, one_stream=True) == 1


def test_a_stream_of_one_kernel_waits_for_no_other() -> None:
    single = options(connections=1, kernels=1)
    assert hyperq._rounds(single, one_stream=False) == 1
    assert hyperq._possible_peak(single, 128, one_stream=False) == 32


def test_no_more_than_can_reside_at_once() -> None:
    assert hyperq._possible_peak(options(streams=200, kernels=1), 128, one_stream=False) == 128
    assert hyperq._possible_peak(options(), 16, one_stream=False) == 16


def test_nine_tenths_of_the_peak_must_be_seen() -> None:
    row = hyperq._expected(32)
    assert (row.range, row.op_class, row.least, row.most) == ("concurrent", "kernel", 29, 32)
    assert (hyperq._expected(1).least, hyperq._expected(2).least) == (1, 2)


def test_the_peak_by_the_kernels_own_clock() -> None:
    assert hyperq._peak([(0, 10), (5, 15), (10, 20)]) == 2  # one ends as another starts
    assert hyperq._peak([(0, 10), (1, 9), (2, 8)]) == 3


def test_kernels_are_issued_stream_by_stream(cupy: Any) -> None:
    work = make_workload(cupy, options(streams=2))
    work.concurrent()
    first = work.values.data.ptr
    assert cupy.log == [
        f"spin {first} s1", f"spin {first} s1", f"spin {first + 4} s2", f"spin {first + 4} s2",
    ]  # fmt: skip


def test_the_host_waits_for_what_is_written_on_the_null_stream(
    cupy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Values(SimpleNamespace):
        def __setitem__(self, index: int, value: int) -> None:
            cupy.log.append(f"{value} to {index}")

    work = make_workload(cupy, options(streams=2))
    monkeypatch.setattr(work, "values", Values(data=work.values.data))
    work.load()
    loaded = f"spin {work.values.data.ptr} s1"
    assert cupy.log == [loaded, "deviceSynchronize", "0 to 0", "deviceSynchronize"]


def test_the_one_stream_twin(cupy: Any) -> None:
    work = make_workload(cupy, options(streams=3), "one-stream")
    assert {stream.name for stream in work.streams} == {"s1"}


def test_a_kernel_that_ran_out_of_order_or_not_at_all_shows(
    cupy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = make_workload(cupy, options(streams=2))
    values = np.arange(2, dtype=np.uint32)
    terms: list[tuple[int, Any]] = []

    def kernel(grid: Any, block: Any, arguments: Any) -> None:
        terms.append(((arguments[0] - work.values.data.ptr) // 4, arguments[1]))

    monkeypatch.setattr(work, "kernel", kernel)

    def left_by(done: list[tuple[int, Any]]) -> Any:
        found = values.copy()
        for index, term in done:
            found[index] = found[index] * np.uint32(1664525) + term
        return found

    with np.errstate(over="ignore"):
        work.concurrent()
        for broken in (terms[:-1], [terms[1], terms[0], *terms[2:]]):
            monkeypatch.setattr(work.values, "get", lambda broken=broken: left_by(broken), False)
            with pytest.raises(ProgramError, match="1 of 2 streams"):
                work.check()
        monkeypatch.setattr(work.values, "get", lambda: left_by(terms))
        work.check()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--connections", "33"], "32 at most"),
        (["--streams", "501"], "more than the 1000"),
    ],
)
def test_what_cannot_be_run_is_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        BENCHMARK.run(parse(*arguments))


@pytest.mark.parametrize(
    ("arguments", "connections"),
    [([], "32"), (["--connections", "4"], "4"), (["--twin", "one-connection"], "1")],
)
def test_the_connections_are_set_before_the_context_is_made(
    arguments: list[str], connections: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "of the caller")

    def open_session(name: str) -> Any:
        raise ProgramError(os.environ["CUDA_DEVICE_MAX_CONNECTIONS"])

    monkeypatch.setattr(hyperq, "open_session", open_session)
    with pytest.raises(ProgramError, match=f"^{connections}$"):
        BENCHMARK.run(parse(*arguments))
