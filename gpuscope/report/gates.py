"""What became of expectations: a table, markdown, JUnit XML, and GitHub's annotations."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree

from gpuscope.model.gates import GateRow, Verification
from gpuscope.report.rows import escaped
from gpuscope.units import printable, visible

if TYPE_CHECKING:
    from rich.console import Console

WORDS = {True: "met", False: "NOT MET", None: "cannot judge"}
_STYLES = {True: "green", False: "bold red", None: "magenta"}


def render_verification(verification: Verification, console: Console) -> None:
    """Print a line for each expectation, the measured value under it."""
    from rich.text import Text

    for note in verification.notes:
        console.print(Text.assemble(("note ", "yellow"), printable(note)))
    for row in verification.rows:
        word = Text(f"{WORDS[row.met]:<13}", _STYLES[row.met])
        console.print(Text.assemble(word, (printable(row.expectation), "bold")))
        console.print(Text(f"{'':<13}{printable(row.text)}", "" if row.met is not True else "dim"))
    console.print(summary(verification))


def summary(verification: Verification) -> str:
    """Count the outcomes: ``3 met, 1 NOT MET, 2 cannot judge``."""
    outcomes = [row.met for row in verification.rows]
    counts = [(outcomes.count(met), WORDS[met]) for met in (True, False, None)]
    return ", ".join(f"{count} {word}" for count, word in counts if count)


def to_markdown(verification: Verification) -> str:
    """Return a markdown table, such as for a job's summary."""
    lines = [f"**{summary(verification)}**", "", "| | expected | measured |", "|---|---|---|"]
    lines += [
        f"| {WORDS[row.met]} | {escaped(row.expectation)} | {escaped(row.text)} |"
        for row in verification.rows
    ]
    return "\n".join([*lines, *(f"\n{escaped(note)}" for note in verification.notes), ""])


def to_junit(verification: Verification) -> str:
    """Return JUnit XML: not met is a failure, what cannot be judged an error."""
    rows = verification.rows
    suite = ElementTree.Element(
        "testsuite",
        name="gpuscope verify",
        tests=str(len(rows)),
        failures=str(sum(row.met is False for row in rows)),
        errors=str(sum(row.met is None for row in rows)),
    )
    for row in rows:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=printable(", ".join(verification.traces)),
            name=printable(row.expectation),
        )
        if row.met is True:
            ElementTree.SubElement(case, "system-out").text = printable(row.text)
        else:
            kind = "failure" if row.met is False else "error"
            found = ElementTree.SubElement(case, kind, type=WORDS[row.met])
            found.set("message", printable(row.text))
            found.text = "\n".join(
                f"{'whole trace' if scope.range is None else printable(visible(scope.range))}: "
                f"{printable(scope.text)}"
                for scope in row.scopes
                if scope.met is not True
            )
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def to_annotations(verification: Verification) -> str:
    """Return GitHub's workflow commands that mark what was not met, one a line."""
    return "".join(_annotation(row) for row in verification.rows if row.met is not True)


def _annotation(row: GateRow) -> str:
    message = f"{WORDS[row.met]}: {printable(row.expectation)}: {printable(row.text)}"
    where = f"file={_property(row.source)}," if row.source else ""
    return f"::error {where}title=gpuscope verify::{_data(message)}\n"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
