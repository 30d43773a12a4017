"""``python -m gpuscope.benchmarks``: the table, the options, the exit codes."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpuscope import benchmarks
from gpuscope.benchmarks import __main__ as command
from gpuscope.benchmarks import streams
from gpuscope.errors import OutputError, ProgramError, UsageError


def test_the_table_loads_no_gpu_library_and_no_numpy() -> None:
    program = (
        "import sys; from gpuscope.benchmarks import BENCHMARKS;"
        "print([name for name in ('cupy', 'nvtx', 'numpy', 'pandas') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.stdout == "[]\n", found.stderr


def test_names_are_unique_and_find_their_entry() -> None:
    names = [benchmark.name for benchmark in benchmarks.BENCHMARKS]
    assert len(set(names)) == len(names)
    for benchmark in benchmarks.BENCHMARKS:
        assert benchmarks.find_benchmark(benchmark.name) is benchmark
        twins = [twin.name for twin in benchmark.twins]
        assert len(set(twins)) == len(twins)


TWINS_OF_OTHERS = {"jacobi-mpi", "jacobi-nccl"}
"""What they show is serialized already: each is what another benchmark improves on."""


def test_every_benchmark_has_a_twin_that_spoils_the_data_and_one_that_does_not() -> None:
    for benchmark in benchmarks.BENCHMARKS:
        spoiling = [twin.name for twin in benchmark.twins if twin.wrong_data]
        assert "corrupt-element" in spoiling
        assert len(spoiling) < len(benchmark.twins) or benchmark.name in TWINS_OF_OTHERS
    twins = streams.BENCHMARK.twins
    assert {twin.name for twin in twins if twin.wrong_data} == {"shared-buffer", "corrupt-element"}


def test_without_a_name_the_benchmarks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == 0
    assert "  streams " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stream"], "there is no benchmark 'stream': did you mean 'streams'?"),
        (["qq"], "there is no benchmark 'qq': there are: streams"),
        (["streams", "--twin", "none"], "streams has no twin 'none': there are default-stream,"),
        (["streams", "--plan", "nowhere.json"], "cannot read the plan nowhere.json"),
        (["streams", "--streams", "1"], "one chunk or one stream cannot overlap"),
    ],
)
def test_usage_errors_are_one_sentence(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(arguments) == UsageError.exit_code
    found = capsys.readouterr()
    assert message in found.err
    assert found.err.count("\n") == 1
    assert found.out == ""


@pytest.mark.parametrize("option", [["--reps", "0"], ["--size", "x"], ["--preset", "none"]])
def test_options_that_cannot_be_read(option: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["streams", *option])
    assert ended.value.code == UsageError.exit_code


@pytest.fixture
def outcome(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What running the benchmark comes to: a result, or an exception, as the last element."""
    outcomes: list[object] = []

    def run(arguments: object) -> object:
        if isinstance(outcomes[-1], BaseException):
            raise outcomes[-1]
        return outcomes[-1]

    fake = SimpleNamespace(
        name="fake",
        summary="for a test",
        add_arguments=lambda parser: None,
        run=run,
        ranks=False,
        own_gpus=False,
        default_reps=20,
    )
    monkeypatch.setattr(command, "find_benchmark", lambda name: fake)
    return outcomes


def test_wrong_data_writes_no_result(
    outcome: list[object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome.append(ProgramError(f"{benchmarks.WRONG_DATA}: 3 of 8 elements differ"))
    file = tmp_path / "result.json"
    assert command.main(["fake", "--result", str(file)]) == 1
    assert not file.exists()
    assert capsys.readouterr().err == "gpuscope: wrong data: 3 of 8 elements differ\n"


def test_ctrl_c_ends_with_130(outcome: list[object], capsys: pytest.CaptureFixture[str]) -> None:
    outcome.append(KeyboardInterrupt())
    assert command.main(["fake"]) == 130
    assert capsys.readouterr().err == "gpuscope: interrupted\n"


def test_the_table_is_stdout_and_comes_after_the_file(
    outcome: list[object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class FakeResult:
        table = "the table"

        def to_json(self) -> str:
            return "{}\n"

    outcome.append(FakeResult())
    assert command.main(["fake", "--result", str(tmp_path / "result.json")]) == 0
    assert (tmp_path / "result.json").read_text() == "{}\n"
    assert capsys.readouterr().out == "the table\n"
    assert command.main(["fake", "--result", str(tmp_path / "no" / "x")]) == OutputError.exit_code
    assert capsys.readouterr().out == ""
