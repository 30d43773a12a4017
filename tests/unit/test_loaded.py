"""The Python API: what `gpuscope.load` returns, and that its examples are true."""

from __future__ import annotations

import doctest
import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import gpuscope
from gpuscope import samples
from gpuscope.analysis import Options
from gpuscope.errors import CannotJudgeError, TraceError, UsageError
from gpuscope.loaded import Ranks, Trace
from tests.make_trace import make_trace

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def streams() -> Trace:
    return gpuscope.load(samples.path("streams"))


def modules_with_examples() -> list[str]:
    files = [*(ROOT / "gpuscope").rglob("*.py")]
    names = {
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for file in files
        if any(
            ">>> " in line and "doctest: +SKIP" not in line
            for line in file.read_text("utf-8").splitlines()
        )
    }
    return sorted(names)


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_in_docstrings_are_true(name: str) -> None:
    failed, attempted = doctest.testmod(importlib.import_module(name))
    assert attempted
    assert not failed


@pytest.mark.parametrize("page", ["docs/python.md"])
def test_examples_in_the_docs_are_true(page: str) -> None:
    failed, attempted = doctest.testfile(str(ROOT / page), module_relative=False)
    assert attempted
    assert not failed


def test_the_package_alone_imports_nothing_heavy() -> None:
    script = "import sys, gpuscope; print(*{m.partition('.')[0] for m in sys.modules})"
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not set(ran.stdout.split()) & {"numpy", "pandas", "plotly", "dash", "rich"}


def test_nothing_prints(streams: Trace, capsys: pytest.CaptureFixture[str]) -> None:
    result = streams.overlap(range="streamed")
    _ = (result.matrix, result.instances, result.figure(), streams.causes(), streams.ranges)
    written = capsys.readouterr()
    assert (written.out, written.err) == ("", "")


def test_rows_of_a_trace(streams: Trace) -> None:
    operations = streams.operations
    assert len(operations) == 75
    assert (len(streams.kernels), len(streams.copies)) == (25, 50)
    assert set(streams.kernels["name"]) == {"dummy_kernel"}
    assert (operations["duration_ns"] == operations["end_ns"] - operations["start_ns"]).all()
    assert set(operations["device"]) == {0}
    by_class = operations.groupby("op_class", observed=True)["duration_ns"].sum().to_dict()
    scope = streams.overlap().scope
    assert by_class == {name: figures.work_ns for name, figures in scope.classes.items()}


def test_one_range_has_plain_tables(streams: Trace) -> None:
    result = streams.overlap(range="streamed")
    pair = result.scope.pair("h2d", "kernel")
    assert pair is not None
    assert result.matrix.loc["h2d", "kernel"] == pair.overlap_ratio
    assert result.times.loc["h2d", "kernel"] == pair.overlap_ns
    assert result.times.loc["h2d", "h2d"] == result.scope.classes["h2d"].busy_ns
    assert result.classes.loc["kernel", "count"] == 12
    assert len(result.pairs) == 3
    assert result.verdict("kernel", "h2d") == "overlapped"
    assert result.scope.schedule_bound_ns is not None
    assert result.scope.gaps is not None
    assert result.to_dict()[0]["scope"]["span_ns"] == result.scope.span_ns


def test_instances_sum_to_the_range(streams: Trace) -> None:
    result = streams.overlap(range="streamed")
    assert list(result.instances["index"]) == [0, 1, 2]
    assert result.instances["span_ns"].sum() == result.scope.span_ns
    pair = result.scope.pair("h2d", "kernel")
    assert pair is not None
    assert result.instances["h2d&kernel_ns"].sum() == pair.overlap_ns
    whole = streams.overlap()
    assert list(whole.instances["busy_ns"]) == [whole.scope.busy_ns]


def test_several_ranges_stand_under_their_names(streams: Trace) -> None:
    result = streams.overlap(range="s*")
    assert (len(result), result.names) == (2, ("sequential", "streamed"))
    place = ("streamed", int(result.pairs["process"].iloc[0]), 0, "h2d")
    assert result.matrix.loc[place, "kernel"] == pytest.approx(0.75, abs=0.001)
    assert set(result.instances["range"]) == {"sequential", "streamed"}
    with pytest.raises(UsageError, match="there are 2 scopes"):
        _ = result.scope


def test_two_gpus_are_never_summed() -> None:
    result = gpuscope.load(samples.path("p2p")).overlap(range="bidir")
    assert [entry.device for entry in result.entries] == [0, 1]
    assert set(result.matrix.index.get_level_values("device")) == {0, 1}


