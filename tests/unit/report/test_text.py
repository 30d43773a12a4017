"""Analyses as text and tables: the lines of one small trace."""

from __future__ import annotations

import csv
import dataclasses
import io
from typing import Any

import pytest
from rich.console import Console

from gpuscope import api, samples
from gpuscope.analysis import Options
from gpuscope.model.result import Analysis, Finding, JudgedHidden, JudgedPair, Judgement
from gpuscope.model.trace import Trace
from gpuscope.report.table import csv_text, to_csv, to_markdown
from gpuscope.report.text import detail_lines, render_analysis, render_judgement
from tests.make_trace import make_trace, of_rank

MS = 1_000_000


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    """A copy alone, and one that is half as fast beside a kernel."""
    trace = make_trace(
        kernels=[(30 * MS, 50 * MS, "s1", {"name": "gemm"})],
        h2d=[
            (0, 10 * MS, "s2", {"bytes": 10 * MS}),
            (30 * MS, 50 * MS, "s2", {"bytes": 10 * MS}),
        ],
        ranges=[("step", 25 * MS, 40 * MS), ("load", 0, 5)],
    )
    return api.analyze_trace(trace)


def lines(analysis: Analysis, top: int | None = None) -> list[str]:
    console = Console(file=io.StringIO(), width=80)
    render_analysis(analysis, console, top)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return [line.strip() for line in text.splitlines()]


def test_idle_time_rates_and_contention_get_a_line(analysis: Analysis) -> None:
    printed = lines(analysis)
    assert "idle 20.0 ms in 1 gap, longest 20.0 ms; h2d to kernel 20.0 ms" in printed
    assert "rates h2d 667 MB/s" in printed
    # The second copy and the kernel are 20 ms each, and the first copy comes before the second.
    assert "at best 30.0 ms if the chunks are independent, 30.0 ms in their order" in printed
    assert "beside other work h2d 2.00× as long as alone" in printed
    assert "streams 2 30.0 ms · 1 20.0 ms" in printed
    assert max(map(len, printed)) <= 80


def test_communication_is_kernels_and_peer_copies_together() -> None:
    trace = make_trace(
        devices=2,
        comm=[(0, 20 * MS, "s1")],
        p2p=[(10 * MS, 30 * MS, "s2", {"src": 0, "dst": 1})],
        kernels=[(25 * MS, 60 * MS, "s3")],
    )
    found = api.analyze_trace(trace)
    assert "communication 30.0 ms, 25.0 ms of it under no kernel" in lines(found)
    row = next(csv.DictReader(io.StringIO(to_csv([found]))))
    assert (row["communication_ns"], row["exposed_communication_ns"]) == ("30000000", "25000000")


def test_how_far_a_ranks_clock_was_moved_is_told_of_all_but_the_first() -> None:
    def rank(number: int, ahead_ns: int) -> Trace:
        barriers = [("MPI_Barrier", at + ahead_ns, at + ahead_ns + 40) for at in (1000, 2000)]
        trace = of_rank(make_trace(kernels=[(0, 10, "s1")], mpi=barriers), number)
        process = dataclasses.replace(trace.processes[0], pid=100 + number)
        return dataclasses.replace(trace, start_utc_ns=0, processes=(process,))

    traces = [rank(0, 0), rank(1, 0), rank(2, 500)]
    analyses = api.analyze_together(traces, [Options()] * 3)

    said = [line for each in analyses for line in lines(each) if line.startswith("messages")]
    assert said == [
        "messages of rank 0",
        "messages of rank 1, clock not moved (to within 40 ns)",
        "messages of rank 2, clock moved by -500 ns (to within 40 ns)",
    ]


def test_top_lists_what_could_still_be_hidden_and_counts_the_rest(analysis: Analysis) -> None:
    printed = lines(analysis, top=1)
    assert [line.split(" ×1")[0] for line in printed if " ×1 " in line] == ["(whole trace)"]
    assert "2 more with less to gain: --json and --csv list them" in printed


