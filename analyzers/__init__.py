"""The analyzers: each turns a trace into figures or findings, and knows nothing of the others."""

if __name__ != "gpuscope.analyzers":
    raise ImportError("import this package as gpuscope.analyzers")

from gpuscope.analysis import Analyzer
from gpuscope.analyzers import links, overlap, ranges

ANALYZERS: tuple[Analyzer, ...] = (
    overlap.ANALYZER,
    ranges.ANALYZER,
    links.ANALYZER,
)
"""Every analyzer, in the order of running; the file is named as the analyzer, with ``_``."""
