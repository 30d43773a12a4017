"""`gpuscope cache`, and the progress bar of long work."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gpuscope.cli import _options, main
from gpuscope.readers import cache


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for kind, name, size in (("exports", "a.sqlite", 2000), ("results", "b.json", 30)):
        file = tmp_path / "gpuscope" / kind / name
        file.parent.mkdir(parents=True)
        file.write_bytes(b"x" * size)
    return tmp_path / "gpuscope"


def test_it_says_what_is_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache"]) == 0
    out = capsys.readouterr().out
    assert str(folder) in out
    assert "2.03 kB" in out
    assert main(["cache", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["kinds"]["exports"] == {"entries": 1, "size_bytes": 2000}
    assert said["limit_bytes"] == cache.DEFAULT_LIMIT_BYTES


def test_it_removes_everything(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "--clear"]) == 0
    assert "removed" in capsys.readouterr().out
    assert cache.entries() == []
    assert not list((folder / "exports").iterdir())


def test_a_limit_that_is_no_size_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUSCOPE_CACHE_LIMIT", "lots")
    assert main(["cache"]) == 2
    assert "500M" in capsys.readouterr().err


@pytest.mark.parametrize("terminal", [True, False])
def test_long_work_shows_a_bar_on_a_terminal_only(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_options, "_QUIET_S", -1.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with _options.progress_bar() as progress:
        progress("reading", 1, 4)
        progress("reading", 4, 4)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert ("reading" in captured.err) == terminal
