import itertools

import numpy as np

from gpuscope.benchmarks._harness.data import PATTERN_BITS, max_steps, pass_term, pass_value


def test_terms_add_up_to_the_value() -> None:
    for last in (0, 1, 2, 60, 61, 500):
        assert sum(pass_term(index) for index in range(1, last + 1)) == pass_value(last)


def test_no_pass_leaves_the_data_as_it_was() -> None:
    assert all(pass_term(index) for index in range(1, 1000))
    assert all(pass_value(index) for index in range(1, 1000))


def test_one_or_two_lost_passes_show() -> None:
    terms = [pass_term(index) for index in range(1, 200)]
    for gap in (1, 2):
        assert all(sum(terms[at : at + gap]) for at in range(len(terms) - gap))


def test_all_values_are_exact_in_float32() -> None:
    largest = (1 << PATTERN_BITS) - 1 + max_steps() * max(pass_value(i) for i in range(200))
    assert largest <= 1 << 24
    # Walking there one step at a time loses nothing.
    start = np.float32((1 << PATTERN_BITS) - 1)
    walked = list(itertools.accumulate([np.float32(61)] * 1000, lambda a, b: a + b, initial=start))
    assert walked[-1] == (1 << PATTERN_BITS) - 1 + 61_000
