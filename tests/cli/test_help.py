"""The command line as a whole: quick to answer, and every command present, helpful, documented."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpuscope import samples
from gpuscope.cli import COMMANDS, command_module, main

ROOT = Path(__file__).parents[2]
NAMES = [name for name, _ in COMMANDS]


def imported_by(*arguments: str) -> set[str]:
    """Return the top-level modules in memory after ``gpuscope ARGUMENTS`` in a new process."""
    program = (
        "import sys; from gpuscope.cli import main; code = main(sys.argv[1:]);"
        "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


def test_help_imports_nothing_heavy() -> None:
    assert not imported_by("--help") & {"numpy", "pandas", "rich", "plotly", "dash"}


def test_analyze_imports_no_pandas_and_nothing_that_draws() -> None:
    modules = imported_by("analyze", str(samples.path("streams")), "--json")

    assert "numpy" in modules
    assert not modules & {"pandas", "plotly", "dash"}


def test_help_answers_within_150_ms() -> None:
    def seconds() -> float:
        """Return the processor time, which says the same on a busy machine."""
        before = os.times()
        subprocess.run(
            [sys.executable, "-m", "gpuscope", "--help"], cwd=ROOT, check=True, capture_output=True
        )
        now = os.times()
        user_s = now.children_user - before.children_user
        return user_s + now.children_system - before.children_system

    assert min(seconds() for _ in range(10)) < 0.15


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0

    out = capsys.readouterr().out
    for name, summary in COMMANDS:
        assert re.search(rf"^  {name} +{re.escape(summary)}$", out, re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_command_module_is_complete(name: str) -> None:
    module = command_module(name)

    assert callable(module.add_arguments)
    assert callable(module.run)
    assert module.__doc__


@pytest.mark.parametrize("name", NAMES)
def test_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main([name, "--help"])

    assert exited.value.code == 0
    assert f"usage: gpuscope {name}" in capsys.readouterr().out


@pytest.mark.parametrize("name", NAMES)
def test_command_is_in_the_readme(name: str) -> None:
    assert f"`gpuscope {name}" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_command_folder_holds_the_commands_and_nothing_else() -> None:
    files = {file.stem for file in (ROOT / "gpuscope" / "cli").glob("[!_]*.py")}

    assert files == set(NAMES)


def test_unknown_command_is_a_usage_error_with_a_guess(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyse"]) == 2

    assert "'analyze'" in capsys.readouterr().err


def test_a_full_disk_under_the_output_is_a_sentence() -> None:
    full = Path("/dev/full")
    if not full.is_char_device():
        pytest.skip("there is no /dev/full")
    with full.open("w") as nowhere:
        done = subprocess.run(
            [sys.executable, "-m", "gpuscope", "list", "--json"],
            stdout=nowhere,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "No space left" in done.stderr
