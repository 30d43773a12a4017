"""The traces shipped with gpuscope: their names and where they lie.

What each one shows and how it was recorded is in ``traces/MANIFEST.toml``.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from gpuscope.errors import MissingError, UsageError

FOLDER = Path(__file__).parent / "traces"
"""The folder of the shipped traces: in a checkout a link to ``traces/``."""


def names() -> tuple[str, ...]:
    """Name all shipped traces, in the order of the manifest."""
    return tuple(manifest())


def manifest() -> dict[str, dict[str, str]]:
    """Read ``MANIFEST.toml``: for each trace what it shows and what it was recorded with.

    Raises
    ------
    MissingError
        The installation lacks the manifest.
    """
    table = FOLDER / "MANIFEST.toml"
    try:
        return tomllib.loads(table.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _incomplete(table) from None


def path(name: str) -> Path:
    """Return the path of the shipped trace `name`.

    Raises
    ------
    UsageError
        No trace of this name is shipped; the message lists those that are.
    MissingError
        The installation lacks the file.
    """
    shipped = names()
    if name not in shipped:
        raise UsageError(f"no trace {name!r} is shipped; there are {', '.join(shipped)}.")
    trace = FOLDER / f"{name}.sqlite"
    if not trace.is_file():
        raise _incomplete(trace)
    return trace


def _incomplete(file: Path) -> MissingError:
    return MissingError(
        f"{file} is missing from this installation of gpuscope; "
        "install it again: pip install --force-reinstall gpuscope."
    )
