"""`gpuscope run --sweep`, `--repeat` and `--all`, with a stand-in for the benchmark's process."""

from __future__ import annotations

import argparse
import csv
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from gpuscope.cli import _many, _series, _sweep, main
from gpuscope.errors import UsageError
from gpuscope.figures.palette import LIGHT
from gpuscope.figures.sweep import RATIO_TITLE, sweep_figure
from gpuscope.recording import launch
from gpuscope.recording.display import Display
from gpuscope.recording.folder import RunFolder

STAND_IN = """\
import json, sys
name, *options = sys.argv[1:]
words = [word for option in options for word in option.split("=", 1)]
values = dict(zip(words[::2], words[1::2]))
number = int(open({log!r}).read()) + 1
open({log!r}, "w").write(str(number))
if name == {failing!r}:
    print("gpuscope: the GPU is on fire", file=sys.stderr)
    sys.exit(1)
ratio = float(values.get("--kernel-ratio", 1))
median_ns = round(10_000_000 * {slowdowns!r}[number - 1])
times = {{"p10_ns": 1, "p90_ns": 2, "min_ns": 1, "max_ns": 2, "mad_ns": 0, "n": 3}}
result = {{
    "benchmark": name, "twin": None, "options": {{"kernel_ratio": ratio}}, "repetitions": 3,
    "warmup": 5,
    "passes": {{"sequential": {{"median_ns": 20_000_000, **times}},
               "streamed": {{"median_ns": median_ns, **times}}}},
    "baselines": {{"streamed": "sequential"}}, "issued": {{}},
    "stages": {{"kernel_ns": round(ratio * 1000)}},
    "figures": {{"speedup": 1 + ratio, "speedup_max": 2 + ratio, "kernel_copy_ratio": ratio}},
    "quantities": [{{"name": f"rate of {{name}}", "value": 50e9, "unit": "bytes/s",
                     "limit": 62.5e9, "limit_source": "the link"}}],
    "expected": [], "machine": {{"gpu": "a GPU", "driver": "1.2"}}, "notes": [],
    "valid": ratio != 99 and name != {drifting!r},
}}
if not result["valid"]:
    result["notes"] = ["the clock drifted"]
json.dump({{**result, "plan": values.get("--plan")}}, open(values["--result"], "w"))
print("the benchmark's table")
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Stand a script in for `python -m gpuscope.benchmarks`."""
    monkeypatch.chdir(tmp_path)

    def make(failing: str = "", drifting: str = "", slowdowns: Sequence[float] = (1,) * 20) -> None:
        log = tmp_path / "log"
        log.write_text("0")
        script = tmp_path / "benchmark.py"
        script.write_text(
            STAND_IN.format(
                log=str(log), failing=failing, drifting=drifting, slowdowns=tuple(slowdowns)
            )
        )

        def argv(
            name: str, options: Sequence[str], result: Path, plan: Path | None = None
        ) -> list[str]:
            return [sys.executable, str(script), *original(name, options, result, plan)[4:]]

        monkeypatch.setattr(launch, "benchmark_argv", argv)

    original = launch.benchmark_argv
    make()
    return make


def folder() -> Path:
    (found,) = Path("runs").iterdir()
    return found


def listed(capfd: pytest.CaptureFixture[str]) -> list[str]:
    """Return the lines of `gpuscope runs`, without the folders."""
    assert main(["runs"]) == 0
    lines = [re.split(r"\s{2,}", line.strip()) for line in capfd.readouterr().out.splitlines()]
    return ["  ".join(cells[:3]) for cells in lines if cells[0] in {"last", "–"}]


def rows_of(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(file.read_text().splitlines()))


@pytest.mark.usefixtures("stand_in")
def test_a_sweep_is_a_table_a_csv_and_a_plot(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "streams", "--sweep", "kernel-ratio=0.5,2", "--chunks", "4"]) == 0

    out, err = capfd.readouterr()
    words = [line.split() for line in out.splitlines()]
    assert ["0.5", "20.0", "ms", "10.0", "ms", "1.50", "2.50", "0.50"] in words
    assert ["2", "20.0", "ms", "10.0", "ms", "3.00", "4.00", "2.00"] in words
    assert "gpuscope: kernel-ratio 0.5" in err
    assert "Wrote runs/streams-sweep-" in err
    names = {path.name for path in folder().iterdir()}
    assert names == {"0.5.json", "2.json", "sweep.json", "sweep.csv", "sweep.html", "run.json"}
    first, second = rows_of(folder() / "sweep.csv")
    assert (first["kernel-ratio"], first["streamed_median_ns"], first["speedup"]) == (
        "0.5", "10000000", "1.5",
    )  # fmt: skip
    assert second["kernel_ns"] == "2000"
    content = json.loads((folder() / "sweep.json").read_text())
    assert [run["values"] for run in content["runs"]] == [
        {"kernel-ratio": "0.5"},
        {"kernel-ratio": "2"},
    ]
    assert listed(capfd) == ["–  streams (sweep kernel-ratio=0.5,2)  done"]
    page = (folder() / "sweep.html").read_text(encoding="utf-8")
    assert "speed-up" in page
    assert "src=" not in page.split("<body>")[0]  # it needs no network


