"""gpuscope report: a file, or markdown on stdout."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import pytest

from gpuscope import samples
from gpuscope.cli import main
from tests.make_export import Export

TRACE = str(samples.path("streams"))


def test_html_goes_to_the_file_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report.html"
    assert main(["report", TRACE, "-o", str(out)]) == 0
    assert capsys.readouterr() == ("", f"Wrote {out}\n")
    assert out.read_text("utf-8").startswith("<!DOCTYPE html>")
    assert main(["report", TRACE, "-o", str(out)]) == 1
    assert "--force" in capsys.readouterr().err
    assert main(["report", TRACE, "-o", str(out), "--force"]) == 0


def test_markdown_goes_to_stdout_or_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", TRACE, "--format", "md"]) == 0
    out = capsys.readouterr().out
    assert "| streamed | 3 |" in out
    assert "**default-stream**" in out
    file = tmp_path / "report.md"
    assert main(["report", TRACE, "--format", "md", "-o", str(file)]) == 0
    assert file.read_text("utf-8") == out


def test_the_name_says_what_is_wanted_and_a_dash_is_stdout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.md"
    assert main(["report", TRACE, "-o", str(file)]) == 0
    assert file.read_text("utf-8").startswith("### ")
    capsys.readouterr()
    assert main(["report", TRACE, "-o", "-"]) == 0
    out = capsys.readouterr()
    assert out.out.startswith("<!DOCTYPE html>")
    assert out.err == ""
    assert main(["report", TRACE, "-o", "-", "--format", "md"]) == 0
    assert capsys.readouterr().out == file.read_text("utf-8")


def test_a_report_that_cannot_be_finished_is_not_left_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "report.html"
    file.write_text("the one before")

    def full(path: Path, text: str, encoding: str) -> None:
        with path.open("w", encoding=encoding) as opened:
            opened.write(text[:1000])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    assert main(["report", TRACE, "-o", str(file), "--force"]) == 1
    assert f"{file} cannot be written: No space left on device." in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert file.read_text() == "the one before"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([TRACE], 2, "-o report.html"),
        ([TRACE, "-o", "report.md", "--format", "html"], 2, "--format html"),
        ([TRACE, "-o", "report.html", "--format", "md"], 2, "--format md"),
        ([TRACE, "-o", "no-such/x.html"], 1, "there is no folder no-such: make it"),
        ([TRACE, "-o", "."], 1, ". is a folder: name a file in it"),
        ([TRACE, "-o", ".", "--force"], 1, ". is a folder: name a file in it"),
        (["no-such.sqlite", "-o", "x.html"], 1, "does not exist"),
    ],
)
def test_what_is_wrong_is_said(
    arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *arguments]) == code
    assert says in capsys.readouterr().err


def test_a_trace_without_gpu_work_is_written_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cpu.sqlite"
    with Export(path) as export:
        export.range("step", 0, 10)
    assert main(["report", str(path), "--format", "md"]) == 5
    assert main(["report", str(path), "-o", str(tmp_path / "r.html")]) == 5
    assert "no GPU work" in capsys.readouterr().err


def test_markdown_names_the_range_of_a_cause_and_what_it_costs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["report", str(samples.path("streams_run")), "--format", "md"]) == 0
    out = capsys.readouterr().out
    assert "**same-stream** in sequential: 40 times" in out
    assert re.search(r"\n→ give every chunk .* \(saves up to \d+ ms\)", out)
