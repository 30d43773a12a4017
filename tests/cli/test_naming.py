"""How traces are named on the command line: runs of several ranks, and the latest runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import gpuscope
from gpuscope import samples
from gpuscope.cli import main

RANKS = ("jacobi_nccl_r0", "jacobi_nccl_r1")


def write_run(folder: Path, *traces: str) -> Path:
    """Write a run folder, of one trace or of a rank each."""
    for rank, name in enumerate(traces):
        inside = folder / f"rank{rank}" if len(traces) > 1 else folder
        inside.mkdir(parents=True)
        shutil.copyfile(samples.path(name), inside / "trace.sqlite")
    (folder / "run.json").write_text('{"gpuscope": "0", "written_utc": "2026"}', "utf-8")
    return folder


@pytest.fixture
def of_two(tmp_path: Path) -> Path:
    return write_run(tmp_path / "two", *RANKS)


@pytest.mark.parametrize("command", ["info", "explain", "analyze"])
def test_all_ranks_of_a_run_are_answered_for(
    command: str, of_two: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(of_two), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    paths = [each["path"] if "path" in each else each["trace"]["path"] for each in found]
    assert paths == [str(of_two / f"rank{rank}" / "trace.sqlite") for rank in (0, 1)]
    assert main([command, str(of_two)]) == 0
    assert all(path in capsys.readouterr().out for path in paths[1:])


def test_several_traces_are_described_one_after_the_other(
    of_two: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    streams = samples.path("streams")
    assert main(["info", str(streams), str(of_two), "--json"]) == 0
    paths = [each["path"] for each in json.loads(capsys.readouterr().out)]
    ranks = [str(of_two / f"rank{rank}" / "trace.sqlite") for rank in (0, 1)]
    assert paths == [str(streams), *ranks]
    assert main(["info", str(streams), str(of_two)]) == 0
    found = [line for line in capsys.readouterr().out.splitlines() if line in paths]
    assert found == paths


def test_a_range_is_explained_where_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "mixed", "streams", "default")
    assert main(["explain", str(run), "--range", "streamed", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["ranges"][0]["range"] == "streamed"
    assert main(["explain", str(run), "--range", "nothing"]) == 5


def test_an_operation_is_in_one_rank(of_two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(of_two), "--op", "3"]) == 2
    assert str(of_two / "rank0") in capsys.readouterr().err
    assert main(["explain", str(of_two / "rank0"), "--op", "3"]) == 0


def test_a_report_is_of_all_ranks(of_two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = of_two.with_name("report.html")
    assert main(["report", str(of_two), "-o", str(out)]) == 0
    text = out.read_text("utf-8")
    assert "rank 0" in text
    assert "rank 1" in text
    capsys.readouterr()
    assert main(["report", str(of_two), "--format", "md"]) == 0
    assert "rank1/trace.sqlite" in capsys.readouterr().out


def test_runs_of_ranks_are_compared_rank_by_rank(
    of_two: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_run(tmp_path / "turned", *reversed(RANKS))
    assert main(["compare", str(of_two), str(other), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["before"] for each in found] == [
        [str(of_two / f"rank{rank}" / "trace.sqlite")] for rank in (0, 1)
    ]
    assert main(["compare", str(of_two), str(of_two)]) == 0
    assert capsys.readouterr().out.count("identical") == 2
    assert main(["compare", str(of_two), str(samples.path("streams"))]) == 2
    assert "1 and 2 ranks" in capsys.readouterr().err


def test_a_copy_without_anything_private_is_of_all_ranks(
    of_two: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clean = tmp_path / "clean"
    assert main(["anonymize", str(of_two), str(clean)]) == 0
    assert main(["anonymize", str(of_two), str(clean)]) == 1
    assert "--force" in capsys.readouterr().err
    assert main(["analyze", str(clean), "--json"]) == 0
    copy = json.loads(capsys.readouterr().out)
    assert main(["analyze", str(of_two), "--json"]) == 0
    original = json.loads(capsys.readouterr().out)
    assert [each["ranges"] for each in copy] == [each["ranges"] for each in original]


LAST = [
    ["analyze", "last", "--json"],
    ["info", "last", "--json"],
    ["explain", "last", "--json"],
    ["verify", "last", "--expect", "count(h2d) >= 1"],
    ["report", "last", "--format", "md"],
    ["anonymize", "last", "clean.sqlite"],
]


@pytest.mark.parametrize("arguments", LAST, ids=[each[0] for each in LAST])
def test_last_is_the_latest_run_everywhere(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_run(tmp_path / "runs" / "one", "streams")
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 0
    assert main([each.replace("last", "last~1") for each in arguments]) == 1
    assert "runs holds 1 run" in capsys.readouterr().err


def test_last_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "runs" / "one", "streams")
    monkeypatch.chdir(tmp_path)
    assert gpuscope.load("last").raw.path == str(Path("runs", "one", "trace.sqlite"))
