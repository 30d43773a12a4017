"""view and demo as commands: they serve until Ctrl-C, and say what is wrong."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from gpuscope.cli import main


def test_demo_serves_until_ctrl_c() -> None:
    command = [sys.executable, "-m", "gpuscope", "demo", "--no-browser"]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stderr is not None
        said = demo.stderr.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+/", said)
        assert address is not None, said
        with urllib.request.urlopen(address[0]) as page:
            assert page.status == 200
        demo.send_signal(signal.SIGINT)
        out, err = demo.communicate(timeout=20)
    assert (demo.returncode, out, err) == (0, "", "Stopped.\n")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["view", "no-such-trace.sqlite"], 1, "does not exist"),
        (["demo", "no-such-name"], 2, "no trace 'no-such-name' is shipped"),
        (["demo", "--no-browser", "--port", "99999"], 2, "no port 99999"),
        (["demo", "--no-browser", "--host", "192.0.2.1"], 2, "cannot be used"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(
    arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == code
    assert says in capsys.readouterr().err


def test_a_run_folder_without_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(tmp_path)]) == 1
    assert "folder without" in capsys.readouterr().err
