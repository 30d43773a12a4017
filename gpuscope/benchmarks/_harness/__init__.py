"""What every benchmark shares.

``pipeline``, ``sizing`` and ``stats`` are arithmetic and run anywhere; ``gpu``, ``ranks``,
``pairs``, ``device_mpi``, ``data``, ``machine``, ``links``, ``chunks``, ``memory`` and
``symmetric`` touch the GPU, MPI or NVSHMEM, and import their libraries only when used. Benchmarks
import from here; what the Jacobi ones share is in ``decomposition``, ``halo`` and ``stencil``, and
imported from there.
"""

from gpuscope.benchmarks._harness import device_mpi
from gpuscope.benchmarks._harness.chunks import (
    Chunks,
    FmaKernel,
    add_chunk_arguments,
    buffer_limit_bytes,
    check_device_bytes,
    choose_chunk_bytes,
    refuse_inexact,
)
from gpuscope.benchmarks._harness.data import (
    WRONG_DATA,
    Pattern,
    max_steps,
    pass_term,
    pass_value,
    raise_if_wrong,
)
from gpuscope.benchmarks._harness.gpu import (
    MAX_PENDING,
    Measured,
    Pass,
    Session,
    event_for,
    host_array,
    open_session,
    say,
)
from gpuscope.benchmarks._harness.links import Link, link_between
from gpuscope.benchmarks._harness.memory import CACHE_FACTOR, copy_rate_bytes_per_s
from gpuscope.benchmarks._harness.pairs import (
    PATHS,
    PUSHED_COMMANDS,
    STAGED_COMMANDS,
    DirectWay,
    Pair,
    StagedWay,
    add_pair_arguments,
    enable_peer_access,
    open_pair,
)
from gpuscope.benchmarks._harness.pipeline import (
    Pipeline,
    StageTimes,
    report_pipeline,
)
from gpuscope.benchmarks._harness.ranks import Ranks, leave, open_ranks
from gpuscope.benchmarks._harness.registry import CORRUPT, Benchmark, Twin, add_common_arguments
from gpuscope.benchmarks._harness.result import (
    NOT_JUDGED,
    NOT_OBSERVABLE,
    Expectation,
    Expected,
    ExpectedCount,
    ExpectedHidden,
    ExpectedLinks,
    ExpectedPeak,
    ExpectedPingPong,
    Quantity,
    Result,
    chosen_options,
    quantity_row,
    read_plan,
    write_result,
)
from gpuscope.benchmarks._harness.sizing import (
    MIB,
    calibrate_steps,
    chosen_bytes,
    format_size,
    positive_float,
    positive_int,
    rate_bytes_per_s,
    size_argument,
)
from gpuscope.benchmarks._harness.stats import MessageFit, Statistics, fit_messages
from gpuscope.benchmarks._harness.symmetric import Heap, open_heap

__all__ = [
    "CACHE_FACTOR",
    "CORRUPT",
    "MAX_PENDING",
    "MIB",
    "NOT_JUDGED",
    "NOT_OBSERVABLE",
    "PATHS",
    "PUSHED_COMMANDS",
    "STAGED_COMMANDS",
    "WRONG_DATA",
    "Benchmark",
    "Chunks",
    "DirectWay",
    "Expectation",
    "Expected",
    "ExpectedCount",
    "ExpectedHidden",
    "ExpectedLinks",
    "ExpectedPeak",
    "ExpectedPingPong",
    "FmaKernel",
    "Heap",
    "Link",
    "Measured",
    "MessageFit",
    "Pair",
    "Pass",
    "Pattern",
    "Pipeline",
    "Quantity",
    "Ranks",
    "Result",
    "Session",
    "StageTimes",
    "StagedWay",
    "Statistics",
    "Twin",
    "add_chunk_arguments",
    "add_common_arguments",
    "add_pair_arguments",
    "buffer_limit_bytes",
    "calibrate_steps",
    "check_device_bytes",
    "choose_chunk_bytes",
    "chosen_bytes",
    "chosen_options",
    "copy_rate_bytes_per_s",
    "device_mpi",
    "enable_peer_access",
    "event_for",
    "fit_chunk",
    "fit_messages",
    "format_size",
    "host_array",
    "leave",
    "link_between",
    "max_steps",
    "open_heap",
    "open_pair",
    "open_ranks",
    "open_session",
    "pass_term",
    "pass_value",
    "positive_float",
    "positive_int",
    "quantity_row",
    "raise_if_wrong",
    "rate_bytes_per_s",
    "read_plan",
    "refuse_inexact",
    "report_pipeline",
    "say",
    "size_argument",
    "write_result",
]
