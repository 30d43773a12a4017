"""Calls that people make by mistake, and shells that are set up oddly: each ends with a word."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpuscope import samples
from gpuscope.cli import main
from gpuscope.model import codec

ROOT = Path(__file__).parents[2]
STREAMS = str(samples.path("streams"))


def shell(command: str, **env: str) -> subprocess.CompletedProcess[bytes]:
    """Run a line of bash in which $G is gpuscope and $S a shipped trace."""
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "G": f"{sys.executable} -m gpuscope",
            "S": STREAMS,
            **env,
        },
        capture_output=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["analyze", STREAMS, "--window", "5000:6000"], 5, "lies in the window '5000:6000'"),
        (["analyze", STREAMS, "--domain", "nope"], 5, "no range of the domains"),
        (["analyze", STREAMS, "--show-classes", "--range", "nope"], 2, "leave out what narrows"),
        (["analyze", STREAMS, "--show-classes", "--category", "1"], 2, "leave out what narrows"),
        (["analyze", STREAMS, "--window", "0ns:99999999999999999999ns"], 2, "is no window"),
        (["analyze", STREAMS, "--window=-99999999999999999999ns:5"], 2, "is no window"),
        (["analyze", STREAMS, "--window", "0:1e30"], 2, "is no window"),
        (["analyze", STREAMS, "--json", "--top", "3"], 2, "the JSON always holds all"),
        (["analyze", STREAMS, "--class", "comm=("], 2, "write a backslash before"),
    ],
)
def test_what_is_asked_for_and_not_there(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == code
    assert message in capsys.readouterr().err


def test_window_and_domain_that_hold_something_are_fine() -> None:
    assert main(["analyze", STREAMS, "--window", "0:0.01", "--json"]) == 0
    assert main(["analyze", STREAMS, "--domain", "", "--json"]) == 0
    assert main(["analyze", STREAMS, "--window", "0:0.01", "--only", "trust", "--json"]) == 0


@pytest.mark.parametrize("command", ["analyze", "info", "verify", "compare", "view"])
def test_an_empty_path_is_not_the_current_folder(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, ""])

    assert ended.value.code == 2
    assert "an empty path names no trace" in capsys.readouterr().err


def test_seconds_that_are_none(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("x", "-1", "nan"):
        with pytest.raises(SystemExit):
            main(["run", f"--timeout={text}", "streams"])

        assert f"{text!r} is no number of seconds above 0" in capsys.readouterr().err


def test_control_characters_of_a_file_name_stay_off_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["analyze", "no\x1b[31mfile"]) == 1

    err = capsys.readouterr().err
    assert "\x1b" not in err
    assert "no�[31mfile" in err


def test_file_names_that_are_not_utf8(tmp_path: Path) -> None:
    file = os.fsencode(tmp_path) + b"/x\xff.sqlite"
    shutil.copyfile(STREAMS, file)

    done = shell('$G analyze "$ODD" --json', ODD=os.fsdecode(file))

    assert done.returncode == 0
    assert json.loads(done.stdout)["trace"]["path"].endswith("x?.sqlite")
    assert codec.dumps({"path": "x\udcff"}) == '{\n  "path": "x?"\n}\n'


def test_a_reader_that_goes_away_is_no_failure() -> None:
    for arguments in ("analyze $S", "analyze $S --json", "list", "compare $S $S", "info $S"):
        done = shell(f"$G {arguments} | head -c 1")

        assert (done.returncode, done.stderr) == (0, b""), arguments


def test_a_closed_stdout_is_a_failure_that_says_so() -> None:
    for arguments in ("analyze $S", "list", "--version", "info $S --json"):
        done = shell(f"$G {arguments} >&-")

        assert done.returncode == 1, arguments
        assert done.stderr == (
            b"gpuscope: a file or the output cannot be used: standard output is closed.\n"
        )


def test_columns_of_0_are_no_width() -> None:
    assert shell("$G analyze $S", COLUMNS="0").stdout.count(b"\n") > 10
    assert shell("$G analyze $S", COLUMNS="200").stdout.count(b"\n") > 10


def test_a_window_beside_the_trace_is_not_blamed_on_what_was_recorded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["analyze", STREAMS, "--window", "90:100"]) == 5
    assert "could be measured" not in capsys.readouterr().out


def test_a_pipe_gets_whole_lines_and_ascii_alone_says_the_same() -> None:
    whole = shell("$G analyze $S").stdout.decode()
    narrow = shell("$G analyze $S", COLUMNS="60").stdout.decode()
    assert max(map(len, whole.splitlines())) > 100
    assert max(map(len, narrow.splitlines())) <= 60
    plain = shell("$G analyze $S", PYTHONIOENCODING="ascii").stdout.decode("ascii")
    assert "(whole trace) x1  span 84.1 ms | busy 61.4 ms" in plain
    assert "h2d & kernel   75.0 % ###############....." in plain
    assert "?" not in plain
    told = shell("$G explain $S --op 5", PYTHONIOENCODING="ascii").stdout.decode("ascii")
    assert "?" not in told


def test_a_micro_is_one_with_either_letter() -> None:
    assert main(["explain", STREAMS, "--op", "1500\u00b5s"]) == 0
    assert main(["explain", STREAMS, "--op", "1500\u03bcs"]) == 0
    for micro in "\u00b5\u03bc":
        assert main(["verify", STREAMS, "--expect", f"span >= 1 {micro}s"]) == 0
