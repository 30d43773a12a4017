"""The phases of the ranks side by side, and what is said where two shares differ."""

from __future__ import annotations

import dataclasses
import io

from rich.console import Console

from gpuscope.analysis import Options, run_all
from gpuscope.analyzers import ANALYZERS
from gpuscope.model.result import Analysis
from gpuscope.report.phases import phase_rows, remarks, render
from tests.make_trace import make_trace

MINE = tuple(each for each in ANALYZERS if each.name in {"ranges", "phases"})


def analysis(copy_us: tuple[int, int], mpi_us: tuple[int, int]) -> Analysis:
    """Return two instances of a range, with a kernel in their first 100 µs."""
    steps = [("step", 1000 * at, 1000 * at + 300_000) for at in (0, 1000)]
    trace = make_trace(
        kernels=[(1000 * at, 1000 * (at + 100), "s1") for at in (0, 1000)],
        d2h=[
            (1000 * (at + copy_us[0]), 1000 * (at + copy_us[1]), "s2", {"launch": 1000 * at + 5})
            for at in (0, 1000)
        ],
        mpi=[("MPI_Waitall", 1000 * (at + mpi_us[0]), 1000 * (at + mpi_us[1])) for at in (0, 1000)],
        ranges=[*steps, ("gs:iter", 0, 1_400_000)],
    )
    return run_all(trace, MINE, Options())


HIDDEN = analysis((20, 60), (60, 90))
EXPOSED = analysis((100, 140), (20, 90))


def printed(*analyses: Analysis, result: dict[str, object] | None = None, width: int = 140) -> str:
    out = io.StringIO()
    render(analyses, result, Console(file=out, width=width))
    return out.getvalue()


def text(*analyses: Analysis, result: dict[str, object] | None = None) -> str:
    return " ".join(printed(*analyses, result=result).split())


def test_every_rank_has_a_row_a_range_and_ranges_of_gpuscope_have_none() -> None:
    rows = phase_rows([HIDDEN, EXPOSED], None)
    assert [(row.range, row.rank, row.instances) for row in rows] == [
        ("step", "0", 2),
        ("step", "1", 2),
    ]


def test_times_are_those_of_an_instance_or_of_a_step() -> None:
    assert "an instance" in text(HIDDEN)
    assert "step 0 100 µs 0 ns 40.0 µs 100.0 % 0 ns 30.0 µs 30.0 µs" in text(HIDDEN)
    shown = text(HIDDEN, result={"options": {"steps": 4}, "figures": {}})
    assert "on average a step" in shown
    assert "step 0 25.0 µs 0 ns 10.0 µs 100.0 % 0 ns 7.50 µs 7.50 µs" in shown
    assert text() == ""


def test_a_terminal_of_80_columns_holds_the_phases() -> None:
    narrow = printed(HIDDEN, width=80)
    assert max(map(len, narrow.splitlines())) <= 80
    assert narrow.replace("─", "").split() == printed(HIDDEN).replace("─", "").split()


def test_what_the_times_tell_stands_beside_what_the_trace_shows() -> None:
    shown = text(HIDDEN, result={"figures": {"omb_overlap_ratio": 0.95}})
    assert "exposed in MPI kernels by times" in shown  # heads of two lines
    assert "100.0 % 0 ns 30.0 µs 30.0 µs 95.0 %" in shown
    assert "by times" not in text(HIDDEN)


def test_a_call_that_waits_beside_a_kernel_is_no_transfer() -> None:
    (said,) = remarks(phase_rows([EXPOSED], None), None)
    assert said.startswith(
        "step, rank 0: 100.0 % of the time in MPI lies beside kernels, and 0.0 %"
    )
    assert remarks(phase_rows([HIDDEN], None), None) == []


def test_times_and_trace_that_disagree_are_explained() -> None:
    def told(ratio: float, found: Analysis) -> list[str]:
        result = {"figures": {"omb_overlap_ratio": ratio}}
        return [line for line in remarks(phase_rows([found], None), result) if "OMB" in line]

    assert told(0.95, HIDDEN) == []
    (low,) = told(0.5, HIDDEN)
    assert "50.0 % of the exchange is hidden, the trace shows 100.0 %" in low
    assert "not the transfers, but MPI, a host that issues too late" in low
    (row,) = phase_rows([HIDDEN], None)
    without = dataclasses.replace(row.phases, mpi_ns=0, mpi_hidden_ns=0)
    rows = [dataclasses.replace(row, phases=without)]
    (low,) = remarks(rows, {"figures": {"omb_overlap_ratio": 0.5}})
    assert "not the transfers, but a host that issues too late" in low
    (high,) = told(0.5, EXPOSED)
    assert "the trace shows 0.0 % of the transfers hidden" in high
    assert "the times flatter it" in high


def test_kernels_that_are_slower_beside_transfers_are_named() -> None:
    """The kernel of 100 µs is that of four steps."""

    def told(alone_ns: int) -> str:
        figures = {"omb_overlap_ratio": 0.5, "t_comp_ns": alone_ns}
        (said,) = remarks(phase_rows([HIDDEN], None), {"figures": figures, "options": {"steps": 4}})
        return said

    assert "but kernels beside them (25.0 µs, alone 22.0 µs), MPI, a host" in told(22_000)
    assert "but MPI, a host" in told(25_000)


def test_what_the_times_tell_is_of_the_range_that_is_judged() -> None:
    def result(name: str) -> dict[str, object]:
        return {"figures": {"omb_overlap_ratio": 0.5}, "expected": [{"range": name}]}

    assert " kernels by times " in text(HIDDEN, result=result("step"))
    assert "by times" not in text(HIDDEN, result=result("another"))
    assert remarks(phase_rows([HIDDEN], None), result("another")) == []


def test_where_kernels_transfer_the_trace_shows_no_shares() -> None:
    result: dict[str, object] = {
        "figures": {"omb_overlap_ratio": 0.5},
        "expected": [{"range": "step", "verdict": "inconclusive (not observable)"}],
    }
    assert text(HIDDEN, result=result) == ""
    assert phase_rows([HIDDEN], result) == ()
