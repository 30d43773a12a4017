"""Samples are the figures that the analyzers give, instance by instance."""

from __future__ import annotations

import numpy as np
import pytest

from gpuscope import api, samples
from gpuscope.analysis import Options
from gpuscope.gates.samples import collect
from tests.make_trace import make_trace


@pytest.mark.parametrize("name", samples.names())
def test_figures_are_those_of_the_analyzers(name: str) -> None:
    trace = api.open_trace(samples.path(name))
    options = Options(by_path=True, instances=True)
    analysis = api.analyze_trace(trace, options)
    found = collect([trace], [options])
    processes = {process.pid: number for number, process in enumerate(trace.processes)}

    # Each of these programs used one GPU, or all that there are from 0 on.
    lowest = min(entry.device for entry in analysis.devices)
    scopes = {
        (None, processes[entry.process], entry.device - lowest): [entry.scope]
        for entry in analysis.devices
    } | {
        (entry.path, processes[entry.process], entry.device - lowest): [
            instance.scope for instance in entry.per_instance or ()
        ]
        for entry in analysis.ranges
    }
    assert set(found) == set(scopes)
    for key, expected in scopes.items():
        got = found[key]
        assert sorted(got.figures["span"]) == sorted(scope.span_ns for scope in expected)
        assert sorted(got.figures["busy"]) == sorted(scope.busy_ns for scope in expected)
        assert sorted(got.figures["idle"]) == sorted(scope.idle_ns for scope in expected)
        for figure in got.figures:
            values = got.figures[figure][~np.isnan(got.figures[figure])]
            if figure.startswith("exposed("):
                op_class = figure[len("exposed(") : -1]
                known = [s.classes[op_class].exposed_ns for s in expected if op_class in s.classes]
                assert sorted(values) == sorted(value for value in known if value is not None)
            elif figure.startswith("overlap("):
                pairs = [s.pair(*figure[len("overlap(") : -1].split(", ")) for s in expected]
                ratios = [p.overlap_ratio for p in pairs if p and p.overlap_ratio is not None]
                assert sorted(values) == sorted(ratios)


def test_operations_of_an_instance() -> None:
    trace = make_trace(
        kernels=[(10, 20, "s7"), (30, 45, "s7"), (110, 121, "s7"), (140, 150, "s7", {"name": "b"})],
        h2d=[(5, 9, "s8", {"launch": 2, "name": "a copy"})],
        ranges=[("a", 0, 50), ("a", 100, 160)],
    )

    found = collect([trace, trace], [Options(by_path=True, ranges=("a",))] * 2)["a", 0, 0]

    assert found.runs.tolist() == [0, 0, 1, 1]
    assert found.figures["delay"].tolist() == [3, 0, 3, 0]
    kernel = found.operations["kernel", "kernel"]
    assert kernel.counts.tolist() == [2, 1, 2, 1]
    assert kernel.durations.tolist() == [10, 15, 11, 10, 15, 11]
    assert kernel.starts.tolist() == [5, 25, 0, 5, 25, 0]
    assert kernel.mean_starts(1).tolist() == [5, 0, 5, 0]
    assert kernel.mean_starts(2).tolist() == [15, 0, 15, 0]
    assert found.operations["kernel", "b"].counts.tolist() == [1, 1]
    assert found.operations["h2d", "h2d"].starts.tolist() == [0, 0]  # copies go by class