def test_windows_paths_and_classes(streams: Trace) -> None:
    assert streams.overlap(window="0:0.01").scope.span_ns <= 10_000_000
    assert streams.overlap(path="streamed/chunk0").names == ("streamed/chunk0",)
    other = gpuscope.load(samples.path("streams"), classes=["comm=dummy_kernel"])
    assert "comm" in other.overlap().scope.classes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"range": "a", "path": "a/b"}, "name a range or a path"),
        ({"range": "a", "window": "0:1"}, "a window cuts the whole trace"),
        ({"attribute": "fiber"}, "attribute is"),
        ({"window": "soon"}, "is no window"),
    ],
)
def test_arguments_that_make_no_sense(
    streams: Trace, arguments: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        streams.overlap(**arguments)


def test_what_is_absent_is_said(streams: Trace, tmp_path: Path) -> None:
    with pytest.raises(CannotJudgeError, match="no range 'steps' in"):
        streams.overlap(range="steps")
    with pytest.raises(CannotJudgeError, match="has no pair comm and kernel"):
        streams.overlap(range="streamed").verdict("comm", "kernel")
    with pytest.raises(CannotJudgeError, match="lies in the window"):
        streams.overlap(window="50:60")
    with pytest.raises(CannotJudgeError, match="no GPU work"):
        Trace(make_trace(), Options()).overlap()
    with pytest.raises(TraceError):
        gpuscope.load(tmp_path / "nothing.sqlite")
    assert Trace(make_trace(), Options()).operations.empty


def test_causes_as_rows(streams: Trace) -> None:
    found = streams.causes()
    assert list(found["id"]) == [finding.id for finding in streams.findings]
    assert "default-stream" in set(found["id"])
    assert isinstance(found, pd.DataFrame)
    only = streams.causes(range="seq*")
    assert set(only["range"]) == {"sequential"}
    assert only["together_ns"].isna().all()


def test_causes_say_what_they_save_together() -> None:
    found = gpuscope.load(samples.path("connections_limit")).causes()
    assert found["together_ns"].tolist() == [9_135_278, 9_135_278]
    assert found["saving_ns"].sum() > 9_135_278


def test_what_operations_waited_for(streams: Trace) -> None:
    (told,) = streams.explain(range="sequential").ranges
    assert (told.range, told.instances) == ("sequential", 3)
    assert {each.reason for each in told.reasons} >= {"stream"}
    (one,) = streams.explain(operation=5).operations
    assert one.start_ns == streams.operations.loc[5, "start_ns"]
    assert {each.range for each in streams.explain().ranges} >= {"sequential", "streamed"}
    with pytest.raises(CannotJudgeError, match="numbered from 0"):
        streams.explain(operation=75)
    with pytest.raises(CannotJudgeError, match="no range 'x'"):
        streams.explain(range="x")
    with pytest.raises(UsageError, match="not both"):
        streams.explain(range="x", operation=1)


def test_tables_as_they_were_read() -> None:
    raw = make_trace(
        kernels=[(0, 10, "s7")],
        comm=[(20, 30, "s7")],
        h2d=[(3, 5, "s8", {"bytes": 64})],
        memset=[(6, 7, "s8", {"bytes": 8})],
    )
    assert raw.kernels.to_pandas()["start_ns"].to_list() == [0, 20]
    copies, memsets = raw.copies.to_pandas(), raw.memsets.to_pandas()
    assert copies[["start_ns", "end_ns", "size_bytes"]].to_numpy().tolist() == [[3, 5, 64]]
    assert memsets["size_bytes"].to_list() == [8]


def test_figures_can_be_drawn(streams: Trace) -> None:
    assert streams.overlap(range="streamed").figure("dark").data
    with pytest.raises(UsageError, match="no theme 'blue'"):
        streams.figure("blue")
    assert streams.figure().data


def test_the_notebook_runs_from_top_to_bottom(monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat
    from nbclient import NotebookClient

    # The kernel is another process: it must import this tree.
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    file = ROOT / "docs" / "examples" / "overlap.ipynb"
    notebook = nbformat.reads(file.read_text("utf-8"), as_version=4)  # type: ignore[no-untyped-call]
    nbformat.validate(notebook)
    NotebookClient(
        notebook, timeout=120, resources={"metadata": {"path": str(file.parent)}}
    ).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert not [output for output in outputs if output["output_type"] in ("stream", "error")]
    shown = "".join(str(output.get("data")) for output in outputs)
    assert "overlapped" in shown
    assert "default-stream" in shown
    assert "application/vnd.plotly.v1+json" in shown


def test_causes_of_what_is_not_there_are_no_answer(streams: Trace) -> None:
    assert not len(streams.causes(range="streamed"))
    with pytest.raises(CannotJudgeError, match=r"'sequentail'.*; did you mean 'sequential'"):
        streams.causes(range="sequentail")
    with pytest.raises(CannotJudgeError, match=r"'sequentail'.*; did you mean 'sequential'"):
        streams.overlap(range="sequentail")


def test_a_domain_or_category_that_is_not_there_is_named(streams: Trace) -> None:
    with pytest.raises(CannotJudgeError, match="no range of the category '5' in "):
        streams.overlap(category=5)
    with pytest.raises(CannotJudgeError, match="no range 's' of the domain 'x' and category 'y' "):
        streams.overlap(range="s", domain="x", category="y")


def test_one_rule_for_classes_may_be_a_text() -> None:
    trace = gpuscope.load(samples.path("streams"), classes="comm=dummy.*")
    assert trace.overlap(range="streamed").verdict("comm", "h2d") == "overlapped"


@pytest.mark.parametrize("operation", ["1.5ms", 3.7])
def test_an_operation_is_named_by_its_row(streams: Trace, operation: Any) -> None:
    with pytest.raises(UsageError, match="give its row"):
        streams.explain(operation=operation)


@pytest.mark.parametrize("name", ["range", "path", "window", "domain", "category"])
def test_what_is_no_text_is_refused_in_words(streams: Trace, name: str) -> None:
    wrong: Any = {name: (0, 1)}
    with pytest.raises(UsageError, match=f"{name} is a text, not"):
        streams.overlap(**wrong)


def test_a_list_of_ranges_is_refused_in_words(streams: Trace) -> None:
    several: Any = ["streamed"]
    with pytest.raises(UsageError, match="one name, or a glob"):
        streams.causes(several)
    with pytest.raises(UsageError, match="one name, or a glob"):
        streams.explain(several)


# Several ranks


@pytest.fixture(scope="module")
def ranks() -> Ranks:
    return gpuscope.load_ranks(*(samples.path(f"jacobi_nccl_r{number}") for number in (0, 1)))


def test_ranks_know_from_each_other_what_a_trace_alone_cannot(ranks: Ranks) -> None:
    assert (len(ranks), ranks.names) == (2, ("rank 0", "rank 1"))
    assert [each.raw.processes[0].rank for each in ranks[:]] == [0, 1]
    alone = gpuscope.load(samples.path("jacobi_nccl_r0"))
    assert "comm-skew" not in set(alone.causes()["id"])
    assert "comm-skew" in set(ranks[0].causes()["id"])
    assert set(ranks.causes()["rank"]) == {"rank 0", "rank 1"}


def test_messages_of_ranks(ranks: Ranks) -> None:
    zero, one = ranks.messages.to_dict("records")
    assert (zero["rank"], zero["count"], zero["transfer_ns"]) == (0, 50, one["transfer_ns"])
    assert zero["transfer_ns"] + zero["wait_ns"] == zero["work_ns"]
    assert zero["exposed_ns"] + zero["hidden_ns"] == zero["work_ns"]
    assert ranks.clocks["matched"].tolist() == [50, 50]
    assert ranks.clocks["offset_ns"].tolist()[0] == 0


def test_mpi_calls_of_ranks(ranks: Ranks) -> None:
    frame = ranks.mpi
    (zero, one) = frame[frame["name"] == "MPI_Sendrecv"].to_dict("records")
    assert (zero["rank"], zero["count"], zero["size_bytes"]) == (0, 5, 327680)
    assert one["rank"] == 1
    assert (frame["gpu_busy_ns"] + frame["gpu_idle_ns"] == frame["work_ns"]).all()


def test_a_pair_is_jointly_what_it_is_on_the_worst_rank(ranks: Ranks) -> None:
    frame = ranks.verdicts("nccl_overlap")
    assert set(frame.index.get_level_values("range")) == {"nccl_overlap"}
    (row,) = frame.query("a == 'comm' and b == 'kernel'").to_dict("records")
    assert row == {"joint": "overlapped", "rank 0": "overlapped", "rank 1": "immaterial"}
    assert "(whole trace)" in set(ranks.verdicts().index.get_level_values("range"))


def test_a_run_of_several_ranks_is_named_by_its_folder(tmp_path: Path, ranks: Ranks) -> None:
    for number in (0, 1):
        (tmp_path / f"rank{number}").mkdir()
        place = samples.path(f"jacobi_nccl_r{number}")
        (tmp_path / f"rank{number}" / "trace.sqlite").write_bytes(place.read_bytes())
    found = gpuscope.load_ranks(tmp_path)
    pd.testing.assert_frame_equal(found.messages, ranks.messages)


def test_traces_that_name_no_rank_are_called_by_their_places() -> None:
    found = gpuscope.load_ranks(samples.path("streams"))
    assert found.names == ("trace 0",)
    assert found.messages.empty
    assert found.clocks.empty
    with pytest.raises(UsageError, match="name the folder of a run"):
        gpuscope.load_ranks()
    assert repr(found) == "<Ranks of 1 trace: trace 0>"


def test_a_range_that_no_rank_has(ranks: Ranks) -> None:
    with pytest.raises(CannotJudgeError, match="no rank launched GPU work in a range 'nope'"):
        ranks.verdicts("nope")
    with pytest.raises(UsageError, match="range is a text"):
        ranks.verdicts(3)  # type: ignore[arg-type]


def test_traces_that_are_given_in_another_way_than_they_are_taken() -> None:
    zero, one = (samples.path(f"jacobi_nccl_r{number}") for number in (0, 1))
    for call in (
        lambda: gpuscope.load(zero, one),
        lambda: gpuscope.load([zero, one]),  # type: ignore[arg-type]
        lambda: gpuscope.load_ranks([zero, one]),  # type: ignore[arg-type]
    ):
        with pytest.raises(UsageError, match=r"load_ranks\(\*paths\)"):
            call()
