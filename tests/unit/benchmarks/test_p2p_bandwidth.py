"""Rates between GPUs: arithmetic, limits, and what is issued in which order."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpuscope.benchmarks import p2p_bandwidth
from gpuscope.benchmarks._harness import Expected, ExpectedLinks
from gpuscope.benchmarks._harness.links import Link
from gpuscope.benchmarks.p2p_bandwidth import BENCHMARK, LEAST_RHO, _Options, _Workload
from gpuscope.errors import ProgramError, UsageError

GB = 1_000_000_000
MEDIANS = {"forward": 10_000_000, "backward": 12_500_000, "both": 16_000_000}
OWN = {"both": [14_000_000, 16_000_000]}
WITH_COMPUTE = {**MEDIANS, "compute": 8_000_000, "beside": 12_000_000}
OWN_BESIDE = {**OWN, "beside": [11_000_000, 10_000_000]}


def make_options(**changes: Any) -> _Options:
    return _Options(**{**p2p_bandwidth._DEFAULTS, **changes})


def make_pair(*, same: bool = False) -> Any:
    link = Link("same GPU") if same else Link("NVLink", 18, 450e9)
    return SimpleNamespace(same=same, link=link, devices=(2, 2) if same else (2, 0))


def test_rates_of_either_direction_alone_and_of_both() -> None:
    found = p2p_bandwidth._figures(MEDIANS, OWN, 4 * GB)
    assert found["forward_rate_bytes_per_s"] == 400 * GB
    assert found["backward_rate_bytes_per_s"] == 320 * GB
    assert found["sum_rate_bytes_per_s"] == 500 * GB
    assert found["forward_both_rate_bytes_per_s"] == pytest.approx(4e9 / 0.014)
    assert found["backward_both_rate_bytes_per_s"] == 250 * GB
    assert "t_lb_ns" not in found
    assert p2p_bandwidth._lines(found, OWN, MEDIANS) == []


def test_what_kernels_beside_the_copies_cost_and_gain() -> None:
    found = p2p_bandwidth._figures(WITH_COMPUTE, OWN_BESIDE, 4 * GB)
    assert found["t_lb_ns"] == 10_000_000
    assert found["beside_speedup"] == 1.5
    assert found["beside_speedup_max"] == 1.8
    assert found["compute_stretch_ratio"] == 1.25
    assert found["forward_beside_rate_bytes_per_s"] == pytest.approx(4e9 / 0.011)
    (line,) = p2p_bandwidth._lines(found, OWN_BESIDE, WITH_COMPUTE)
    assert "1.25 times as long as alone; 1.50 times as fast" in line


def quantities(**changes: Any) -> dict[str, Any]:
    pair = make_pair(same=changes.get("same_device", False))
    figures = p2p_bandwidth._figures(WITH_COMPUTE, OWN_BESIDE, 4 * GB)
    rows = p2p_bandwidth._quantities(pair, make_options(**changes), figures, WITH_COMPUTE, 63e9)
    return {row.name: row for row in rows}


def test_nvlink_limits_direct_copies_and_pcie_what_goes_through_the_host() -> None:
    direct = quantities()
    assert direct["forward"].reached_ratio == pytest.approx(400 / 450)
    assert direct["both ways together"].limit == 900e9
    assert direct["copies and kernels"].reached_ratio == pytest.approx(10 / 12)
    for path in ("driver", "staged"):
        row = quantities(path=path)["forward"]
        assert (row.limit, row.limit_source) == (63e9, "PCIe generation × width")
    assert quantities(same_device=True)["forward"].limit is None


def test_what_each_path_must_show() -> None:
    def expected(*, one_stream: bool = False, **changes: Any) -> Any:
        return p2p_bandwidth._expected(make_pair(), make_options(**changes), one_stream=one_stream)

    assert expected() == [ExpectedLinks("both", "2>0", "0>2", "overlapped", LEAST_RHO)]
    assert expected(one_stream=True) == [ExpectedLinks("both", "2>0", "0>2", "serialized")]
    assert expected(with_compute=True)[1] == Expected("beside", "kernel", "p2p", "overlapped", 1.0)
    assert expected(path="staged", with_compute=True) == [
        Expected("both", "d2h", "h2d", "overlapped", 1.0, LEAST_RHO),
        Expected("beside", "d2h", "kernel", "overlapped", 1.0),
    ]
    assert expected(path="driver", with_compute=True) == []
    same = p2p_bandwidth._expected(make_pair(same=True), make_options(), one_stream=False)
    assert same == []


def test_what_a_reader_should_know_is_said() -> None:
    def notes(*, same: bool = False, fits: int = 256 << 20, **changes: Any) -> list[str]:
        options = make_options(same_device=same, **changes)
        return p2p_bandwidth._notes(make_pair(same=same), options, fits)

    assert notes() == []
    assert notes(size_bytes=4, fits=4) == []
    (staged,) = notes(path="driver")
    assert "the first piece alone" in staged
    (local,) = notes(same=True)
    assert "no link is measured" in local
    (shrunk,) = notes(fits=64 << 20)
    assert "from 256M to 64M" in shrunk


def run(*words: str) -> None:
    parser = argparse.ArgumentParser()
    BENCHMARK.add_arguments(parser)
    found = parser.parse_args(words)
    BENCHMARK.run(argparse.Namespace(**vars(found), twin=None, plan=None, reps=1))


def test_options_that_mean_nothing_together_are_refused() -> None:
    with pytest.raises(UsageError, match="--pull"):
        run("--pull", "--path", "staged")
    with pytest.raises(UsageError, match="give both"):
        run("--kernel-steps", "8")
    with pytest.raises(UsageError, match="--kernel-steps may be"):
        run("--kernel-steps", "9999999", "--with-compute")


def make_work(cupy: Any, **changes: Any) -> _Workload:
    work = object.__new__(_Workload)
    options = make_options(copies=2, **changes)
    work.pair = SimpleNamespace(cp=cupy, same=False, session=None)  # type: ignore[assignment]
    work.options, work.marks = options, {"both": [], "beside": []}
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
    work.ways = [SimpleNamespace(streams=(stream,)) for stream in streams[:2]]  # type: ignore[misc]
    work.kernel_stream, work.work = streams[2], object()
    work.copy = lambda source: cupy.log.append(f"copy from {source}")  # type: ignore[method-assign]
    work.launch = lambda: cupy.log.append("kernel")  # type: ignore[method-assign]
    return work


def test_the_copies_of_both_directions_are_issued_in_turn_between_marks(cupy: Any) -> None:
    work = make_work(cupy)
    work.both()
    assert cupy.log == [
        "e1 in s1", "e3 in s2",
        "copy from 0", "copy from 1", "copy from 0", "copy from 1",
        "e2 in s1", "e4 in s2",
    ]  # fmt: skip
    assert work.own_ns("both", 1) == [2_000_000, 2_000_000]


def test_a_kernel_is_issued_beside_each_copy_out_of_the_first_gpu(cupy: Any) -> None:
    work = make_work(cupy)
    work.beside()
    assert cupy.log[2:6] == ["copy from 0", "kernel"] * 2


def test_the_kernel_is_to_last_as_long_as_a_copy_among_others(cupy: Any) -> None:
    work = make_work(cupy)
    times = iter([9000, 5000])  # the first pass is cold

    def time_batch(streams: Any, issue: Any, *, waits: bool) -> int:
        issue()
        return next(times)

    work.pair.session = SimpleNamespace(time_batch=time_batch)  # type: ignore[assignment]
    assert work.copy_ns() == 2500
    assert cupy.log == ["copy from 0"] * 4


def test_the_driver_may_stage_large_copies_while_they_are_issued(cupy: Any) -> None:
    # With peer access off, issuing a large copy waits for the GPU: behind a closed gate for ever.
    for path, waits in (("p2p", False), ("driver", True), ("staged", False)):
        passes = {each.name: each.waits for each in make_work(cupy, path=path).passes()}
        assert passes["both"] is waits
        assert passes["compute"] is False


class Pattern:
    """As the real one, on the host."""

    def fill_device(self, array: Any, first: int = 0) -> None:
        array[:] = np.arange(first, first + array.size)

    def count(self, array: Any, first: int, worked: int, added: int, wrong: Any) -> None:
        wrong[0] += np.sum(array != np.arange(first, first + array.size))


class Counter(np.ndarray[Any, Any]):
    def get(self) -> Any:
        return self


@pytest.mark.parametrize(
    ("lost", "wrong"),
    [(None, 0), (("forward", 0), 8), (("backward", 1), 8), (("both", 0), 8), (("both", 1), 8)],
)
def test_what_one_pass_loses_is_not_covered_by_what_others_bring(
    cupy: Any, lost: tuple[str, int] | None, wrong: int
) -> None:
    work = make_work(cupy)
    work.work = None
    work.pair = SimpleNamespace(  # type: ignore[assignment]
        on=lambda side: nullcontext(), synchronize=lambda: None, same=False, cp=cupy
    )
    work.first = work.compared = 0
    work.sending = ()
    work.sent, work.received = ([np.zeros(8, np.float32) for _ in range(2)] for _ in range(2))
    work.patterns = [Pattern(), Pattern()]  # type: ignore[list-item]
    work.wrong = [np.zeros(1, np.uint64).view(Counter) for _ in range(2)]
    current = ""

    def copy(source: int) -> None:
        if (current, source) != lost:
            work.received[1 - source][:] = work.sent[source]

    work.copy = copy  # type: ignore[method-assign]
    for _ in range(2):
        for each in work.passes():
            assert each.prepare is not None
            each.prepare()
            current = each.name
            each.issue()
    if lost is None:
        work.check()
    else:
        with pytest.raises(ProgramError, match=f"wrong data: {2 * wrong} of 64 elements"):
            work.check()
