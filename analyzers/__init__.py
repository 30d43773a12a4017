"""The analyzers: each turns a trace into figures or findings, and knows nothing of the others."""

if __name__ != "gpuscope.analyzers":
    raise ImportError("import this package as gpuscope.analyzers")

from gpuscope.analysis import Analyzer
from gpuscope.analyzers import (
    allocation_sync,
    comm_after_compute,
    comm_skew,
    connections_limit,
    details,
    event_dependency,
    gpu_full,
    host_busy,
    host_func,
    host_read,
    host_sync,
    launch_bound,
    lazy_loading,
    limits,
    links,
    mpi_blocking,
    not_seen,
    null_stream_work,
    overlap,
    pageable_copy,
    ranges,
    same_stream,
    schedule,
    synchronous_copy,
    trust,
    uvm_migration,
)

ANALYZERS: tuple[Analyzer, ...] = (
    overlap.ANALYZER,
    ranges.ANALYZER,
    links.ANALYZER,
    details.ANALYZER,
    schedule.ANALYZER,
    trust.ANALYZER,
    not_seen.ANALYZER,
    limits.ANALYZER,
    pageable_copy.ANALYZER,
    synchronous_copy.ANALYZER,
    host_read.ANALYZER,
    same_stream.ANALYZER,
    null_stream_work.ANALYZER,
    event_dependency.ANALYZER,
    host_sync.ANALYZER,
    allocation_sync.ANALYZER,
    host_busy.ANALYZER,
    launch_bound.ANALYZER,
    lazy_loading.ANALYZER,
    host_func.ANALYZER,
    mpi_blocking.ANALYZER,
    comm_after_compute.ANALYZER,
    comm_skew.ANALYZER,
    gpu_full.ANALYZER,
    connections_limit.ANALYZER,
    uvm_migration.ANALYZER,
)
"""Every analyzer, in the order of running; the file is named as the analyzer, with ``_``."""
