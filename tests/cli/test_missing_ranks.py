"""Runs of which a rank left no trace: the others are read, and what is missing is said."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from gpuscope.api import analyze, of_ranks
from gpuscope.cli import main
from gpuscope.report.ranks import joint_rows
from tests.cli.test_naming import RANKS, write_run

SAYS = "rank 2 of 3 ranks is without a trace and left out"


@pytest.fixture(params=["no trace", "no folder"])
def of_three(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a run of three ranks, of which the last left no trace, or not even a folder."""
    run = write_run(tmp_path / "three", *RANKS)
    if request.param == "no trace":
        (run / "rank2").mkdir()
        (run / "rank2" / "rank.json").write_text("{}")
    else:
        (run / "ranks.json").write_text('{"size": 3}')
    return run


def test_the_other_ranks_are_read(of_three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("analyze", "info", "explain"):
        assert main([command, str(of_three)]) == 0
        said = capsys.readouterr()
        assert (said.out + said.err).count(SAYS) == 1
        assert "rank1/trace.sqlite" in said.out
    assert main(["analyze", str(of_three), "--json"]) == 0
    summaries = [each["trace"] for each in json.loads(capsys.readouterr().out)]
    assert [each["missing_ranks"] for each in summaries] == [[2], []]
    assert summaries[0]["notes"][0] == SAYS
    for out in ("report.html", "report.md"):
        target = of_three.with_name(out)
        assert main(["report", str(of_three), "-o", str(target)]) == 0
        assert SAYS in target.read_text("utf-8")
    assert main(["anonymize", str(of_three), str(of_three.with_name("clean"))]) == 0
    assert SAYS in capsys.readouterr().err
    # A rank that is not the first recorded tells of itself alone.
    assert main(["analyze", str(of_three / "rank1")]) == 0
    assert SAYS not in capsys.readouterr().out


@pytest.mark.parametrize("command", ["analyze", "info", "explain"])
def test_a_run_of_which_one_rank_is_left_is_an_array(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "two", *RANKS)
    shutil.rmtree(run / "rank0")
    assert main([command, str(run), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 1
    assert main([command, str(run / "rank1"), "--json"]) == 0
    assert isinstance(json.loads(capsys.readouterr().out), dict)


def test_jointly_what_a_missing_rank_did_is_not_known(of_three: Path) -> None:
    whole = joint_rows(analyze([of_three / "rank0", of_three / "rank1"]))
    shutil.rmtree(of_three / "rank2", ignore_errors=True)
    (of_three / "ranks.json").unlink(missing_ok=True)
    known = joint_rows(analyze(of_ranks([of_three])))
    assert [row.verdicts for row in whole] == [row.verdicts for row in known]
    for missing, there in zip(whole, known, strict=True):
        hidden = there.joint in {"overlapped", "pipelined", "immaterial"}
        assert missing.joint == ("inconclusive" if hidden else there.joint)


def test_all_ranks_cannot_be_verified(of_three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(of_three), "--expect", "count(comm) >= 1"]) == 5
    assert "rank 2 of 3 ranks is without a trace" in capsys.readouterr().err
    budget = str(of_three.with_name("budget.toml"))
    assert main(["verify", "--record", str(of_three), "-o", budget]) == 5
    each = [str(of_three / f"rank{rank}") for rank in (0, 1)]
    assert main(["verify", *each, "--expect", "count(comm) >= 1"]) == 0


def test_ranks_with_a_trace_on_both_sides_are_compared(
    of_three: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_run(tmp_path / "other", *RANKS, RANKS[1])
    (other / "rank0" / "trace.sqlite").unlink()
    assert main(["compare", str(of_three), str(other), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["before"] == [str(of_three / "rank1" / "trace.sqlite")]
    assert f"{other / 'rank1'}: rank 0 of 3 ranks is without a trace" in found["notes"][0]
    (other / "rank1" / "trace.sqlite").unlink()
    assert main(["compare", str(of_three), str(other)]) == 5
    assert "no rank has a trace on both sides" in capsys.readouterr().err
