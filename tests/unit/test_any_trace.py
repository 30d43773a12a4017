"""Whatever a trace holds, it is analyzed, and its figures keep within their bounds.

Times need not be those of any GPU: streams overlap, calls last or not, ranges never end.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope import api
from gpuscope.analysis import Options
from gpuscope.model.result import Scope
from gpuscope.model.tables import EVICTED, STAGED
from gpuscope.model.trace import Trace
from tests.make_trace import make_trace

CLASSES = ["kernels", "comm", "h2d", "d2h", "p2p", "memset", "uvm", "graph", "gate", "fused", "h2h"]
CALLS = ["cudaLaunchKernel", "cudaMemcpyAsync", "cudaMemcpy", "cudaMalloc", "cudaStreamSynchronize"]
CALLS += ["cuModuleLoadData", "cudaLaunchHostFunc_v10000", "cudaDeviceSynchronize"]

times = st.integers(0, 60)
lengths = st.sampled_from([0, 0, 1, 5, 20])
threads = st.sampled_from(["main", "other"])
operations: st.SearchStrategy[Any] = st.tuples(
    st.sampled_from(CLASSES),
    times,
    lengths,
    st.sampled_from(["s0", "s1", "s2"]),
    st.fixed_dictionaries(
        {
            "launch": times,
            "thread": threads,
            "device": st.integers(0, 1),
            "bytes": st.sampled_from([0, 1, 1 << 25]),
            "src": st.integers(-1, 1),
            "dst": st.integers(-1, 1),
            "src_kind": st.integers(-1, 2),
            "dst_kind": st.integers(-1, 2),
            "flags": st.sampled_from([0, 0, STAGED, EVICTED]),
            "graph_node": st.sampled_from([-1, -1, 3]),
            "api": st.sampled_from(CALLS),
        }
    ),
)
ranges = st.tuples(
    st.sampled_from("abc"),
    times,
    st.sampled_from([None, 0, 10, 40]),
    st.fixed_dictionaries({"thread": threads, "kind": st.integers(0, 1)}),
)
mpi_calls = st.tuples(st.sampled_from(["MPI_Wait", "MPI_Barrier"]), times, lengths, threads)
questions = st.fixed_dictionaries(
    {
        "by_path": st.booleans(),
        "attribute": st.sampled_from(["thread", "process"]),
        "instances": st.booleans(),
        "window": st.sampled_from([None, (5, 40)]),
    }
)


@st.composite
def traces(draw: st.DrawFn, scale: int) -> Trace:
    rows: dict[str, Any] = {}
    for op_class, start, length, stream, extra in draw(st.lists(operations, max_size=25)):
        extra = {**extra, "launch": extra["launch"] * scale}
        row = (start * scale, (start + length) * scale, stream, extra)
        rows.setdefault(op_class, []).append(row)
    trace = make_trace(
        devices=2,
        copy_engines=draw(st.sampled_from([1, 2, None])),
        launched=draw(st.booleans()),
        environment=draw(st.sampled_from([{}, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}])),
        ranges=[
            (name, start * scale, None if length is None else (start + length) * scale, extra)
            for name, start, length, extra in draw(st.lists(ranges, max_size=5))
        ],
        mpi=[
            (name, start * scale, (start + length) * scale, {"thread": thread})
            for name, start, length, thread in draw(st.lists(mpi_calls, max_size=4))
        ],
        **rows,
    )
    kinds = st.sampled_from([None, "null", "blocking", "non-blocking"])
    streams = tuple(dataclasses.replace(stream, kind=draw(kinds)) for stream in trace.streams)
    calls = trace.api
    if calls is not None:
        lasted = np.array([draw(lengths) * scale for _ in range(len(calls))], np.int64)
        calls = dataclasses.replace(calls, end_ns=calls.start_ns + lasted)
    return dataclasses.replace(trace, streams=streams, api=calls)


def check(scope: Scope) -> None:
    assert 0 <= scope.busy_ns <= scope.span_ns
    assert scope.busy_ns + scope.idle_ns == scope.span_ns
    if scope.schedule_bound_ns is not None:
        assert 0 <= scope.schedule_bound_ns <= scope.span_ns
    assert 0 <= scope.bound_ns <= scope.busy_ns
    assert scope.overlap_efficiency is None or 0 <= scope.overlap_efficiency <= 1
    for pair in scope.pairs:
        assert pair.overlap_ratio is None or 0 <= pair.overlap_ratio <= 1


@settings(max_examples=150)
@given(st.data(), st.sampled_from([1, 1_000, 100_000]), questions)
def test_figures_and_savings_keep_within_the_span(
    data: st.DataObject, scale: int, asked: dict[str, Any]
) -> None:
    trace = data.draw(traces(scale))
    window = asked.pop("window")
    window_ns = None if window is None else tuple(edge * scale for edge in window)
    options = Options(window_ns=window_ns, **asked, **api.exchanged([trace])[0])

    analysis = api.analyze_trace(trace, options)

    scopes = [each.scope for each in analysis.devices]
    for scope in [*scopes, *(each.scope for each in analysis.ranges)]:
        check(scope)
    for finding in analysis.findings:
        if finding.saving_ns is not None:
            assert 0 <= finding.saving_ns <= finding.evidence["span_ns"]
