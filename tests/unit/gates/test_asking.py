"""Figures by method: the same values and the same refusals as expectations."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuscope import api, samples
from gpuscope.errors import CannotJudgeError, UsageError
from gpuscope.gates.asking import Figures, ask
from gpuscope.gates.grammar import ExpectationError
from tests.make_trace import make_trace


@pytest.fixture
def streamed() -> Figures:
    return api.asker([samples.path("streams_run")])("streamed")


def test_values(streamed: Figures) -> None:
    assert streamed.hidden("h2d", by="kernel") == pytest.approx(0.8259, abs=1e-4)
    assert streamed.overlap("d2h", "kernel") == pytest.approx(0.8729, abs=1e-4)
    assert streamed.verdict("h2d", "kernel") == "overlapped"
    assert 50e9 < streamed.rate("h2d") < 53e9
    assert streamed.busy("kernel") == pytest.approx(24.5e6, rel=0.01)
    assert streamed.value("span.p90") == 32_445_535
    assert streamed.busy() < 32_445_535
    assert streamed.exposed("h2d") < streamed.busy("h2d")
    assert streamed.lacks("same-stream", "host-sync")


def test_expectations(streamed: Figures) -> None:
    streamed.expect("hidden(h2d, kernel) >= 0.6")
    with pytest.raises(AssertionError, match=r"^streamed: span <= 1 ms is not met: 32\.4 ms, the"):
        streamed.expect("span <= 1 ms")
    with pytest.raises(ExpectationError, match=r"\(column 11\)"):
        streamed.expect("spam <= 1 ms")


def test_worst_needs_a_comparison(streamed: Figures) -> None:
    with pytest.raises(UsageError, match="depends on what it is compared with"):
        streamed.value("span.worst")


def test_what_cannot_be_judged_is_an_error_not_a_value(streamed: Figures) -> None:
    with pytest.raises(CannotJudgeError, match="no p2p in it"):
        streamed.exposed("p2p")
    with pytest.raises(CannotJudgeError, match="could not look"):
        streamed.lacks("mpi-blocking")
    with pytest.raises(CannotJudgeError, match="there is no range 'nope'"):
        api.asker([samples.path("streams_run")])("nope").busy()


def test_scopes(tmp_path: Path) -> None:
    asker = api.asker([samples.path("streams_run")])

    assert asker(path="gs:measure/gs:iter/streamed").value("instances") == 5
    assert asker("gs:iter").value("instances") == 5
    assert asker().value("count(kernel)") == 80
    assert asker(device=0).value("count(kernel)") == 80
    assert not asker("sequential").lacks("same-stream")
    with pytest.raises(UsageError, match="not both"):
        asker("a", path="b")


def test_several_devices_need_a_choice() -> None:
    trace = make_trace(
        kernels=[(0, 100, "s7"), (0, 301, "s7", {"device": 1})], devices=2, ranges=[("a", 0, 200)]
    )
    from gpuscope.analysis import Options

    both = ask([trace], [Options()], "a")

    with pytest.raises(UsageError, match="2 values"):
        both.busy("kernel")
    assert ask([trace], [Options()], "a", device=1).busy("kernel") == 301
    both.expect("busy(kernel) <= 301 ns")
    with pytest.raises(AssertionError, match="GPU 1, one of 2"):
        both.expect("busy(kernel) <= 300 ns")


def test_a_failing_test_shows_the_scope_not_the_tables() -> None:
    path = samples.path("streams_run")
    assert repr(api.asker([path])("streamed")) == f"<Figures of streamed in {path}>"
    assert repr(api.asker([path])()) == f"<Figures of the whole trace in {path}>"
