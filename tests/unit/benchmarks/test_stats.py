import pytest

from gpuscope.benchmarks._harness.stats import (
    Statistics,
    contended_median_ns,
    fit_messages,
    is_steady,
    is_warm,
    quantile,
    relative_spread,
)

MS = 1_000_000


def test_statistics_of_known_times() -> None:
    found = Statistics.of([50, 10, 20, 40, 30])
    assert found == Statistics(
        times_ns=(50, 10, 20, 40, 30),
        median_ns=30,
        p10_ns=14,
        p90_ns=46,
        min_ns=10,
        max_ns=50,
        mad_ns=10,
        n=5,
    )


def test_statistics_of_a_single_time() -> None:
    found = Statistics.of([7])
    assert (found.median_ns, found.p10_ns, found.p90_ns, found.mad_ns, found.n) == (7, 7, 7, 0, 1)


def test_quantile_interpolates() -> None:
    assert quantile([0, 10], 0.25) == 2.5
    assert quantile([3, 1, 2], 1) == 3


def test_relative_spread() -> None:
    assert relative_spread([1980, 1980, 1980]) == 0
    assert relative_spread([98, 100, 101]) == 0.03


def test_warm_up_takes_five_iterations_and_half_a_second() -> None:
    assert not is_warm([100 * MS] * 4, 3000 * MS)
    assert not is_warm([50 * MS] * 5, 250 * MS)
    assert is_warm([100 * MS] * 5, 500 * MS)


def test_warm_up_goes_on_until_the_medians_agree() -> None:
    falling = [200 * MS, 180 * MS, 150 * MS, 120 * MS, 100 * MS]
    assert not is_warm(falling, 750 * MS)
    assert is_warm([*falling, *[100 * MS] * 4], 1150 * MS)


def test_one_slow_iteration_does_not_prolong_the_warm_up() -> None:
    assert is_warm([100 * MS, 100 * MS, 300 * MS, 100 * MS, 100 * MS], 700 * MS)


def test_warm_up_ends_after_two_seconds_in_any_case() -> None:
    assert is_warm([100 * MS, 500 * MS, 100 * MS, 900 * MS, 400 * MS], 2000 * MS)


def test_contended_counts_only_what_ran_beside_the_other() -> None:
    own = [(0, 10), (10, 24), (24, 40), (40, 50)]
    other = [(8, 20), (20, 32), (32, 42)]
    assert contended_median_ns(own, other) == 15
    assert contended_median_ns(other, own) == 12


def test_contended_is_unknown_without_a_common_time() -> None:
    assert contended_median_ns([(0, 10)], [(10, 20)]) is None


def test_messages_of_a_known_latency_and_rate() -> None:
    # 2000 ns and 0.01 ns a byte (100 GB/s), exactly.
    fit = fit_messages({size: 2000 + size / 100 for size in (8, 1024, 65536)})
    assert fit is not None
    assert fit.alpha_ns == pytest.approx(2000)
    assert fit.beta_bytes_per_s == pytest.approx(100e9)
    assert fit.half_bytes == pytest.approx(200_000)
    assert fit.worst_ratio == pytest.approx(0, abs=1e-9)


def test_messages_off_the_line_are_told() -> None:
    # The line through (0, 10), (100, 10), (200, 40) is 5 + 0.15 n: 5, 20 and 35.
    fit = fit_messages({0: 10.0, 100: 10.0, 200: 40.0})
    assert fit is not None
    assert fit.alpha_ns == pytest.approx(5)
    assert fit.worst_ratio == pytest.approx(1.0)


def test_time_that_does_not_grow_has_no_rate() -> None:
    fit = fit_messages({8: 2000.0, 64: 2000.0, 512: 1900.0})
    assert fit is not None
    assert fit.beta_bytes_per_s is None
    assert fit.half_bytes is None
    assert fit_messages({8: 2000.0, 64: 2100.0}) is None


def test_times_that_move_steadily_are_not_steady() -> None:
    assert is_steady(Statistics.of([1000, 1010, 990, 1005, 995]))
    assert is_steady(Statistics.of([1400, 1000, 1001, 1002, 1000]))  # one was held up
    falling = Statistics.of([13_785, 12_888, 12_647, 12_532, 12_551])
    assert falling.mad_ns < 0.02 * falling.median_ns
    assert not is_steady(falling)
    assert not is_steady(Statistics.of([1000, 1000, 1200, 1200]))
    assert is_steady(Statistics.of([1400, 1000, 1001]))
    assert is_steady(Statistics.of([1000]))
