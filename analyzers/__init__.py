"""The analyzers: each turns a trace into figures or findings, and knows nothing of the others."""

if __name__ != "gpuscope.analyzers":
    raise ImportError("import this package as gpuscope.analyzers")

from gpuscope.analysis import Analyzer
from gpuscope.analyzers import (
    allocation_sync,
    host_sync,
    links,
    overlap,
    pageable_copy,
    ranges,
    same_stream,
)

ANALYZERS: tuple[Analyzer, ...] = (
    overlap.ANALYZER,
    ranges.ANALYZER,
    links.ANALYZER,
    pageable_copy.ANALYZER,
    same_stream.ANALYZER,
    host_sync.ANALYZER,
    allocation_sync.ANALYZER,
)
"""Every analyzer, in the order of running; the file is named as the analyzer, with ``_``."""