def test_csv_holds_the_figures_of_both_classes(analysis: Analysis) -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv([analysis]))))
    whole = rows[0]
    assert (whole["a"], whole["b"]) == ("h2d", "kernel")
    assert (whole["idle_ns"], whole["gap_count"]) == (str(20 * MS), "1")
    assert float(whole["rate_a_bytes_per_s"]) == 20 * MS * 1e9 / (30 * MS)
    assert (whole["stretch_a"], whole["stretch_b"]) == ("2.0", "")
    load = next(row for row in rows if row["range"] == "load")
    assert (load["a"], load["verdict"]) == ("", "")


def test_no_text_of_a_csv_is_a_formula_and_no_number_changes() -> None:
    names = ["=1+2", "+x", "-x", "@x", "\t=1+2", "\n=1+2", "a=1", "'=", "-", ""]
    (found,) = csv.reader(io.StringIO(csv_text([[*names, -1, -1.5, None, True]])))
    assert found[:4] == ["'=1+2", "'+x", "'-x", "'@x"]
    assert found[4:10] == ["�=1+2", "�=1+2", "a=1", "'=", "'-", ""]
    assert found[10:] == ["-1", "-1.5", "", "True"]


def test_neither_is_a_range_of_that_name() -> None:
    trace = make_trace(kernels=[(10, 50, "s7")], ranges=[('=HYPERLINK("x")', 0, 60)])
    (_, row) = csv.DictReader(io.StringIO(to_csv([api.analyze_trace(trace)])))
    assert row["range"] == '\'=HYPERLINK("x")'


def test_markdown_has_a_row_a_pair(analysis: Analysis) -> None:
    text = to_markdown([analysis])
    assert "| \\(whole trace\\) | 1 |" in text.replace("(", "\\(").replace(")", "\\)")
    assert "| 20.0 ms | h2d ∩ kernel |" in text


TOGETHER = {"with": ["host-read", "gpu-full"], "at_most_ns": 3 * MS}


@pytest.mark.parametrize(
    ("saving_ns", "limits", "removable", "told"),
    [
        (None, {}, "unknown", ""),
        (2 * MS, {}, "yes", " (saves 2.00 ms)"),
        (2 * MS, {"limit_ns": 3 * MS}, "if-independent", " (saves up to 2.00 ms)"),
        (
            2 * MS,
            {"limit_ns": 2 * MS, "together": TOGETHER},
            "unknown",
            " (saves up to 2.00 ms, all that can be saved here)",
        ),
        (
            2 * MS,
            {"limit_ns": 3 * MS, "together": TOGETHER},
            "unknown",
            " (saves up to 2.00 ms, together with host-read and gpu-full at most 3.00 ms)",
        ),
    ],
)
def test_what_a_finding_saves_is_told_with_its_limit(
    analysis: Analysis, saving_ns: int | None, limits: dict[str, Any], removable: str, told: str
) -> None:
    finding = Finding(
        id="host-sync",
        severity="warning",
        process=1,
        device=0,
        range="step",
        claim="it waits",
        mechanism="seen",
        removable=removable,
        evidence=limits,
        advice="wait once",
        saving_ns=saving_ns,
    )

    found = dataclasses.replace(analysis, findings=(finding,))

    assert f"→ wait once{told}" in " ".join(lines(found))
    assert to_markdown([found]).rstrip().endswith(f"→ wait once{told}")


def test_a_finding_says_on_which_of_several_gpus() -> None:
    several = api.analyze_trace(api.open_trace(samples.path("p2p_driver_run")))
    for gpu in (0, 1):
        place = f" in hops-64 · GPU {gpu}: "
        assert f"peer-through-host{place}" in " ".join(lines(several))
        assert f"**peer-through-host**{place}" in to_markdown([several])


