"""Several traces in one call: the ranks of one run, or of different ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import gpuscope
from gpuscope import api, samples
from gpuscope.app import layout
from gpuscope.app.state import Session
from gpuscope.cli import main
from gpuscope.communication import NOT_TOGETHER, TWICE

OVERLAP = [samples.path(f"jacobi_mpi_overlap_r{rank}") for rank in (0, 1)]
BLOCKING = [samples.path(f"jacobi_mpi_blocking_r{rank}") for rank in (0, 1)]
DIFFERENT = [OVERLAP[0], BLOCKING[1]]
WHY = "the traces were recorded 9948 s apart, further than they are long"


def run_of(folder: Path, paths: list[Path]) -> Path:
    """Make the folder of a run of these ranks."""
    for rank, path in enumerate(paths):
        (folder / f"rank{rank}").mkdir(parents=True)
        shutil.copy(path, folder / f"rank{rank}" / "trace.sqlite")
    return folder


def said(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main([str(word) for word in words]) == 0
    return capsys.readouterr().out


def test_traces_of_different_runs_have_no_joint_verdicts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    out = said(capsys, "analyze", *DIFFERENT)
    assert f"note: {WHY}" in out
    assert "all ranks together" not in out
    markdown = said(capsys, "analyze", "--markdown", *DIFFERENT)
    assert WHY in markdown
    assert "joint |" not in markdown
    for one in json.loads(said(capsys, "analyze", "--json", *DIFFERENT)):
        assert one["apart"].startswith(WHY)
        assert [entry["reason"] for entry in one["communication"]] == [NOT_TOGETHER]
    expect = ("--expect", "overlapped: span < 1 s")
    assert f"note {WHY}" in said(capsys, "verify", *DIFFERENT, *expect)
    session = Session([api.open_trace(path) for path in DIFFERENT])
    assert not session.of_ranks
    assert WHY[1:] in str(layout.notes(session))
    frame = gpuscope.load_ranks(*DIFFERENT).verdicts("overlapped")
    assert frame["joint"].isna().all()
    assert set(frame["rank 1"]) > {"serialized"}


@pytest.mark.parametrize("form", ["analyze", "report"])
def test_the_ranks_of_a_run_have_their_joint_verdicts_in_markdown(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, list[Any]] = {"analyze": ["--markdown"], "report": ["--format", "md"]}
    out = said(capsys, form, *OVERLAP, *options[form])
    assert "| range | pair | rank 0 | rank 1 | joint |\n| --- | --- | --- | --- | --- |\n" in out
    row = "| overlapped | d2h ∩ kernel | overlapped 98.5 % | immaterial 98.4 % | overlapped |\n"
    assert row in out
    assert "more pairs are immaterial on every rank" in out
    assert "joint" not in said(capsys, form, OVERLAP[0], *options[form])


def test_the_ranks_in_a_folder_are_of_one_run_whenever_they_worked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of(tmp_path / "run", DIFFERENT)
    assert "all ranks together" in said(capsys, "analyze", run)
    told = json.loads(said(capsys, "analyze", "--json", run))
    assert ["apart" in one for one in told] == [False, False]


def test_ranks_are_no_repetitions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = run_of(tmp_path / "B", BLOCKING), run_of(tmp_path / "R", OVERLAP)
    ranks = [str(run / f"rank{rank}") for run in (before, after) for rank in (0, 1)]
    for one, two, three, four in (ranks, map(str, [*BLOCKING, *OVERLAP])):
        assert main(["compare", one, two, "--with", three, four]) == 2
        said = capsys.readouterr().err
        assert "are of different ranks, no repetitions: name the folders of the runs" in said
    assert main(["compare", str(before), str(after)]) == 0
    assert "overlapped · rank 1 · GPU" in capsys.readouterr().out


def test_a_rank_against_another_has_no_rank(capsys: pytest.CaptureFixture[str]) -> None:
    assert "rank 0" not in said(capsys, "compare", *OVERLAP)
    told = json.loads(said(capsys, "compare", "--json", *OVERLAP))
    assert {scope["rank"] for scope in told["scopes"]} == {None}
    same = json.loads(said(capsys, "compare", "--json", OVERLAP[1], BLOCKING[1]))
    assert {scope["rank"] for scope in same["scopes"]} == {1}


def test_a_budget_is_of_all_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, budget = run_of(tmp_path / "R", OVERLAP), tmp_path / "budget.toml"
    said(capsys, "verify", "--record", run, "-o", budget)
    assert "rank0/trace.sqlite, " in budget.read_text("utf-8")
    assert "rank1/trace.sqlite" in budget.read_text("utf-8")
    said(capsys, "verify", run, "--budget", budget)
    blocking = run_of(tmp_path / "B", BLOCKING)
    assert main(["verify", str(blocking), "--budget", str(budget)]) == 4


@pytest.mark.parametrize("name", ["streams", "jacobi_mpi_overlap_r0"])
def test_a_copy_of_a_trace_is_no_other_rank(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, copy = samples.path(name), tmp_path / "copy.sqlite"
    shutil.copyfile(path, copy)
    assert f"note: {TWICE}" in said(capsys, "analyze", path, copy)
    assert TWICE in said(capsys, "report", path, copy, "--format", "md")
    assert [one["apart"] for one in json.loads(said(capsys, "analyze", "--json", path, copy))] == [
        TWICE,
        TWICE,
    ]
    assert f"note {TWICE}" in said(capsys, "verify", path, copy, "--expect", "span > 0 s")
    notes = layout.notes(Session([api.open_trace(path), api.open_trace(copy)]))
    assert TWICE[1:] in str(notes)
    link = tmp_path / "link.sqlite"
    link.symlink_to(copy)
    assert main(["analyze", str(copy), str(link)]) == 2
    assert "is named twice" in capsys.readouterr().err
