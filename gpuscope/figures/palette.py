"""Colours of the operation classes and of the page, light and dark.

The class colours start from the set of Okabe and Ito, which people with the common kinds of colour
blindness tell apart; the dark theme lightens them. Colour never stands alone: bars have names,
verdicts have words.
"""

from __future__ import annotations

from dataclasses import dataclass

_LIGHT = {
    "kernel": "#0072b2",
    "comm": "#d55e00",
    "fused": "#8c564b",
    "h2d": "#e69f00",
    "d2h": "#009e73",
    "d2d": "#56b4e9",
    "p2p": "#cc79a7",
    "memset": "#7f8c99",
    "uvm": "#b8a800",
    "graph": "#4b5b70",
    "h2h": "#a67c52",
    "mpi": "#7e57c2",
    "gate": "#c3cad3",
}
_DARK = {
    "kernel": "#4ba3e3",
    "comm": "#ff7f3f",
    "fused": "#c08a7d",
    "h2d": "#ffb938",
    "d2h": "#2fc796",
    "d2d": "#8fd0ff",
    "p2p": "#e79ac6",
    "memset": "#9aa7b5",
    "uvm": "#e3d43c",
    "graph": "#8898ad",
    "h2h": "#cda274",
    "mpi": "#a98ae6",
    "gate": "#5b6673",
}


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours that figures take from the page."""

    name: str
    text: str
    muted: str
    line: str
    surface: str
    range_fill: str
    """Fill of NVTX ranges."""
    ratio_scale: tuple[tuple[float, str], ...]
    """Colour scale of overlap ratios from 0 to 1."""

    def class_color(self, op_class: str) -> str:
        """Return the colour of an operation class."""
        return (_DARK if self.name == "dark" else _LIGHT)[op_class]


LIGHT = Theme(
    name="light",
    text="#1b2530",
    muted="#5d6b7a",
    line="#e3e8ee",
    surface="#ffffff",
    range_fill="#e8edf3",
    ratio_scale=((0.0, "#f4f6f9"), (0.5, "#9cc9e6"), (1.0, "#0072b2")),
)
DARK = Theme(
    name="dark",
    text="#e6edf5",
    muted="#93a1b1",
    line="#2a3441",
    surface="#151c25",
    range_fill="#2a3645",
    ratio_scale=((0.0, "#1c2530"), (0.5, "#245b85"), (1.0, "#4ba3e3")),
)


def theme(name: str | None) -> Theme:
    """Return the theme `name`; the light one for any name but ``dark``."""
    return DARK if name == "dark" else LIGHT
