"""Class rules of a project, in gpuscope.toml of the folder one works in."""

from __future__ import annotations

from pathlib import Path

import pytest

import gpuscope
from gpuscope import samples
from gpuscope.cli import main
from gpuscope.errors import UsageError
from gpuscope.model.classes import ClassRule
from gpuscope.readers.settings import class_rules


def test_rules_are_read_in_order(tmp_path: Path) -> None:
    (tmp_path / "gpuscope.toml").write_text('[classes]\ncomm = ["halo_.*", "b"]\nfused = ["c"]\n')
    assert class_rules(tmp_path) == (
        ClassRule("comm", "halo_.*", "gpuscope.toml"),
        ClassRule("comm", "b", "gpuscope.toml"),
        ClassRule("fused", "c", "gpuscope.toml"),
    )


def test_without_a_file_there_are_none(tmp_path: Path) -> None:
    assert class_rules(tmp_path) == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[classes", "cannot be read"),
        ("[clases]\n", "'clases' in a form that is not known"),
        ("classes = 3\n", "'classes' in a form that is not known"),
        ('[classes]\ncomm = "a"\n', "'classes' in a form that is not known"),
        ('[classes]\nh2d = ["a"]\n', "is no class rule"),
        ('[classes]\ncomm = ["("]\n', "is no regular expression"),
    ],
)
def test_what_makes_no_sense_is_said(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "gpuscope.toml").write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        class_rules(tmp_path)
    assert "gpuscope.toml" in str(caught.value)


def test_they_hold_for_the_command_and_for_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpuscope.toml").write_text('[classes]\ncomm = ["dummy_.*"]\n')
    trace = samples.path("streams")
    assert "comm" in gpuscope.load(trace).overlap().scope.classes
    assert main(["analyze", str(trace), "--show-classes"]) == 0
    assert "(gpuscope.toml rule dummy_.*)" in capsys.readouterr().out
    # A rule on the command line goes first.
    assert main(["analyze", str(trace), "--show-classes", "--class", "fused=dummy_kernel"]) == 0
    assert "(user rule dummy_kernel)" in capsys.readouterr().out
