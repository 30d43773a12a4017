"""The docs keep their word: commands parse or run, links lead somewhere, nothing local is named."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuscope import errors
from gpuscope.cli import COMMANDS, command_module, main

ROOT = Path(__file__).parents[1]
TRACKED = [
    ROOT / name
    for name in subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split("\0")
    if name and (ROOT / name).is_file()
]
PAGES = [file for file in TRACKED if file.suffix == ".md"]

RUNNABLE = {"doctor", "list", "--help", "--version"}
"""Commands that need no GPU, no trace of the user's, and that end by themselves."""

VERDICTS = ("overlapped", "pipelined", "partial", "serialized", "immaterial", "inconclusive")

LOCAL = re.compile(
    r"""(?<![\w.-])/(?:work|root)/
    |pypi\.org/simple|pythonhosted\.org|registry\.npmjs\.org|(?:deb|security)\.debian\.org""",
    re.VERBOSE,
)


def shell_commands() -> Iterator[str]:
    """Yield the gpuscope commands that pages and help texts tell people to type, less comments."""
    for name, _ in COMMANDS:
        for line in (command_module(name).__doc__ or "").splitlines():
            if re.match(r"  gpuscope [a-z]", line):
                yield re.split(r"\s{2,}", line.strip())[0]
    for page in PAGES:
        for block in re.findall(
            r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S
        ):
            for line in block.splitlines():
                if line.startswith("gpuscope "):
                    yield line.partition(" #")[0].rstrip()


def heading_anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_documented_commands_parse_or_run(
    subtests: pytest.Subtests, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in sorted(set(shell_commands())):
        name, *arguments = shlex.split(command)[1:]
        with subtests.test(command):
            if name in RUNNABLE:
                assert main([name, *arguments]) in {0, errors.MissingError.exit_code}
                assert capsys.readouterr().out
            else:
                module = command_module(name)
                parser = argparse.ArgumentParser(allow_abbrev=False)
                module.add_arguments(parser)
                parser.parse_args(arguments)


def test_only_commands_that_exist_are_named() -> None:
    names = {name for name, _ in COMMANDS}
    texts = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in PAGES}
    texts |= {f"help of {name}": str(command_module(name).__doc__) for name in names}

    for where, text in texts.items():
        assert set(re.findall(r"`gpuscope ([a-z]+)", text)) <= names, where


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"\w+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        assert target.exists(), link
        assert not anchor or anchor in heading_anchors(target), link


def test_no_tracked_text_names_a_build_machine_or_a_registry() -> None:
    found = []
    for file in TRACKED:
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{file.relative_to(ROOT)}: {match.group()}" for match in LOCAL.finditer(text)]

    assert not found


def test_readme_explains_every_exit_code_and_verdict() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    codes = {kind.exit_code for kind in vars(errors).values() if hasattr(kind, "exit_code")}

    for code in codes | {0, errors.INTERRUPTED}:
        assert f"| `{code}` |" in readme
    for verdict in VERDICTS:
        assert f"| {verdict} |" in readme
