"""Colours of the operation classes and of the page, light and dark.

The class colours keep two rules that tests hold them to: every bar of an operation stands out from
the page by a contrast of 3 to 1, and the classes that often run side by side stay apart for people
with each kind of colour blindness. Colour never stands alone: bars have names, verdicts have words.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuscope.errors import UsageError
from gpuscope.model.classes import CLASSES

_LIGHT = {
    "kernel": "#0061c2",
    "comm": "#b03a02",
    "fused": "#8c564b",
    "h2d": "#c98500",
    "d2h": "#006b45",
    "d2d": "#289fd0",
    "p2p": "#912d73",
    "memset": "#8a91a0",
    "uvm": "#a09200",
    "graph": "#4b5b70",
    "h2h": "#a67c52",
    "mpi": "#7e57c2",
    "gate": "#8893a1",
    "call": "#c3cedb",
    "wait": "#f0ccd3",
    "range": "#e8edf3",
    "idle: host": "#f6d5da",
    "idle: stream": "#d9dcf7",
    "idle: event": "#cfe8ea",
    "idle: null-stream": "#f3e0c4",
    "idle: engine": "#e3e6c3",
    "idle: sm": "#d3e4f5",
    "idle: unknown": "#e4e7eb",
}
_DARK = {
    "kernel": "#3d8ff0",
    "comm": "#e87a3f",
    "fused": "#c08a7d",
    "h2d": "#ffb713",
    "d2h": "#3dd98a",
    "d2d": "#a1c3fc",
    "p2p": "#dba6c6",
    "memset": "#717f92",
    "uvm": "#e3d43c",
    "graph": "#8898ad",
    "h2h": "#cda274",
    "mpi": "#a98ae6",
    "gate": "#6a7684",
    "call": "#43536a",
    "wait": "#5e3640",
    "range": "#2a3645",
    "idle: host": "#4f2a33",
    "idle: stream": "#33345c",
    "idle: event": "#1f4448",
    "idle: null-stream": "#4a3a1e",
    "idle: engine": "#3d4120",
    "idle: sm": "#223d57",
    "idle: unknown": "#333c47",
}


_INKS = ("#0b1118", "#ffffff")


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours, 1 to 21, as WCAG 2 defines it."""
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(color: str) -> float:
    channels = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours that figures take from the page."""

    name: str
    text: str
    muted: str
    line: str
    surface: str
    ratio_scale: tuple[tuple[float, str], ...]
    """Colour scale of overlap ratios from 0 to 1."""

    def color(self, name: str) -> str:
        """Return the colour of an operation class, a call, a range or a cause of idle time."""
        return (_DARK if self.name == "dark" else _LIGHT)[name]

    def ink_on(self, name: str) -> str:
        """Return the colour of text on a bar of that colour: the one of two that is read best."""
        fill = self.color(name)
        return max(_INKS, key=lambda ink: contrast(ink, fill))


LIGHT = Theme(
    name="light",
    text="#1b2530",
    muted="#5d6b7a",
    line="#e3e8ee",
    surface="#ffffff",
    ratio_scale=((0.0, "#f4f6f9"), (0.5, "#9cc9e6"), (1.0, "#0061c2")),
)
DARK = Theme(
    name="dark",
    text="#e6edf5",
    muted="#93a1b1",
    line="#2a3441",
    surface="#151c25",
    ratio_scale=((0.0, "#1c2530"), (0.5, "#245b85"), (1.0, "#4ba3e3")),
)


def theme(name: str) -> Theme:
    """Return the theme `name`.

    Raises
    ------
    UsageError
        There is none of this name.
    """
    for each in (LIGHT, DARK):
        if each.name == name:
            return each
    raise UsageError(f"there is no theme {name!r}: there are 'light' and 'dark'.")


def style_sheet() -> str:
    """Return the colours of the classes as CSS: ``--fill-h2d``, and ``--ink-h2d`` of text on it."""
    rules = []
    for each, where in ((LIGHT, ":root"), (DARK, ':root[data-theme="dark"]')):
        lines = [
            f"--fill-{name}: {each.color(name)}; --ink-{name}: {each.ink_on(name)};"
            for name in (*CLASSES, "range")
        ]
        rules.append(f"{where} {{ {' '.join(lines)} }}\n")
    return "".join(rules)
