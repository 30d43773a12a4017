"""`gpuscope analyze`: what is measured, how it is shown, and how it ends."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuscope import api, samples
from gpuscope.cli import main
from tests.make_export import Export

STREAMS = str(samples.path("streams"))


def analyzed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["analyze", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """Three ranges: of the default domain, of a domain in its category 3 `loading`, and in 4."""
    path = tmp_path / "a.sqlite"
    with Export(path) as export:
        for number, (name, more) in enumerate(
            [
                ("plain", {}),
                ("load", {"domainId": 1, "category": 3}),
                ("other", {"domainId": 1, "category": 4}),
            ]
        ):
            start = 1000 * number
            export.range(name, start, start + 100, **more)
            export.call("cudaLaunchKernel_v7000", start + 10, start + 20, correlationId=number)
            export.operation("KERNEL", start + 30, start + 90, shortName="k", correlationId=number)
        export.range("mine", 0, None, kind=75, domainId=1)
        export.range("loading", 0, None, kind=33, domainId=1, category=3)
        # The same number of another domain is another category.
        export.range("elsewhere", 0, None, kind=33, domainId=2, category=4)
    return path


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ["plain", "load", "other"]),
        (["--domain", "mine"], ["load", "other"]),
        (["--domain", ""], ["plain"]),
        (["--category", "3"], ["load"]),
        (["--category", "loading"], ["load"]),
        (["--category", "load*", "--category", "4"], ["load", "other"]),
    ],
)
def test_domains_and_categories_choose_ranges(
    export: Path, arguments: list[str], expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = analyzed(capsys, str(export), *arguments)
    assert [entry["name"] for entry in found["ranges"]] == expected


@pytest.mark.parametrize("arguments", [["--category", "elsewhere"], ["--domain", "x"]])
def test_a_domain_or_category_without_work_cannot_be_judged(
    export: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", str(export), *arguments]) == 5
    assert "no range of the domains and categories asked for" in capsys.readouterr().err


def test_details_and_schedule_bring_the_scopes_that_they_complete(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = analyzed(capsys, STREAMS, "--only", "schedule", "--range", "streamed")
    (entry,) = found["ranges"]
    scope = entry["scope"]
    assert scope["schedule_bound_ns"] is not None
    assert scope["gaps"] is None
    assert main(["analyze", STREAMS, "--only", "details", "--range", "nowhere"]) == 5


@pytest.mark.parametrize(
    ("pattern", "paths"),
    [
        ("sequential/chunk0", ["sequential/chunk0"]),
        ("seq*", ["sequential", *(f"sequential/chunk{number}" for number in range(4))]),
        ("*chunk0", ["chunk0", "sequential/chunk0", "streamed/chunk0"]),
    ],
)
def test_a_star_in_a_path_stands_for_slashes_too(
    pattern: str, paths: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = analyzed(capsys, STREAMS, "--path", pattern)
    assert [entry["path"] for entry in found["ranges"]] == paths


def test_top_orders_by_the_time_that_could_still_be_hidden(
    capsys: pytest.CaptureFixture[str],
) -> None:
    scopes = [entry["scope"] for entry in analyzed(capsys, STREAMS)["ranges"]]
    scopes += [entry["scope"] for entry in analyzed(capsys, STREAMS)["devices"]]
    gains = sorted((scope["busy_ns"] - scope["bound_ns"] for scope in scopes), reverse=True)
    assert main(["analyze", STREAMS, "--top", "3", "--csv"]) == 0
    lines = [line.split(",") for line in capsys.readouterr().out.splitlines()]
    head = lines[0]
    busy, bound = head.index("busy_ns"), head.index("bound_ns")
    listed = list(dict.fromkeys(int(line[busy]) - int(line[bound]) for line in lines[1:]))
    assert listed == list(dict.fromkeys(gains[:3]))


@pytest.mark.parametrize("width", ["80", "120"])
def test_the_table_fits_the_terminal(
    width: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    for name in samples.names():
        assert main(["analyze", str(samples.path(name))]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= int(width)


def test_the_ranks_of_a_run_are_read_together(capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(samples.path(f"jacobi_nccl_r{number}")) for number in (0, 1)]
    found = analyzed(capsys, *paths, "--only", "communication")
    assert [each["communication"][0]["rank"] for each in found] == [0, 1]
    assert main(["analyze", *paths, "--markdown"]) == 0
    assert "| rank | GPU | messages |" in capsys.readouterr().out


@pytest.mark.parametrize("form", [[], ["--markdown"]])
def test_processes_that_share_a_gpu_are_told_apart(
    form: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = samples.path("time_sliced")
    assert main(["analyze", str(path), *form]) == 0
    out = capsys.readouterr().out
    for device in api.analyze([path])[0].devices:
        assert f"process {device.process} · GPU {device.device}" in out


def test_messages_name_their_communicator_where_there_are_several(
    capsys: pytest.CaptureFixture[str],
) -> None:
    several = [str(samples.path(f"nccl_several_r{rank}")) for rank in (0, 1)]
    one = [str(samples.path(f"nccl_group_r{rank}")) for rank in (0, 1)]
    for options in ([], ["--markdown"]):
        assert main(["analyze", *several, *options]) == 0
        said = capsys.readouterr().out
        named = {word for line in said.splitlines() for word in re.findall(r"in (\w{8})\b", line)}
        assert {"af305521", "c9da0243", "d88f1e0a"} <= named
        assert main(["analyze", *one, *options]) == 0
        assert "in d7984655" not in capsys.readouterr().out


def test_ranks_are_judged_jointly(capsys: pytest.CaptureFixture[str]) -> None:
    ranks = [str(samples.path(f"jacobi_nccl_r{rank}")) for rank in (0, 1)]
    assert main(["analyze", *ranks]) == 0
    assert "joint" in capsys.readouterr().out
    assert main(["analyze", ranks[0], str(samples.path("streams"))]) == 0
    assert "joint" not in capsys.readouterr().out


def test_the_run_folder_of_a_benchmark_tells_what_its_times_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for rank in (0, 1):
        folder = tmp_path / f"rank{rank}"
        folder.mkdir()
        shutil.copy(samples.path(f"jacobi_mpi_overlap_r{rank}"), folder / "trace.sqlite")
        told = {"options": {"steps": 6}, "figures": {"omb_overlap_ratio": 0.5}}
        (folder / "traced.json").write_text(json.dumps(told))
    assert main(["analyze", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "on average a step" in out
    assert " by times" in out
    assert "overlapped, rank 1: by the times (OMB) 50.0 % of the exchange is hidden" in out
    # The traces alone tell neither.
    assert main(["analyze", str(samples.path("jacobi_mpi_overlap_r0"))]) == 0
    out = capsys.readouterr().out
    assert "on average an instance" in out
    assert "by times" not in out


def test_ranges_are_not_asked_of_devices_alone(capsys: pytest.CaptureFixture[str]) -> None:
    trace = str(samples.path("streams"))
    assert main(["analyze", trace, "--only", "overlap", "--range", "streamed"]) == 2
    assert "for ranges add --only ranges" in capsys.readouterr().err


def test_other_threads_are_spoken_of_where_they_do_not_count_yet(
    capsys: pytest.CaptureFixture[str],
) -> None:
    trace = str(samples.path("streams"))
    assert main(["analyze", trace, "--range", "nope"]) == 5
    assert "--attribute process" in capsys.readouterr().err
    assert main(["analyze", trace, "--range", "nope", "--attribute", "process"]) == 5
    told = capsys.readouterr().err
    assert "no range 'nope'" in told
    assert "thread" not in told


def test_a_range_that_is_called_nearly_so_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", STREAMS, "--range", "stremed"]) == 5
    assert "count too; did you mean 'streamed'?\n" in capsys.readouterr().err
    assert main(["analyze", STREAMS, "--range", "nope"]) == 5
    assert "did you mean" not in capsys.readouterr().err


def test_at_a_terminal_alone_it_says_what_to_type_next(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = str(samples.path("pageable"))
    assert main(["analyze", trace]) == 0
    assert capsys.readouterr().err == ""
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    assert main(["analyze", trace]) == 0
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"next  gpuscope explain {trace} --range pageable  ")
    assert second.startswith(f"      gpuscope view {trace} ")
    assert main(["analyze", trace, "--json"]) == 0
    assert capsys.readouterr().err == ""
