"""Names that anybody may have written do nothing to a terminal, whatever shows them."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from gpuscope import samples
from gpuscope.cli import main

ESCAPES = "\x1b[31m\x07\x9b2J\u202e\u2028\r"
NAMES = (
    f"{ESCAPES}red",
    "x" * 1_000_000,
    "<img src=x onerror=alert(1)>",
    "[bold]markup[/] a|b\n| c",
    "{%app_entry%}",
)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace in which every text that may be anything is hostile, its own name included."""
    path = tmp_path_factory.mktemp("hostile") / f"a{ESCAPES}\n.sqlite"
    shutil.copyfile(samples.path("jacobi_nccl_r0"), path)
    connection = sqlite3.connect(path)
    used = connection.execute(
        "SELECT id FROM StringIds WHERE id IN (SELECT textId FROM NVTX_EVENTS UNION"
        " SELECT shortName FROM CUPTI_ACTIVITY_KIND_KERNEL)"
    ).fetchall()
    for number, (key,) in enumerate(used):
        text = f"{NAMES[number % len(NAMES)]}{number}"
        connection.execute("UPDATE StringIds SET value = ? WHERE id = ?", (text, key))
    connection.execute("UPDATE TARGET_INFO_GPU SET name = ?", (NAMES[0],))
    for table in ("META_DATA_EXPORT", "META_DATA_CAPTURE", "TARGET_INFO_SYSTEM_ENV"):
        connection.execute(f"UPDATE {table} SET value = ?", (NAMES[0],))
    connection.execute(f'CREATE TABLE "{ESCAPES}" (value)')
    connection.execute(f'INSERT INTO "{ESCAPES}" VALUES (1)')
    connection.commit()
    connection.close()
    return path


def unprintable(text: str) -> set[str]:
    return {char for char in text if not char.isprintable()} - {"\n"}


@pytest.mark.parametrize(
    "command",
    [
        ["analyze"],
        ["analyze", "--top", "5"],
        ["analyze", "--csv"],
        ["analyze", "--markdown"],
        ["analyze", "--json"],
        ["analyze", "--show-classes"],
        ["info"],
        ["info", "--json"],
        ["verify", "--expect", "overlap(kernel, d2h) >= 0%"],
    ],
    ids=" ".join,
)
def test_nothing_that_a_trace_says_reaches_the_terminal(
    command: list[str], hostile: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    main([command[0], str(hostile), *command[1:]])
    out, err = capfd.readouterr()
    assert "operations" in out or "kernel" in out or "kernel" in err
    assert unprintable(out) == set()
    assert unprintable(err) == set()
    if "--json" not in command and "--csv" not in command:
        assert max(map(len, out.splitlines())) < 3_000


def test_programs_get_the_names_as_they_are(
    hostile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", str(hostile), "--json"]) == 0
    analysis = json.loads(capsys.readouterr().out)
    assert analysis["trace"]["path"] == str(hostile)
    assert any(ESCAPES in entry["name"] for entry in analysis["ranges"])
    assert main(["analyze", str(hostile), "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len({row["range"] for row in rows}) > 1
    assert max(len(row["range"]) for row in rows) > 30_000


def test_markdown_shows_no_markup(hostile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(hostile), "--markdown"]) == 0
    out = capsys.readouterr().out
    assert "<img" not in out.replace(r"\<img", "")
    columns = {line.replace(r"\|", "").count("|") for line in out.splitlines() if line[:1] == "|"}
    assert len(columns) <= 2  # that of the scopes, and that of the messages


@pytest.mark.parametrize(
    "command", [["analyze"], ["info"], ["view"], ["anonymize", "out"], ["verify", "--expect", "x"]]
)
def test_no_sentence_holds_what_a_terminal_obeys(
    command: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"a{ESCAPES}\ngpuscope: all is well.sqlite"
    path.write_text("no trace")
    assert main([command[0], str(path), *command[1:]]) in {1, 2}
    err = capfd.readouterr().err
    assert err.startswith("gpuscope: ")
    assert "\ngpuscope" not in err
    assert unprintable(err) == set()


def test_an_export_on_a_read_only_disk_is_read(tmp_path: Path) -> None:
    """Neither the folder of the trace can be written, nor that of the cache."""
    folder = tmp_path / "disk"
    folder.mkdir()
    path = folder / "trace.sqlite"
    shutil.copyfile(samples.path("pinned"), path)
    writer = sqlite3.connect(path)
    writer.execute("PRAGMA journal_mode=WAL")  # which SQLite cannot read without writing
    writer.execute("DELETE FROM NVTX_EVENTS WHERE rowid = 1")
    writer.commit()
    logged = folder / "logged.sqlite"
    for suffix in ("", "-wal"):
        shutil.copyfile(f"{path}{suffix}", f"{logged}{suffix}")
    writer.close()
    before = {entry.name: entry.read_bytes() for entry in folder.iterdir()}
    for entry in folder.iterdir():
        entry.chmod(0o444)
    folder.chmod(0o555)
    # Root may write anywhere unless it gives that up.
    give_up = ["setpriv", "--bounding-set=-dac_override"] if os.geteuid() == 0 else []
    try:
        for name in ("trace.sqlite", "logged.sqlite"):
            done = subprocess.run(
                [*give_up, sys.executable, "-m", "gpuscope", "analyze", str(folder / name)],
                env={**os.environ, "XDG_CACHE_HOME": str(folder)},
                cwd=Path(__file__).parents[2],
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stderr
            assert "operations" in done.stdout
            assert done.stderr == ""
    finally:
        folder.chmod(0o755)
    assert {entry.name: entry.read_bytes() for entry in folder.iterdir()} == before
