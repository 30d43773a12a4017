"""gpuscope explain: as text, as JSON, and what it says when there is nothing to tell."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

from gpuscope import api, samples
from gpuscope.cli import main

DEFAULT = str(samples.path("default"))


def test_an_operation_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", DEFAULT, "--op", "3"]) == 0

    heading, launch, stream, engine, operation, reason = capsys.readouterr().out.splitlines()
    assert heading.startswith(
        "operation 3: H2D copy (h2d, 33.6 MB, pinned → device), null stream 7, device 0"
    )
    assert re.match(r"  launch +│.*−1\.24 ms … −1\.23 ms +cudaMemcpyAsync, thread 981$", launch)
    assert re.match(r"  stream +├─+┤ +−610 µs … −3\.90 µs +D2H copy", stream)
    assert re.match(r"  engine +…─+┤", engine)
    assert re.match(r"  operation +├─+… 0 … \+607 µs$", operation)
    assert reason.startswith("  stream: it started 3.90 µs after the operation before it")
    # The operation begins where its predecessor ends.
    assert operation.index("├") - stream.index("┤") in (0, 1)


def test_a_time_finds_what_ran_then(capsys: pytest.CaptureFixture[str]) -> None:
    main(["explain", DEFAULT, "--op", "1.5ms"])
    by_time = capsys.readouterr().out
    main(["explain", DEFAULT, "--op", "3"])

    assert by_time == capsys.readouterr().out


def test_where_nothing_ran_it_is_said_how_much_later_the_next_began(
    capsys: pytest.CaptureFixture[str],
) -> None:
    trace = str(samples.path("streams"))
    main(["explain", trace, "--op", "1.5ms"])
    assert capsys.readouterr().out.startswith(
        "nothing ran then: the next operation began 21.8 ms later"
    )
    main(["explain", trace, "--op", "1.5ms", "--json"])
    assert json.loads(capsys.readouterr().out)["later_ns"] == 21_800_223
    main(["explain", trace, "--op", "25ms", "--json"])
    assert json.loads(capsys.readouterr().out)["later_ns"] is None


def test_a_range_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(samples.path("sync")), "--range", "sync"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("sync, device 0 of process 1360: 3 ×, span 34.3 ms")
    lanes = [line.split()[-1] for line in lines if line.startswith("  stream 2")]
    assert lanes[0].startswith(">>>█<<<·")
    assert [len(lane) for lane in lanes] == [60] * 4
    assert "  h2d waited for host (24 ×, 722 µs each)" in lines
    assert any("instead" in line and "cudaStreamSynchronize" in line for line in lines)


def test_without_a_range_the_longest_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(samples.path("jacobi_nccl_r0")), "--json"]) == 0

    told = json.loads(capsys.readouterr().out)
    assert told["schema_version"] == 1
    spans = [entry["span_ns"] for entry in told["ranges"]]
    assert len(spans) == 4
    assert spans == sorted(spans, reverse=True)


def test_json_of_an_operation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", DEFAULT, "--op", "3", "--json"]) == 0

    (told,) = json.loads(capsys.readouterr().out)["operations"]
    assert (told["operation"], told["reason"], told["range"]) == (3, "stream", "default")
    assert [step["kind"] for step in told["waited_for"]] == ["stream", "engine"]
    assert told["start_ns"] - told["waited_for"][0]["end_ns"] == 3_904


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--op", "soon"], 2, "neither the number of an operation nor a time"),
        (["--op", "3", "--range", "default"], 2, "exclude each other"),
        (["--op", "72"], 5, "it has 72, numbered from 0"),
        (["--op", "99s"], 5, "nothing ran 99s after the first operation"),
        (["--range", "nothing"], 5, "no range 'nothing' with GPU work"),
        (["--range", "defualt"], 5, "lists those that are; did you mean 'default'?"),
    ],
)
def test_what_is_not_there(
    arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", DEFAULT, *arguments]) == code
    assert says in capsys.readouterr().err


def test_names_from_the_trace_cannot_reach_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = api.open_trace(samples.path("default"))
    hostile = dataclasses.replace(
        trace, strings=tuple(f"\x1b[31m{text}\r\n" for text in trace.strings)
    )
    monkeypatch.setattr(api, "open_trace", lambda path: hostile)

    assert main(["explain", DEFAULT, "--op", "3"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\r" not in out


def test_traces_are_told_one_after_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    ranks = [str(samples.path(f"jacobi_mpi_blocking_r{rank}")) for rank in (0, 1)]

    assert main(["explain", *ranks, "--range", "overlapped", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["path"] for each in told] == ranks
    assert [[story["range"] for story in each["ranges"]] for each in told] == [["overlapped"]] * 2

    assert main(["explain", *ranks, "--range", "overlapped"]) == 0
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if line in ranks] == ranks

    assert main(["explain", *ranks, "--range", "nothing"]) == 5
    assert f"is in {ranks[0]}, {ranks[1]}" in capsys.readouterr().err


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_lines_of_time_fit_the_terminal(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lines() -> list[str]:
        assert main(["explain", str(samples.path("sync"))]) == 0
        steps = ("launch", "stream  ", "engine", "instead", "operation  ")
        return [
            line for line in capsys.readouterr().out.splitlines() if line.strip().startswith(steps)
        ]

    monkeypatch.delenv("COLUMNS", raising=False)
    whole = lines()
    monkeypatch.setenv("COLUMNS", str(columns))
    fitted = lines()
    assert max(map(len, fitted)) <= columns
    assert len(fitted) == len(whole) > 10
    assert all(re.search(r"[├│┤]", line) for line in fitted)