def test_directions_between_gpus_are_told_for_the_trace_and_for_ranges() -> None:
    there, back = {"src": 0, "dst": 1}, {"src": 1, "dst": 0, "device": 1}
    turns = [(place, place + 1, "s1", back if place % 2 else there) for place in range(6)]
    trace = make_trace(
        devices=2,
        memset=[(200, 201, "s9")],
        p2p=[
            *((start * MS, end * MS, *rest) for start, end, *rest in turns),
            (10 * MS, 20 * MS, "s1", there),
            (10 * MS, 20 * MS, "s1", back),
        ],
        ranges=[("chain", 0, 7 * MS), ("both", 9 * MS, 21 * MS)],
    )
    printed = lines(api.analyze_trace(trace))
    links = [line for line in printed if line.startswith("links")]
    assert links[0].startswith("links 0>1 ∩ 1>0: 76.9 % overlapped")  # 10 of 13 ms
    assert links[1].startswith("links 0>1 ∩ 1>0 in chain: 0.0 % serialized")
    assert "the direction changes 5 times" in " ".join(printed)
    assert links[2].startswith("links 0>1 ∩ 1>0 in both: 100.0 % overlapped")


def test_more_ranges_than_a_screen_takes_are_counted() -> None:
    there, back = {"src": 0, "dst": 1}, {"src": 1, "dst": 0, "device": 1}
    places = range(7)
    p2p = [(10 * at * MS, (10 * at + 5) * MS, "s1", way) for at in places for way in (there, back)]
    ranges = [(f"r{at}", 10 * at * MS, (10 * at + 6) * MS) for at in places]
    printed = lines(api.analyze_trace(make_trace(devices=2, p2p=p2p, ranges=ranges)))
    assert sum(line.startswith("links 0>1 ∩ 1>0 in r") for line in printed) == 5
    assert "links in 2 more ranges: --json lists them" in printed


def test_what_must_be_hidden_is_a_bound_that_is_met_missed_or_not_judged() -> None:
    rows: list[JudgedHidden | JudgedPair] = [
        JudgedHidden("overlapped", 0.8, 1.0, 0.99, "", True),
        JudgedHidden("serialized", 0.0, 0.1, 0.5, "", False),
        JudgedHidden("short", 0.0, 1.0, 0.5, "", True),
        JudgedPair("pair", "d2h", "kernel", "not judged", "partial", None, 0.5, "", True),
        JudgedHidden("gone", 0.8, 1.0, None, "no such range", None),
    ]
    out = io.StringIO()
    render_judgement(Judgement(tuple(rows)), Console(file=out, width=120))
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert "overlapped transfers hidden ≥ 80.0 % 99.0 % met" in lines
    assert "serialized transfers hidden ≤ 10.0 % 50.0 % NOT MET" in lines
    assert "short transfers hidden not judged 50.0 % not judged" in lines
    assert "pair d2h ∩ kernel not judged partial – 50.0 % not judged" in lines
    assert "gone transfers hidden ≥ 80.0 % no such range cannot judge" in lines


def test_the_best_in_order_is_none_that_an_engine_rules_out() -> None:
    """Four copies on four streams: no path is longer than one, but they share an engine."""
    rows = [(10 * k, 10 * k + 10, f"s{k}", {"launch": k}) for k in range(4)]
    kernels = [(15, 25, "s9", {"launch": 5})]
    (device,) = api.analyze_trace(make_trace(h2d=rows, kernels=kernels)).devices
    scope = device.scope
    assert scope.schedule_bound_ns is not None
    assert scope.schedule_bound_ns < scope.bound_ns
    assert "at best 40 ns if the chunks are independent, 40 ns in their order" in detail_lines(
        scope, whole=True
    )


def test_a_program_without_ranks_is_not_told_to_record_mpi() -> None:
    alone = dataclasses.replace(make_trace(kernels=[(0, MS, "s1")]), mpi=None)
    assert "mpi-blocking" in [gone.analyzer for gone in api.analyze_trace(alone).abstained]
    assert not any("MPI" in line for line in lines(api.analyze_trace(alone)))
    note = "note mpi-blocking could not look: no MPI calls (record with -t mpi)"
    assert note in lines(api.analyze_trace(of_rank(alone, 0)))
    talks = dataclasses.replace(make_trace(comm=[(0, MS, "s1")]), mpi=None)
    assert note in lines(api.analyze_trace(talks))


