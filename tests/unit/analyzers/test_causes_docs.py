"""Every cause that an analyzer can report has its rule in docs/findings.md, and none has two."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
FIRST_SECTION = "pageable-copy"
"""Where the causes begin in the page."""


def reported() -> Iterator[str]:
    for file in (ROOT / "analyzers").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                values = [word.value for word in node.keywords if word.arg == "id"]
                if isinstance(node.func, ast.Name) and node.func.id == "_finding":
                    values += node.args[:1]
                for value in values:
                    for part in ast.walk(value):
                        if isinstance(part, ast.Constant) and isinstance(part.value, str):
                            yield part.value


def test_every_cause_is_documented() -> None:
    page = (ROOT / "docs" / "findings.md").read_text("utf-8")
    headings = re.findall(r"^## (.+)$", page, re.MULTILINE)
    causes = headings[headings.index(FIRST_SECTION) :]

    assert len(causes) == len(set(causes))
    assert set(causes) == set(reported())
