"""What every benchmark shares.

``pipeline``, ``sizing`` and ``stats`` are arithmetic and run anywhere; ``gpu``, ``data`` and
``machine`` touch the GPU, and import its libraries only when used. Benchmarks import from here.
"""

from gpuscope.benchmarks._harness.data import WRONG_DATA, Pattern, max_steps, pass_term, pass_value
from gpuscope.benchmarks._harness.gpu import Pass, Session, open_session, pinned_array, say
from gpuscope.benchmarks._harness.machine import free_host_bytes
from gpuscope.benchmarks._harness.pipeline import (
    COLD_BASELINE_FACTOR,
    Pipeline,
    StageTimes,
    efficiency_ratio,
)
from gpuscope.benchmarks._harness.registry import Benchmark, Twin, add_common_arguments
from gpuscope.benchmarks._harness.result import (
    NOT_JUDGED,
    Expected,
    Result,
    pass_table,
    read_plan,
    write_result,
)
from gpuscope.benchmarks._harness.sizing import (
    MIB,
    calibrate_steps,
    check_chunk,
    chunk_bytes,
    fit_chunk,
    format_size,
    memory_limit_bytes,
    positive_int,
    rate_bytes_per_s,
    size_argument,
)
from gpuscope.benchmarks._harness.stats import Statistics, contended_median_ns

__all__ = [
    "COLD_BASELINE_FACTOR",
    "MIB",
    "NOT_JUDGED",
    "WRONG_DATA",
    "Benchmark",
    "Expected",
    "Pass",
    "Pattern",
    "Pipeline",
    "Result",
    "Session",
    "StageTimes",
    "Statistics",
    "Twin",
    "add_common_arguments",
    "calibrate_steps",
    "check_chunk",
    "chunk_bytes",
    "contended_median_ns",
    "efficiency_ratio",
    "fit_chunk",
    "format_size",
    "free_host_bytes",
    "max_steps",
    "memory_limit_bytes",
    "open_session",
    "pass_table",
    "pass_term",
    "pass_value",
    "pinned_array",
    "positive_int",
    "rate_bytes_per_s",
    "read_plan",
    "say",
    "size_argument",
    "write_result",
]
