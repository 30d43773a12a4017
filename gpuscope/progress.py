"""How long work tells how far it is: a function that is called now and then."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is in all."""


def silent(what: str, done: int, total: int) -> None:
    """Tell nobody."""
