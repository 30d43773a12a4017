from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpuscope.benchmarks import norm as benchmark
from gpuscope.benchmarks._harness import Expected, Statistics

US = 1_000
OPTIONS = benchmark._Options("nccl", 1 << 20, 10, 10, probed=False)


def test_the_bus_carries_twice_the_share_of_the_others() -> None:
    # 8 MiB in 1 ms: over two ranks the algorithm's rate, over four 1.5 times that.
    rate = 8 * (1 << 20) / 1e-3
    assert benchmark.bus_rate_bytes_per_s(1 << 20, 1e6, 2) == pytest.approx(rate)
    assert benchmark.bus_rate_bytes_per_s(1 << 20, 1e6, 4) == pytest.approx(1.5 * rate)


def test_the_longer_of_kernel_and_sum_sets_the_pace() -> None:
    assert benchmark.delayed_bound_ns(100, 80, 6) == 6 * 100 + 80
    assert benchmark.delayed_bound_ns(80, 100, 6) == 80 + 6 * 100
    assert benchmark.delayed_bound_ns(100, 80, 1) == 180  # nothing to hide under


def figures(path: str) -> dict[str, float | None]:
    options = replace(OPTIONS, path=path)
    counts = {1: 50, 1 << 20: 6}
    passes = {
        benchmark.pass_name(each, count): Statistics.of([rounds * time_us * US])
        for each, time_us in (("mpi-host", 40), ("nccl", 20), ("mpi-device", 30))
        for count, rounds in counts.items()
    }
    for name, time_us in (("blocking", 900), ("delayed", 600)):
        passes[name] = Statistics.of([time_us * US])
        passes[f"nccl-{name}"] = Statistics.of([time_us * US // 3])
    costs = benchmark._Costs(10 * US, 70 * US, 20 * US if path != "mpi-host" else None)
    kernels = (90 * US, 30 * US if path != "mpi-host" else None)
    return benchmark._figures(passes, options, costs, kernels, 2)


def test_figures_of_the_paths_that_were_measured() -> None:
    found = figures("mpi-device")
    assert found["mpi_host_1_ns"] == 40 * US
    assert found["nccl_1M_ns"] == 20 * US
    assert found["mpi_device_1M_ns"] == 30 * US
    assert found["nccl_1M_bus_rate_bytes_per_s"] == pytest.approx(8 * (1 << 20) / 20e-6)
    assert found["delayed_bound_ns"] == 6 * 90 * US + 80 * US
    assert found["nccl_delayed_bound_ns"] == 6 * 30 * US + 20 * US
    assert found["speedup"] == found["nccl_speedup"] == 1.5
    rows = benchmark._quantities(found, replace(OPTIONS, path="mpi-device"), 450e9, "NVLink × 18")
    assert [row.name for row in rows] == [
        "nccl, 1M doubles", "mpi-device, 1M doubles", "delayed", "nccl-delayed",
    ]  # fmt: skip
    assert rows[2].reached_ratio == pytest.approx(620 / 600)


def test_without_nccl_there_are_no_figures_of_it() -> None:
    found = figures("mpi-host")
    assert not [name for name in found if "nccl" in name or "device" in name]
    assert [row.name for row in benchmark._quantities(found, replace(OPTIONS, path="mpi-host"),
                                                      None, "")] == ["delayed"]  # fmt: skip


def test_what_the_trace_must_show() -> None:
    hidden = ("overlapped", 5 / 6)
    plain = ("serialized", 1.0)
    assert benchmark._expected(OPTIONS, None) == [
        Expected("blocking", "kernel", "mpi", *plain),
        Expected("delayed", "kernel", "mpi", *hidden),
        Expected("nccl-blocking", "comm", "kernel", *plain),
        Expected("nccl-delayed", "comm", "kernel", *hidden),
    ]
    assert len(benchmark._expected(replace(OPTIONS, path="mpi-host"), None)) == 2
    twin = benchmark._expected(OPTIONS, "blocking-copy")
    assert {(row.verdict, row.ratio_limit) for row in twin} == {plain}


def test_sums_on_the_host_are_read_before_they_are_spoilt() -> None:
    late: list[Callable[[], object]] = []

    class Device(np.ndarray[Any, Any]):
        """Does what it is told when the host waits, as a GPU may that others are using."""

        def set(self, host: Any) -> None:
            late.append(lambda: np.copyto(self, host))

        def fill(self, value: Any) -> None:
            late.append(lambda: np.ndarray.fill(self, value))

    def wait() -> None:
        while late:
            late.pop(0)()

    def launch(kernel: str, elements: int, arguments: Any) -> None:
        late.append(lambda: seen.append((kernel, arguments[0].tolist())))

    seen: list[Any] = []
    norm = object.__new__(benchmark._Norm)
    norm.cp = SimpleNamespace(cuda=SimpleNamespace(runtime=SimpleNamespace(deviceSynchronize=wait)))
    norm.ranks = SimpleNamespace(rank=0, size=2)  # type: ignore[assignment]
    norm.local, norm.summed = (np.zeros(3).view(Device) for _ in range(2))
    norm.host_summed = np.array([1.0, 2.0, 3.0])
    norm._fill, norm._check, norm._wrong = "fill", "check", None
    norm._serial = norm._compared = 0
    norm._pending = (3, True)
    norm._launch = launch  # type: ignore[method-assign]
    norm.prepare(3, on_host=True, filled=False)
    assert seen == [("check", [1.0, 2.0, 3.0])]
    assert np.isnan(norm.host_summed).all()
