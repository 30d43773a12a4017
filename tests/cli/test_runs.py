"""`gpuscope runs` and the names of the latest runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuscope.cli import main
from gpuscope.errors import TraceError
from gpuscope.recording.history import find_run, runs_in


def record(
    parent: Path, name: str, minute: int, trace: str | None = "trace.sqlite", **more: Any
) -> Path:
    folder = parent / name
    folder.mkdir(parents=True)
    if trace:
        (folder / trace).parent.mkdir(exist_ok=True)
        (folder / trace).touch()
    written = f"2026-11-30T10:{minute:02}:00+00:00"
    base = {"gpuscope": "0.1", "written_utc": written, "exit_code": 0, "benchmark": "streams"}
    (folder / "run.json").write_text(json.dumps(base | more))
    return folder


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    met, not_met = {"met": True}, {"met": False}
    record(tmp_path, "c", 1, expected=[met, met], untraced={"passes": {"p": {"median_ns": 2e6}}})
    record(tmp_path, "b", 2, expected=[met, not_met], exit_code=4, twin="pageable")
    command = ["/opt/far/away/a.out", "\x1b[31m"]
    record(tmp_path, "a", 3, exit_code=130, benchmark=None, command=command)
    record(tmp_path, "d", 0, caught="wrong data", twin="shared-buffer")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "run.json").write_text("{")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "run.json").write_text("[]")
    return tmp_path


def test_runs_are_in_the_order_of_their_end(parent: Path) -> None:
    assert [run.path.name for run in runs_in(parent)] == ["d", "c", "b", "a"]


def test_last_counts_back_and_a_file_of_that_name_comes_first(
    parent: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert find_run(Path("last"), parent).name == "a"
    assert find_run(Path("last~0"), parent).name == "a"
    assert find_run(Path("last~3"), parent).name == "d"
    assert find_run(Path("lasting"), parent) == Path("lasting")
    with pytest.raises(TraceError, match="holds 4 runs with a trace"):
        find_run(Path("last~4"), parent)
    with pytest.raises(TraceError, match="there is no folder"):
        find_run(Path("last"), parent / "none")

    monkeypatch.chdir(tmp_path_factory.mktemp("here"))
    Path("last").touch()
    assert find_run(Path("last"), parent) == Path("last")


def test_what_was_only_timed_is_listed_but_is_not_the_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(tmp_path, "a", 1)
    record(tmp_path, "b", 2, trace=None)
    record(tmp_path, "c", 3, trace="rank0/trace.nsys-rep")
    record(tmp_path, "d", 4, trace=None)
    assert find_run(Path("last"), tmp_path).name == "c"
    assert find_run(Path("last~1"), tmp_path).name == "a"
    assert main(["runs", str(tmp_path), "--json"]) == 0
    names = [row["name"] for row in json.loads(capsys.readouterr().out)]
    assert names == ["last~1", None, "last", None]
    assert main(["runs", str(tmp_path)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [words[0] for words in lines if words and "streams" in words] == [
        "last~1", "–", "last", "–",
    ]  # fmt: skip


def test_list(parent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(parent)]) == 0

    out = capsys.readouterr().out
    assert "\x1b[31m" not in out
    lines = [line.split() for line in out.splitlines()]
    names = [words[0] for words in lines if words and words[0].startswith("last")]
    assert names == ["last~3", "last~2", "last~1", "last"]
    assert "as expected" in out
    assert "caught" in out
    assert "interrupted" in out
    assert " a.out " in out  # not where it lies


def test_times_that_are_void_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for minute, valid in enumerate((False, True)):
        record(tmp_path, str(valid), minute, exit_code=5, untraced={"passes": {}, "valid": valid})

    assert main(["runs", str(tmp_path), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["outcome"] for row in rows] == ["times void", "cannot judge"]


def test_json(parent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(parent), "--json"]) == 0

    rows = json.loads(capsys.readouterr().out)
    assert [row["outcome"] for row in rows] == [
        "caught",
        "as expected",
        "NOT MET",
        "interrupted",
    ]
    assert (rows[2]["met"], rows[2]["expected"]) == (1, 2)
    assert rows[1]["passes"] == {"p": 2e6}


def test_no_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "no runs\n"
    assert main(["runs", str(tmp_path / "none")]) == 1
    assert "there is no folder" in capsys.readouterr().err