@pytest.mark.usefixtures("stand_in")
def test_times_that_are_void_are_said_and_marked(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "streams", "--sweep", "kernel-ratio=1,99"]) == 5
    out, err = capfd.readouterr()
    assert "the times of kernel-ratio 99 are void and must not be used: the clock drifted." in err
    assert "99 (void)" in out
    assert "1 (void)" not in out
    assert listed(capfd) == ["–  streams (sweep kernel-ratio=1,99)  times void"]
    assert [row["valid"] for row in rows_of(folder() / "sweep.csv")] == ["True", "False"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["streams", "--repeat", "2", "--kernel-ratio", "99"], "process 1, process 2 are void"),
        (["streams", "--untraced", "--kernel-ratio", "99"], "the times of streams are void"),
    ],
)
@pytest.mark.usefixtures("stand_in")
def test_times_that_are_void_end_the_command(
    words: list[str], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *words]) == 5
    assert said in capfd.readouterr().err


def test_the_table_of_all_tells_which_times_are_void(
    stand_in: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    stand_in(drifting="hyperq")
    assert main(["run", "--untraced", "--all"]) == 5
    out, err = capfd.readouterr()
    assert "hyperq: not traced, times void" in out
    assert "the times of hyperq are void" in err
    content = json.loads((folder() / "all.json").read_text())
    assert [name for name, valid in content["valid"].items() if not valid] == ["hyperq"]


@pytest.mark.usefixtures("stand_in")
def test_json_of_a_sweep_is_all_of_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "streams", "--sweep", "kernel-ratio=1,2", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["options"] == ["kernel-ratio"]


@pytest.mark.usefixtures("stand_in")
def test_repeated_processes_do_the_same_work_and_agree(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "streams", "--repeat", "3"]) == 0

    out, err = capfd.readouterr()
    assert "process 3 of 3" in err
    assert "sequential   20.0 ms   20.0 ms   20.0 ms   0.0 %" in out
    runs = json.loads((folder() / "repeat.json").read_text())["runs"]
    plans = [run["result"]["plan"] for run in runs]
    assert plans == [None, *[str((folder() / "1.json").absolute())] * 2]


