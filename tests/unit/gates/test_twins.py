"""The twins of `streams` against the gate of the good run: real recordings of an H200."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuscope import api
from gpuscope.analysis import Options
from gpuscope.gates.budget import propose, read_budget
from gpuscope.gates.compare import compare
from gpuscope.gates.grammar import parse
from gpuscope.gates.verify import CAUSES, verify
from gpuscope.model.trace import Trace

Read = Callable[[str], Trace]
DATA = Path(__file__).parents[2] / "data" / "streams"

CAUSE = {
    "default-stream": "default-stream",
    "one-stream": "same-stream",
    "event-chain": "event-dependency",
    "host-sync": "host-sync",
    "alloc-free": "allocation-sync",
    "pageable": "pageable-copy",
}
"""What each twin that cannot overlap is told to have done."""
TWINS = [*CAUSE, "tiny-kernel", "cold-baseline"]


@pytest.fixture
def recording(tmp_path: Path) -> Read:
    def read(name: str) -> Trace:
        file = tmp_path / f"{name}.sqlite"
        file.write_bytes(gzip.decompress((DATA / f"{name}.sqlite.gz").read_bytes()))
        return api.open_trace(file)

    return read


@pytest.mark.parametrize("times", [False, True])
def test_another_good_run_meets_the_budget(recording: Read, times: bool) -> None:
    good, again = recording("good"), recording("again")

    for one, other in ((good, again), (again, good)):
        budget = read_budget(propose([one], [Options()], times=times), "budget.toml")
        done = verify([other], budget.expectations, [Options()])
        assert done.exit_code == 0, [row for row in done.rows if not row.met]


@pytest.mark.parametrize("twin", TWINS)
def test_every_twin_fails_the_budget_of_the_good_run(recording: Read, twin: str) -> None:
    budget = read_budget(propose([recording("good")], [Options()]), "budget.toml")

    done = verify([recording(twin)], budget.expectations, [Options()])

    assert done.exit_code == 4
    assert None not in {row.met for row in done.rows}


@pytest.mark.parametrize(("twin", "cause"), CAUSE.items())
def test_the_cause_alone_is_enough(recording: Read, twin: str, cause: str) -> None:
    absent = parse(f"no {cause} in streamed", CAUSES)

    assert verify([recording("good")], [absent], [Options()]).exit_code == 0
    assert verify([recording(twin)], [absent], [Options()]).exit_code == 4


@pytest.mark.parametrize("twin", TWINS)
def test_every_twin_is_a_change(recording: Read, twin: str) -> None:
    changed = compare([recording("good")], [recording(twin)], [Options()] * 2)

    assert changed.outcome == "changed"
    appeared = {cause.id for cause in changed.causes if cause.state == "appeared"}
    assert {CAUSE[twin]} <= appeared if twin in CAUSE else not appeared


def test_another_good_run_is_noise(recording: Read) -> None:
    assert compare([recording("good")], [recording("again")], [Options()] * 2).outcome == "noise"
