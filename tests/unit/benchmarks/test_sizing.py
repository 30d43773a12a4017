import argparse
from collections.abc import Callable

import pytest

from gpuscope.benchmarks._harness.memory import copied_bytes
from gpuscope.benchmarks._harness.sizing import (
    MIB,
    Calibration,
    calibrate_steps,
    check_chunk,
    chosen_bytes,
    chunk_bytes,
    fit_chunk,
    format_size,
    memory_limit_bytes,
    positive_float,
    positive_int,
    rate_bytes_per_s,
    size_argument,
)
from gpuscope.errors import ProgramError, UsageError


def kernel(fixed_ns: float, step_ns: float) -> Callable[[int], int]:
    return lambda steps: round(fixed_ns + step_ns * steps)


@pytest.mark.parametrize(
    ("text", "size"), [("64M", 64 * MIB), ("1g", 1 << 30), ("8", 8), ("3K", 3072)]
)
def test_sizes(text: str, size: int) -> None:
    assert size_argument(text) == size
    assert size_argument(format_size(size)) == size


@pytest.mark.parametrize("text", ["", "M", "0", "-4", "1.5G", "64MB", "6", "4T"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        size_argument(text)


@pytest.mark.parametrize("text", ["0", "-1", "x", "", "1.0"])
def test_counts_that_are_none(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="whole number"):
        positive_int(text)


def test_a_chunk_takes_three_milliseconds_in_steps_of_16_mib() -> None:
    # 64 MiB in 1.21 ms is 55.5 GB/s: 166 MB in 3 ms, nearest to 160 MiB.
    assert chunk_bytes(64 * MIB, 1_209_000) == 160 * MIB
    assert chunk_bytes(64 * MIB, 100_000_000) == 16 * MIB
    assert chunk_bytes(64 * MIB, 1_000) == 256 * MIB


def test_memory_limit_is_the_smaller_share() -> None:
    limit = memory_limit_bytes(
        device_free=1000 * MIB, host_free=1000 * MIB, device_buffers=4, host_buffers=8
    )
    assert limit == 15 * MIB  # 12 % of the host's over 8, not 25 % of the device's over 4
    limit = memory_limit_bytes(
        device_free=100 * MIB, host_free=10_000 * MIB, device_buffers=5, host_buffers=8
    )
    assert limit == 5 * MIB


def test_a_calibrated_chunk_is_halved_until_it_fits() -> None:
    assert fit_chunk(160 * MIB, 200 * MIB) == 160 * MIB
    assert fit_chunk(160 * MIB, 50 * MIB) == 40 * MIB


def test_a_default_that_was_halved_is_said() -> None:
    notes: list[str] = []
    assert chosen_bytes(None, 64 * MIB, 64 * MIB, notes) == 64 * MIB
    assert chosen_bytes(32 * MIB, 64 * MIB, 40 * MIB, notes) == 32 * MIB
    assert notes == []
    assert chosen_bytes(None, 64 * MIB, 40 * MIB, notes) == 32 * MIB
    assert notes == ["buffers were shrunk from 64M to 32M to fit the memory"]
    with pytest.raises(UsageError, match="do not fit"):
        chosen_bytes(64 * MIB, 16 * MIB, 40 * MIB, notes)


def test_no_chunk_below_one_mib() -> None:
    with pytest.raises(UsageError, match="fewer --chunks"):
        fit_chunk(16 * MIB, MIB // 2)


def test_a_chosen_chunk_is_refused_with_one_that_fits() -> None:
    check_chunk(64 * MIB, 64 * MIB)
    with pytest.raises(UsageError, match="use `--size 16M`"):
        check_chunk(64 * MIB, 20 * MIB)


@pytest.mark.parametrize(("fixed_ns", "step_ns"), [(0, 1500), (60_000, 1500), (90_000, 14)])
def test_calibration_finds_the_steps(fixed_ns: float, step_ns: float) -> None:
    measure = kernel(fixed_ns, step_ns)
    steps = calibrate_steps(measure, 3_000_000, 300_000)
    assert abs(measure(steps) - 3_000_000) <= 100_000


def test_calibration_measures_little() -> None:
    trials: list[int] = []

    def measure(steps: int) -> int:
        trials.append(steps)
        return kernel(60_000, 1500)(steps)

    calibrate_steps(measure, 3_000_000, 200_000)
    assert len(trials) <= 3


def test_calibration_stops_at_the_ends() -> None:
    assert calibrate_steps(kernel(0, 1), 3_000_000, 5000) == 5000
    assert calibrate_steps(kernel(9_000_000, 1500), 3_000_000, 5000) == 1


def test_calibration_gives_up_on_times_that_mean_nothing() -> None:
    times = iter([1_000_000, 9_000_000] * 10)
    with pytest.raises(ProgramError, match="--kernel-steps"):
        calibrate_steps(lambda _: next(times), 3_000_000, 100_000)


def test_a_copy_that_was_slow_only_while_the_kernel_was_calibrated_is_said() -> None:
    calibration = Calibration(2, 2_800_000)
    assert calibration.target_ns == 5_600_000
    (remark,) = calibration.remarks(5_600_000, 2_450_000)
    assert remark == (
        "the kernel lasts 2.29 times the copy, not 2 times: the copy took 2.80 ms when the kernel "
        "was calibrated, 2.45 ms at the end"
    )
    assert calibration.remarks(5_600_000, 2_560_000) == []
    assert calibration.remarks(5_600_000, 3_200_000) != []  # or at the end only


def test_rate() -> None:
    assert rate_bytes_per_s(55_000_000, 1_000_000) == 55e9
    assert rate_bytes_per_s(1, None) is None


@pytest.mark.parametrize(("text", "value"), [("0.25", 0.25), ("10", 10.0), ("1e1", 10.0)])
def test_numbers_above_zero(text: str, value: float) -> None:
    assert positive_float(text) == value


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "x"])
def test_other_numbers_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="not a number above 0"):
        positive_float(text)


def test_the_copied_buffer_exceeds_four_caches() -> None:
    assert copied_bytes(6 * MIB) == 256 * MIB
    assert copied_bytes(100 * MIB) == 401 * MIB