def test_processes_that_do_not_agree_end_with_4(
    stand_in: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    stand_in(slowdowns=(1, 1.1, 1.2))
    assert main(["run", "streams", "--repeat", "3"]) == 4
    out, err = capfd.readouterr()
    assert "streamed     11.0 ms   10.0 ms   12.0 ms   18.2 %" in out
    assert "the medians of streamed are more than 15% apart" in err
    assert listed(capfd) == ["–  streams (repeat 3)  NOT MET"]


def test_a_failure_ends_the_series_with_its_own_sentence(
    stand_in: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    stand_in(failing="streams")
    assert main(["run", "streams", "--repeat", "3"]) == 1
    assert "the GPU is on fire" in capfd.readouterr().err
    assert not Path("runs").exists()


def test_what_was_measured_before_a_failure_is_kept_and_said(
    stand_in: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    stand_in(slowdowns=[1])  # the second process crashes
    assert main(["run", "streams", "--sweep", "kernel-ratio=1,2"]) == 1
    assert f"what was measured before is in {folder().absolute()}" in capfd.readouterr().err
    assert {path.name for path in folder().iterdir()} == {"1.json", "run.json"}
    assert listed(capfd) == ["–  streams (sweep kernel-ratio=1,2)  failed"]


def test_all_of_which_none_runs_leave_nothing(stand_in: Callable[..., None]) -> None:
    stand_in(slowdowns=[])
    assert main(["run", "--untraced", "--all"]) == 1
    assert not Path("runs").exists()


@pytest.mark.usefixtures("stand_in")
def test_all_benchmarks_in_one_table(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--untraced", "--all", "--reps", "3"]) == 0

    out, _ = capfd.readouterr()
    assert "a GPU, driver 1.2" in out
    for name in ("streams", "hyperq", "host-bandwidth", "jacobi"):
        assert f"rate of {name}" in out
        assert (folder() / name / "run.json").exists()
    assert "80.0 %" in out
    content = json.loads((folder() / "all.json").read_text())
    assert content["verdicts"]["graph"] == "not traced"
    assert content["quantities"]["graph"][0]["value"] == 50e9
    assert listed(capfd) == ["–  all  done"]


def test_one_that_fails_does_not_keep_the_others_from_running(
    stand_in: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    stand_in(failing="hyperq")
    assert main(["run", "--untraced", "--all"]) == 1
    out, err = capfd.readouterr()
    assert "the GPU is on fire" in err
    assert "rate of jacobi" in out
    assert json.loads((folder() / "all.json").read_text())["verdicts"]["hyperq"] == "failed"


def test_ctrl_c_in_one_of_all_is_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    args = argparse.Namespace(
        target=[], sweep=None, repeat=None, twin=None, view=False, out=None, force=False, json=False
    )
    started: list[str] = []

    def run_one(name: str, folder: RunFolder) -> Any:
        started.append(name)
        return SimpleNamespace(exit_code=130, failure=None, judgement=None, untraced=None)

    with pytest.raises(KeyboardInterrupt):
        _many.run_all(args, run_one, Display())
    assert started == ["streams"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["streams", "--sweep", "kernel-ratio"], "is not understood"),
        (["streams", "--sweep", "=1,2"], "is not understood"),
        (["streams", "--sweep", "kernel-ratio=1,,2"], "is not understood"),
        (["streams", "--sweep", "kernel-ratio=1"], "two or more"),
        (["streams", "--sweep", "kernel-ratio=1,1"], "two or more"),
        (["streams", "--sweep", "chunks=2,4", "--sweep", "chunks=8,16"], "chunks is given twice"),
        (
            ["streams", "--sweep=chunks=2,4", "--sweep=streams=2,4", "--sweep=size=1M,2M"],
            "2 options at most",
        ),
        (["streams", "--sweep", "colour=1,2"], "streams has no option --colour"),
        (["streams", "--repeat", "1"], "at least 2"),
        (["streams", "--repeat", "x"], "at least 2"),
        (["streams", "--repeat", "2", "--sweep", "chunks=1,2"], "use one of them"),
        (["streams", "--nsys", "--repeat", "2"], "without --nsys"),
        (["streams", "--view", "--sweep", "chunks=2,4"], "or --view"),
        (["--all", "--view"], "--all takes no name"),
        (["streams", "--repeat", "2", "--twin", "corrupt-element"], "ends without figures"),
        (["--all", "streams"], "--all takes no name"),
        (["--all", "--repeat", "2"], "--all takes no name"),
        (["--sweep", "a=1,2", "--", "true"], "is for benchmarks"),
    ],
)
@pytest.mark.usefixtures("stand_in")
def test_usage(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--untraced", *words]) == UsageError.exit_code
    assert said in capsys.readouterr().err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["--sweep=chunks=4,8", "--sweep=kernel-ratio=0.5,2", "streams"],
        ["--sweep=chunks=4,8", "streams", "--sweep=kernel-ratio=0.5,2"],
        ["streams", "--sweep=chunks=4,8", "--sweep=kernel-ratio=0.5,2"],
    ],
)
@pytest.mark.usefixtures("stand_in")
def test_two_sweeps_are_a_grid(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *words]) == 0

    out, err = capfd.readouterr()
    lines = [line.split() for line in out.splitlines()]
    assert lines[2][:5] == ["chunks", "kernel-ratio", "sequential", "streamed", "speed-up"]
    assert ["4", "0.5", "20.0", "ms", "10.0", "ms", "1.50", "2.50", "0.50"] in lines
    assert ["8", "2", "20.0", "ms", "10.0", "ms", "3.00", "4.00", "2.00"] in lines
    assert "gpuscope: chunks 8, kernel-ratio 0.5" in err
    assert (folder() / "chunks-8_kernel-ratio-0.5.json").is_file()
    found = [(row["chunks"], row["kernel-ratio"]) for row in rows_of(folder() / "sweep.csv")]
    assert found == [("4", "0.5"), ("4", "2"), ("8", "0.5"), ("8", "2")]
    assert listed(capfd)[0].startswith("–  streams (sweep chunks=4,8 kernel-ratio=")


@pytest.mark.usefixtures("stand_in")
def test_a_value_that_the_benchmark_refuses_ends_the_sweep_before_it_begins() -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "streams", "--sweep", "chunks=4,many"])
    assert ended.value.code == UsageError.exit_code
    assert not Path("runs").exists()


def make_result(**figures: float | None) -> dict[str, Any]:
    return {
        "benchmark": "b",
        "options": {"kernel_ratio": 2.0, "size_bytes": 64},
        "machine": {},
        "valid": True,
        "stages": {},
        "figures": figures,
        "passes": {"one": {"median_ns": 3_000_000, "p10_ns": 1, "p90_ns": 2}},
    }