def test_what_a_trace_without_gpu_work_lacks_is_not_mpi() -> None:
    empty = dataclasses.replace(make_trace(), mpi=None)
    assert not any("note" in line for line in lines(api.analyze_trace(empty)))
    nothing = dataclasses.replace(empty, operations=None, api=None)
    why = (
        "note nothing on a GPU could be measured: no GPU activity (record with -t cuda, if there "
        "was any)"
    )
    assert why in " ".join(lines(api.analyze_trace(nothing)))


def steps(count: int, name: str) -> Analysis:
    """Ranges that differ by a number, the later the more of it serialized."""
    length = 10 * MS
    return api.analyze_trace(
        make_trace(
            kernels=[(at * length, at * length + 4 * MS, "s1") for at in range(count)],
            h2d=[
                (at * length + 4 * MS, at * length + 4 * MS + (at + 1) * 10_000, "s2")
                for at in range(count)
            ],
            ranges=[(name.format(at), at * length, at * length + 9 * MS) for at in range(count)],
        )
    )


def test_of_very_many_ranges_those_with_most_to_gain_are_printed() -> None:
    many = steps(100, "step {}")
    printed = lines(many)
    named = [line.split(" ×")[0] for line in printed if line.startswith("step ")]
    assert named == [f"step {at}" for at in range(61, 100)]  # and the whole trace
    assert "61 more with less to gain: --json and --csv list them" in printed
    assert "100 ranges differ by a number alone, such as 'step 0'" in " ".join(printed)
    assert len([line for line in lines(many, top=70) if line.startswith("step ")]) == 69


def test_chunks_that_are_numbered_are_not_complained_of() -> None:
    printed = lines(steps(8, "chunk{}"))
    assert not any("differ by a number" in line or "more with less" in line for line in printed)


def test_kernels_chained_in_one_stream_do_not_run_at_once() -> None:
    rows = [(0, 10 * MS, "s1"), (5 * MS, 20 * MS, "s1")]
    of_two = [(0, 10 * MS, "s1"), (5 * MS, 20 * MS, "s2")]
    chained, beside = (
        lines(api.analyze_trace(make_trace(kernels=each))) for each in (rows, of_two)
    )

    assert "kernel one by one in a stream, some begun before the one before had ended" in chained
    assert "kernel up to 2 at once, 1.2 in the mean" in beside


def test_ranges_of_kernels_alone_are_printed_with_how_many_ran_at_once() -> None:
    """Four at once for 10 ms; then two one after the other."""
    rows = [(0, 10 * MS, f"s{at}") for at in range(4)]
    rows += [(20 * MS, 25 * MS, "s1"), (25 * MS, 30 * MS, "s1")]
    ranges = [("many", 0, 10 * MS), ("one", 20 * MS, 30 * MS)]
    printed = lines(api.analyze_trace(make_trace(kernels=rows, ranges=ranges)))
    many = printed.index("many ×1  span 10.0 ms · busy 10.0 ms")
    assert "kernel up to 4 at once, 4.0 in the mean" in printed[many + 1 : many + 3]
    one = printed.index("one ×1  span 10.0 ms · busy 10.0 ms")
    assert printed[one + 1] == "kernel one at a time"
    # Beside ranges with pairs those without are counted.
    pair = make_trace(
        kernels=[*rows, (40 * MS, 50 * MS, "s1")],
        h2d=[(45 * MS, 55 * MS, "s2")],
        ranges=[*ranges, ("both", 40 * MS, 60 * MS)],
    )
    printed = lines(api.analyze_trace(pair))
    assert "2 more of one class of work only: --json and --csv list them" in printed


def test_markdown_has_one_row_for_the_pairs_that_are_immaterial() -> None:
    text = to_markdown(api.analyze([samples.path("pageable")]))
    rows = [line for line in text.splitlines() if line.startswith("| pageable |")]
    assert [row.split(" | ")[5:] for row in rows] == [
        ["d2h ∩ h2d", "0 ns", "0.0 %", "serialized |"],
        ["d2h ∩ kernel, h2d ∩ kernel", "–", "–", "immaterial |"],
    ]
