"""`gpuscope verify` as it is typed: exit codes, forms, files."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gpuscope import samples
from gpuscope.cli import main

STREAMS = str(samples.path("streams_run"))
MET = "streamed: hidden(h2d, kernel) >= 0.6"
FAILED = "sequential: hidden(h2d, kernel) >= 0.6"
UNKNOWN = "stremed: hidden(h2d, kernel) >= 0.6"


@pytest.fixture(autouse=True)
def _not_on_github(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)


def verify(*arguments: str) -> int:
    return main(["verify", STREAMS, *arguments])


@pytest.mark.parametrize(
    ("expected", "code"),
    [((MET,), 0), ((MET, FAILED), 4), ((MET, UNKNOWN), 5), ((UNKNOWN, FAILED), 4)],
)
def test_exit_codes(
    expected: tuple[str, ...], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(*(word for text in expected for word in ("--expect", text))) == code

    out, err = capsys.readouterr()
    assert out.startswith("met ") or code == 4
    assert err.startswith("next  gpuscope analyze ") if code == 4 else not err


def test_json_has_every_scope(capsys: pytest.CaptureFixture[str]) -> None:
    assert verify("--json", "--expect", "stream*: span.worst <= 33 ms", "--expect", UNKNOWN) == 5

    data = json.loads(capsys.readouterr().out)
    assert data["schema_version"] == 1
    first, second = data["rows"]
    assert first["met"] is True
    assert first["scopes"][0]["range"] == "streamed"
    assert first["scopes"][0]["value"] == 32_445_535
    assert second["met"] is None
    assert "did you mean 'streamed'?" in second["text"]


def test_budget_recorded_then_met(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    budget = tmp_path / "budget.toml"

    assert main(["verify", "--record", STREAMS, "-o", str(budget)]) == 0
    assert capsys.readouterr().err == f"Wrote {budget}\n"
    assert verify("--budget", str(budget)) == 0
    assert main(["verify", "--record", STREAMS, "-o", str(budget)]) == 1
    assert "overwrite it with --force" in capsys.readouterr().err
    assert main(["verify", "--record", STREAMS, "-o", str(budget), "--force"]) == 0


def test_a_good_run_named_twice_is_no_second_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    budget = tmp_path / "budget.toml"
    (tmp_path / "link.sqlite").symlink_to(STREAMS)

    for again in (STREAMS, str(tmp_path / "link.sqlite")):
        assert main(["verify", "--record", STREAMS, again, "-o", str(budget)]) == 2
        assert f"{STREAMS} is named twice: name each trace once" in capsys.readouterr().err
        assert not budget.exists()


def test_junit_and_markdown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "gates.xml"

    assert verify("--markdown", "--junit", str(file), "--expect", FAILED) == 4

    assert capsys.readouterr().out.startswith("**1 NOT MET**")
    assert ElementTree.parse(file).getroot()[0].attrib["failures"] == "1"


def test_annotations_only_on_github_and_not_on_stdout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")

    assert verify("--json", "--expect", FAILED) == 4

    out, err = capsys.readouterr()
    json.loads(out)
    assert err.startswith("::error title=gpuscope verify::NOT MET: sequential: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verify"], "name a trace"),
        (["verify", STREAMS], "nothing is expected"),
        (["verify", STREAMS, "--expect", "span"], r"\(column 5\)"),
        (["verify", STREAMS, "--expect", "span > 1e400 ms"], "as large or as small"),
        (["verify", STREAMS, "--expect", "span > 1e-99999999 s"], "as large or as small"),
        (["verify", STREAMS, "--expect", MET, "-o", "b"], "belong to --record"),
        (["verify", STREAMS, "--expect", MET, "--times"], "belong to --record"),
        (["verify", "--record", STREAMS], "-o budget.toml"),
        (["verify", "--record", STREAMS, "-o", "b", "--expect", MET], "only proposes a budget"),
        (["verify", STREAMS, "--expect", MET, "--class", "comm=("], "no regular expression"),
    ],
)
def test_usage(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    import re

    assert main(arguments) == 2
    assert re.search(message, capsys.readouterr().err)


def test_what_is_not_met_names_what_tells_why(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(samples.path("streams"))

    def asked(*expectations: str) -> str:
        main(["verify", path, *(part for each in expectations for part in ("--expect", each))])
        return capsys.readouterr().err

    met, missed = "streamed: overlap(h2d, kernel) > 0.5", "sequential: overlap(h2d, kernel) > 0.5"
    assert asked(met) == ""
    assert asked("nope: span < 1 s") == ""
    start = f"next  gpuscope analyze {path}"
    assert asked(met, missed) == f"{start} --range sequential  why it is not met\n"
    assert asked("overlap(h2d, kernel) > 0.99") == f"{start}  why it is not met\n"
    by_path = "path sequential/chunk0: overlap(h2d, kernel) > 0.5"
    assert asked(by_path) == f"{start} --path sequential/chunk0  why it is not met\n"


def test_files_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify("--budget", str(tmp_path / "none.toml")) == 1
    assert "cannot be read: No such file" in capsys.readouterr().err

    (tmp_path / "latin.toml").write_bytes(b"\xe9")
    assert verify("--budget", str(tmp_path / "latin.toml")) == 1
    assert "not UTF-8" in capsys.readouterr().err

    assert verify("--expect", MET, "--junit", str(tmp_path / "no" / "gates.xml")) == 1
    assert "there is no folder" in capsys.readouterr().err


def test_window_and_domain(capsys: pytest.CaptureFixture[str]) -> None:
    assert verify("--window", "0:0.05", "--expect", "span <= 50 ms") == 0
    assert verify("--expect", "span <= 50 ms") == 4
    assert verify("--window", "9:10", "--expect", "span <= 50 ms") == 5
    assert verify("--domain", "gpuscope", "--expect", MET) == 0
    assert verify("--domain", "other", "--expect", MET) == 5


def test_figures_lists_what_can_be_expected(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--figures"]) == 0

    out = capsys.readouterr().out
    assert "hidden(A, B)" in out
    assert "GB/s" in out
    assert "pageable-copy" in out


def test_what_the_run_says_of_its_profiler_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "trace.sqlite").write_bytes(Path(STREAMS).read_bytes())
    expected = ["verify", str(tmp_path), "--expect", "no perturbed"]

    assert main(expected) == 0
    (tmp_path / "run.json").write_text(json.dumps({"perturbed": {"streamed": 0.25}}))
    assert main(expected) == 4
    assert "streamed 25.0 % longer" in " ".join(capsys.readouterr().out.split())