def test_the_plot_is_over_the_ratio_in_its_order() -> None:
    rows = [
        ((value,), make_result(speedup=x + 1, speedup_max=x + 2, kernel_copy_ratio=x))
        for value, x in (("many", 4.0), ("few", 0.5))
    ]
    figure = sweep_figure(["steps"], rows, LIGHT)
    measured, possible = figure.data
    assert (list(measured.x), list(measured.y), list(possible.y)) == ([0.5, 4], [1.5, 5], [2.5, 6])
    assert list(measured.text) == ["steps few", "steps many"]
    assert figure.layout.xaxis.title.text == RATIO_TITLE
    assert list(figure.layout.xaxis.ticktext) == ["0.5", "4"]


def test_the_plot_of_what_has_no_ratio_is_over_the_values() -> None:
    rows = [((value,), make_result(speedup=float(value))) for value in ("8", "1")]
    (measured,) = sweep_figure(["connections"], rows, LIGHT).data
    assert (list(measured.x), list(measured.y)) == (["8", "1"], [8, 1])


def test_the_plot_of_what_has_no_speedup_shows_times() -> None:
    rows = [((value,), make_result()) for value in ("1M", "2M")]
    figure = sweep_figure(["size"], rows, LIGHT)
    assert (figure.data[0].name, list(figure.data[0].y)) == ("one", [3, 3])
    assert figure.layout.yaxis.title.text == "time (ms)"


def test_what_has_no_speedup_is_a_table_of_its_quantities(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def quantity(name: str, value: float) -> dict[str, Any]:
        return {"name": name, "value": value, "unit": "ns", "limit": None, "limit_source": ""}

    near, far = make_result(), make_result()
    near["quantities"] = [quantity("hop of 8 B", 2200.0), quantity("hop of 64 B", 2300.0)]
    far["quantities"] = [quantity("hop of a flag", 726.0), quantity("hop of 64 B", 17_000.0)]
    far["valid"] = False
    Console(width=120).print(_sweep.make_table(["path"], [(("p2p",), near), (("driver",), far)]))
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "quantity path p2p path driver (void)" in lines
    assert "hop of 8 B 2.20 µs –" in lines
    assert "hop of 64 B 2.30 µs 17.0 µs" in lines
    assert "hop of a flag – 726 ns" in lines


def test_the_plot_has_every_pass_of_all_runs() -> None:
    one, other = make_result(), make_result()
    other["passes"] = {"flags": {"median_ns": 1_000_000, "p10_ns": 1, "p90_ns": 2}}
    figure = sweep_figure(["path"], [(("p2p",), one), (("sm",), other)], LIGHT)
    assert {line.name: list(line.y) for line in figure.data} == {
        "one": [3, None],
        "flags": [None, 1],
    }


def test_the_plot_of_a_grid_has_lines_for_each_value_of_the_first_option() -> None:
    rows = [
        ((chunks, size), make_result(speedup=float(chunks) + float(size), speedup_max=9.0))
        for chunks in ("4", "8")
        for size in ("1", "2")
    ]
    figure = sweep_figure(["chunks", "size"], rows, LIGHT)
    assert {line.name: (list(line.x), list(line.y)) for line in figure.data} == {
        "chunks 4": (["1", "2"], [5, 6]),
        "chunks 4: possible": (["1", "2"], [9, 9]),
        "chunks 8": (["1", "2"], [9, 10]),
        "chunks 8: possible": (["1", "2"], [9, 9]),
    }
    assert figure.data[0].line.color == figure.data[1].line.color != figure.data[2].line.color


def test_a_csv_line_has_every_key_of_all_runs() -> None:
    rows = [(("1",), make_result(a=1.0)), (("2",), make_result(b=None))]
    head, first, second = _series.to_csv(["kernel-ratio"], rows).splitlines()
    assert head == "kernel-ratio,valid,size_bytes,one_median_ns,one_p10_ns,one_p90_ns,a,b"
    assert first == "1,True,64,3000000,1,2,1.0,"
    assert second == "2,True,64,3000000,1,2,,"


def test_no_option_in_a_csv_is_a_formula() -> None:
    text = _series.to_csv(["kernel"], [(("=1+2",), make_result(a=-1.0))])
    assert text.splitlines()[1] == "'=1+2,True,2.0,64,3000000,1,2,-1.0"


def test_a_machine_without_a_gpu_has_no_driver_to_name() -> None:
    assert _many.machine_title({}) == "no GPU"
    assert _many.machine_title({"gpu": "a GPU", "driver": "1.2"}) == "a GPU, driver 1.2"
