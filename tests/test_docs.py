"""The docs keep their word: commands parse or run, links lead somewhere, nothing local is named."""

from __future__ import annotations

import argparse
import gzip
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuscope import errors
from gpuscope.app import server
from gpuscope.cli import COMMANDS, command_module, main, run
from gpuscope.progress import silent

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
                args = parser.parse_args(arguments)
                if name == "run" and not {"--", "--all", "--help", "NAME"} & set(arguments):
                    assert run._understand(args).benchmark


def lay_out_traces(folder: Path) -> None:
    """Give the files of the examples their names: shipped traces of the classic experiment."""
    shipped, recordings = ROOT / "traces", ROOT / "tests" / "data" / "streams"
    names = {
        "streams_run": ["trace", "report", "good", "NAME", "runs/streams-20261130-120000/trace"],
        "jacobi_nccl_r0": ["rank0", "halo/rank0/trace", "runs/of-four-ranks/rank0/trace"],
        "jacobi_nccl_r1": ["rank1", "halo/rank1/trace", "runs/of-four-ranks/rank1/trace"],
    }
    for name, files in names.items():
        for file in files:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / f"{file}.sqlite").symlink_to(shipped / f"{name}.sqlite")
    sides = {"good": ("before", "a", "1"), "again": ("after", "b", "2")}
    for name, (side, letter, minute) in sides.items():
        trace = gzip.decompress((recordings / f"{name}.sqlite.gz").read_bytes())
        run = folder / "runs" / side
        run.mkdir()
        repetitions = [f"{letter}{number}" for number in (1, 2, 3)]
        for file in (side, f"runs/{side}/trace", *repetitions):
            (folder / f"{file}.sqlite").write_bytes(trace)
        written = f"2026-11-30T10:0{minute}:00+00:00"
        record = {"gpuscope": "0", "written_utc": written, "benchmark": "streams", "exit_code": 0}
        (run / "run.json").write_text(json.dumps(record))
    (folder / "results").mkdir()
    (folder / "results" / "november").symlink_to(folder / "runs")
    (folder / "traces").mkdir()
    for each in shipped.glob("*.sqlite"):
        (folder / "traces" / each.name).symlink_to(each)


def test_documented_commands_do_on_shipped_traces_what_they_say(
    subtests: pytest.Subtests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out_traces(tmp_path)
    monkeypatch.chdir(tmp_path)
    # What would be served until the user ends it is only loaded.
    monkeypatch.setattr(server, "serve", lambda load, **_: load(silent))
    done = []
    for command in dict.fromkeys(shell_commands()):
        # Reports take an nsys to export them: their exports are at hand.
        name, *arguments = shlex.split(command.replace(".nsys-rep", ".sqlite"))[1:]
        if name in {"run", "doctor"}:
            continue  # these look at the machine
        if name == "anonymize" or "-o" in arguments:
            Path(arguments[-1]).unlink(missing_ok=True)  # another example may have written it
        with subtests.test(command):
            assert main([name, *arguments]) == 0
            done.append(name)

    assert set(done) >= {
        "analyze",
        "anonymize",
        "cache",
        "compare",
        "explain",
        "info",
        "verify",
        "view",
    }


@pytest.mark.parametrize("page", ["README.md", "docs/first-steps.md"])
def test_the_output_in_a_page_is_that_of_its_command(
    page: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    examples = re.findall(
        r"^```text\n\$ gpuscope (.*?)\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.M | re.S
    )
    assert examples
    monkeypatch.chdir(ROOT)
    for command, text in examples:
        assert main(shlex.split(command)) == 0

        output = " ".join(capsys.readouterr().out.split())
        shown = [" ".join(part.split()) for part in text.split("...\n") if part.strip()]
        assert shown
        for part in shown:
            assert part in output


def test_the_example_in_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay_out_traces(tmp_path)
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.M | re.S
    )
    names: dict[str, Any] = {}
    exec(example, names)
    assert names["trace"].overlap(range="stream*").matrix.loc["h2d", "kernel"] > 0.6


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
