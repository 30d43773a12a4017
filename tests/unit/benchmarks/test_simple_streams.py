import argparse
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuscope.benchmarks import simple_streams
from gpuscope.benchmarks._harness import Pattern, Session, add_common_arguments
from gpuscope.benchmarks.simple_streams import BENCHMARK, _Options, _Workload
from gpuscope.errors import UsageError


def make_workload(cupy: Any, twin: str | None = None) -> _Workload:
    session = cast("Session", SimpleNamespace(cp=cupy))
    work = _Workload(session, 64, _Options(2, 64, 3, None), twin)
    cupy.log.clear()
    return work


def copies(work: _Workload, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """Record (host buffer, first byte, bytes) of each copy."""
    found: list[tuple[int, int, int]] = []

    def copy(target: int, source: int, size_bytes: int, kind: str, stream: str) -> None:
        first = source - work.data.data.ptr
        host = [host.ctypes.data for host in work.hosts].index(target - first)
        found.append((host, first, size_bytes))

    monkeypatch.setattr(work.cp.cuda.runtime, "memcpyAsync", copy)
    return found


def test_slices_cover_all_and_differ_by_one_at_most() -> None:
    assert simple_streams._slices(16, 4) == [(0, 4), (4, 4), (8, 4), (12, 4)]
    assert simple_streams._slices(10, 3) == [(0, 3), (3, 3), (6, 4)]


def test_the_sliced_pass_issues_all_kernels_first(
    cupy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = make_workload(cupy)
    moved = copies(work, monkeypatch)
    work.streamed()
    first = work.data.data.ptr
    assert cupy.log == [f"fma_steps {first} s1", f"fma_steps {first + 32} s2"]
    assert moved == [(1, 0, 32), (1, 32, 32)]
    work.sequential()
    assert cupy.log[2:] == [f"fma_steps {first} s1"]
    assert moved[2:] == [(0, 0, 64)]


def test_the_kernel_is_loaded_behind_the_pattern_in_its_own_stream(cupy: Any) -> None:
    work = make_workload(cupy)
    fill = SimpleNamespace(fill_device=lambda array: cupy.log.append(f"fill {array.data.ptr}"))
    work.fill(cast("Pattern", fill))
    first = work.data.data.ptr
    assert cupy.log == [f"fill {first}", f"fma_steps {first} null", "deviceSynchronize"]


def test_each_host_buffer_is_compared_with_its_own_last_pass(cupy: Any) -> None:
    work = make_workload(cupy)
    work.copy_out = lambda *arguments: None  # type: ignore[method-assign]
    for issue in (work.sequential, work.streamed, work.sequential):
        issue()
    assert work.left_by == [3, 2]


def test_the_null_stream_twin_has_no_other(cupy: Any) -> None:
    assert {stream.name for stream in make_workload(cupy, "null-stream").streams} == {"null"}


@pytest.mark.parametrize(
    ("kernel_ns", "d2h_ns", "bound_ns"),
    [
        (220_000, 1_230_000, 1_230_000 + 55_000),  # the copy is longer: D + K/n
        (4_000_000, 1_000_000, 4_000_000 + 250_000),  # the kernel is: K + D/n
    ],
)
def test_the_limit_of_n_slices(kernel_ns: int, d2h_ns: int, bound_ns: int) -> None:
    assert simple_streams._pipeline(kernel_ns, d2h_ns, 4).bound_ns == pytest.approx(
        bound_ns, rel=1e-5
    )


def test_kernel_and_copy_overlap_only_in_the_benchmark_itself() -> None:
    pipeline = simple_streams._pipeline(1_000_000, 1_000_000, 4)
    verdicts = {
        twin: [(row.range, row.a, row.b, row.verdict) for row in found]
        for twin in (None, "null-stream")
        for found in [simple_streams._expected(pipeline, twin)]
    }
    first = ("sequential", "d2h", "kernel", "serialized")
    assert verdicts[None] == [first, ("streamed", "d2h", "kernel", "overlapped")]
    assert verdicts["null-stream"] == [first, ("streamed", "d2h", "kernel", "serialized")]


def test_one_slice_is_refused() -> None:
    parser = argparse.ArgumentParser()
    BENCHMARK.add_arguments(parser)
    add_common_arguments(parser, BENCHMARK)
    with pytest.raises(UsageError, match="one slice cannot overlap"):
        BENCHMARK.run(parser.parse_args(["--slices", "1"]))
