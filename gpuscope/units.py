"""Units: everything is kept in integer nanoseconds and bytes; here they become text.

Decimal prefixes only (1 GB is 10⁹ bytes), as the field's bandwidth figures use them.
"""

from __future__ import annotations

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

_TIME_STEPS = ((NS_PER_S, "s"), (NS_PER_MS, "ms"), (NS_PER_US, "µs"))
_BYTE_STEPS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


def printable(text: str, length: int | None = 500) -> str:
    """Make a text that others wrote safe to show: one line, at most `length` long.

    A terminal obeys the escape sequences in a name; what is no printable character becomes ``�``.
    """
    clean = text[:length]
    if not clean.isprintable():
        clean = "".join(char if char.isprintable() else "�" for char in clean)
    return clean if length is None or len(text) <= length else f"{clean[: length - 1]}…"


def visible(name: str) -> str:
    """Return the name of a range as people see it: ``(no name)`` for none, blanks in quotes.

    NVTX takes any text for a name. Where names are compared they stay as they are.
    """
    if name.strip():
        return name
    return repr(name) if name else "(no name)"


def counted(count: int, thing: str, things: str | None = None) -> str:
    """Say how many: ``counted(1, "rank") == "1 rank"``, ``counted(2000, "rank") == "2,000 ranks"``.

    `things` is what several are called where that is not `thing` with an s.
    """
    return f"{count:,} {thing if count == 1 else things or f'{thing}s'}"


def format_ns(time_ns: float | None) -> str:
    """Format a time with three digits: ``format_ns(1_234_567) == "1.23 ms"``."""
    if time_ns is None:
        return "–"
    for step, unit in _TIME_STEPS:
        if abs(time_ns) >= step:
            return f"{_three_digits(time_ns / step)} {unit}"
    return f"{time_ns:.0f} ns"


def format_bytes(size_bytes: float | None) -> str:
    """Format a size in decimal units: ``format_bytes(67_108_864) == '67.1 MB'``."""
    if size_bytes is None:
        return "–"
    for step, unit in _BYTE_STEPS:
        if abs(size_bytes) >= step:
            return f"{_three_digits(size_bytes / step)} {unit}"
    return f"{size_bytes:.0f} B"


def format_rate(rate_bytes_per_s: float | None) -> str:
    """Format a rate: ``format_rate(55.1e9) == '55.1 GB/s'``; no rate is a dash."""
    return "–" if rate_bytes_per_s is None else f"{format_bytes(rate_bytes_per_s)}/s"


def format_ratio(ratio: float | None) -> str:
    """Format a ratio of 0 to 1 as a percentage: ``format_ratio(0.665) == '66.5 %'``."""
    return "–" if ratio is None else f"{100 * ratio:.1f} %"


def _three_digits(value: float) -> str:
    size = abs(value)
    decimals = 2 if size < 10 else 1 if size < 100 else 0
    return f"{value:.{decimals}f}"
