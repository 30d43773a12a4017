"""Programs of all kinds under the launcher, with a stand-in for libcupti, from outside."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuscope.errors import CannotJudgeError, MissingError, ProgramError, UsageError
from gpuscope.model.trace import Trace
from gpuscope.readers import open_trace
from gpuscope.recording.cupti import program
from gpuscope.recording.cupti.library import VARIABLE
from gpuscope.recording.cupti.spool import Spool
from gpuscope.recording.display import Display
from gpuscope.recording.nsys import Recording, parse_capture
from tests.unit.recording import fake_cupti

WORK = "import fake_gpu\nfake_gpu.copy(64)\nfake_gpu.launch('_Z4axpyIfEvPT_')\n"


@pytest.fixture(autouse=True)
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = fake_cupti.install(tmp_path / "fake")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv(VARIABLE, fake_cupti.LIBRARY)
    return folder


def record(
    tmp_path: Path, command: Sequence[str], capture: str | None = None, timeout_s: float = 60
) -> Recording:
    return program.record(
        command,
        Spool(tmp_path / "spool"),
        display=Display(),
        capture=parse_capture(capture) if capture else None,
        timeout_s=timeout_s,
    )


def trace_of(tmp_path: Path, capture: str | None = None) -> Trace:
    program.write(
        Spool(tmp_path / "spool"),
        tmp_path / "trace.sqlite",
        display=Display(),
        capture=parse_capture(capture) if capture else None,
    )
    return open_trace(tmp_path / "trace.sqlite")


def script(tmp_path: Path, text: str, name: str = "train.py") -> str:
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def names_of(trace: Trace) -> list[str]:
    assert trace.operations is not None
    return [trace.strings[name] for name in trace.operations.name]


# ── what is recorded ─────────────────────────────────────────────────────────────────────────────


def test_a_script_is_recorded(tmp_path: Path) -> None:
    done = record(tmp_path, [sys.executable, script(tmp_path, WORK)])
    trace = trace_of(tmp_path)

    assert done.program_code == 0
    assert names_of(trace) == ["H2D copy", "axpy"]
    assert trace.operations is not None
    assert trace.operations.launch.tolist() == [0, 1]
    assert trace.processes[0].name == "train.py"
    assert not (tmp_path / "spool").exists()


@pytest.mark.parametrize("how", ["-c", "-m", "options", "shebang", "folder"])
def test_every_way_to_start_python(tmp_path: Path, how: str, gpu: Path) -> None:
    program_text = f"import sys\n{WORK}fake_gpu.launch('+'.join(sys.argv[1:]))\n"
    if how == "-c":
        command = [sys.executable, "-c", program_text, "a", "-b"]
    elif how == "-m":
        (gpu / "package").mkdir()
        (gpu / "package" / "__main__.py").write_text(program_text)
        command = [sys.executable, "-um", "package", "a", "-b"]
    elif how == "options":
        path = script(tmp_path, program_text)
        command = [sys.executable, "-W", "error", "-X", "dev", "-u", path, "a", "-b"]
    elif how == "shebang":
        path = script(tmp_path, f"#!{sys.executable}\n{program_text}", "tool")
        command = [path, "a", "-b"]
    else:
        (tmp_path / "app").mkdir()
        command = [sys.executable, script(tmp_path / "app", program_text, "__main__.py"), "a", "-b"]
        command[1] = str(tmp_path / "app")
    done = record(tmp_path, command)

    assert done.program_code == 0
    assert names_of(trace_of(tmp_path)) == ["H2D copy", "axpy", "a+-b"]


def test_the_program_sees_what_it_would_see_by_itself(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "beside.py").write_text("VALUE = 5\n")
    path = script(
        tmp_path,
        "import sys, os, pickle, beside\n"
        "class Local: pass\n"
        "print(__name__, os.path.basename(__file__), sys.argv[1:], beside.VALUE)\n"
        "print(pickle.loads(pickle.dumps(Local())).__class__.__module__)\n"
        "print(sys.path[0] == os.path.dirname(os.path.abspath(__file__)))\n"
        "def f(x: 'int'): pass\n"
        "def g(x: int): pass\n"
        "print(g.__annotations__['x'])\n",
    )
    record(tmp_path, [sys.executable, path, "--epochs", "2"])

    said = capfd.readouterr().err.splitlines()
    assert said[-4:] == [
        "__main__ train.py ['--epochs', '2'] 5",
        "__main__",
        "True",
        "<class 'int'>",
    ]


def test_ranges_and_one_range_alone(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        "import fake_gpu as gpu\ngpu.launch('before')\n"
        "gpu.push('step', 'train')\ngpu.launch('inside')\ngpu.pop()\ngpu.launch('after')\n",
    )
    record(tmp_path, [sys.executable, path], capture="nvtx:step@train")
    trace = trace_of(tmp_path, capture="nvtx:step@train")

    assert names_of(trace) == ["inside"]
    assert trace.ranges is not None
    assert [trace.strings[name] for name in trace.ranges.name] == ["step"]


def test_ranges_of_the_default_domain_of_the_package_nvtx(tmp_path: Path, gpu: Path) -> None:
    fake_cupti.install_nvtx(gpu)
    path = script(
        tmp_path,
        "import nvtx, fake_gpu\nnvtx.push_range('plain')\nnvtx.push_range('named', 'train')\n"
        "fake_gpu.launch('inside')\nnvtx.pop_range()\nnvtx.pop_range()\n",
    )
    record(tmp_path, [sys.executable, path])
    trace = trace_of(tmp_path)

    assert trace.ranges is not None
    assert [
        (trace.strings[name], trace.strings[domain] if domain >= 0 else None)
        for name, domain in zip(trace.ranges.name, trace.ranges.domain, strict=True)
    ] == [("plain", None), ("named", "train")]


def test_only_between_the_profiler_calls(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        "import fake_gpu as gpu\ngpu.launch('before')\ngpu.profiler(True)\ngpu.launch('inside')\n"
        "gpu.profiler(False)\ngpu.launch('after')\ngpu.profiler(True)\ngpu.launch('again')\n",
    )
    record(tmp_path, [sys.executable, path], capture="cuda")

    assert names_of(trace_of(tmp_path, capture="cuda")) == ["inside"]


def test_many_buffers(tmp_path: Path) -> None:
    path = script(
        tmp_path, "import fake_gpu\nfor i in range(60_000):\n    fake_gpu.launch(f'k{i % 7}')\n"
    )
    record(tmp_path, [sys.executable, path])
    spool = Spool(tmp_path / "spool")
    end = spool.read_end()
    trace = trace_of(tmp_path)

    assert end is not None
    assert end.callbacks == 15  # 8 handed out, and all but the last taken back meanwhile
    assert len(names_of(trace)) == 60_000
    assert trace.lost_records == 0


# ── how programs end ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("end", "code"),
    [("raise SystemExit(3)", 3), ("raise RuntimeError('no')", 1), ("import os; os._exit(7)", 7)],
)
def test_a_program_that_fails_keeps_its_records(tmp_path: Path, end: str, code: int) -> None:
    done = record(tmp_path, [sys.executable, script(tmp_path, f"{WORK}{end}\n")])

    assert done.program_code == code
    assert len(names_of(trace_of(tmp_path))) == 2


def test_a_killed_program_keeps_its_records(tmp_path: Path) -> None:
    end = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n"
    done = record(tmp_path, [sys.executable, script(tmp_path, WORK + end)])
    written = program.write(Spool(tmp_path / "spool"), tmp_path / "trace.sqlite", display=Display())

    assert done.program_code == 128 + signal.SIGKILL
    assert written.was_killed
    assert "was killed" in program.sentences(written)[-1]
    assert names_of(open_trace(tmp_path / "trace.sqlite")) == ["H2D copy", "(name lost)"]


def test_ctrl_c_keeps_what_was_recorded(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    path = script(
        tmp_path,
        f"{WORK}import pathlib, time\npathlib.Path({str(ready)!r}).touch()\ntime.sleep(60)\n",
    )

    def interrupt() -> None:
        while not ready.exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    done = record(tmp_path, [sys.executable, path])
    thread.join()

    assert done.interrupted
    assert names_of(trace_of(tmp_path)) == ["H2D copy", "axpy"]


def test_a_program_that_is_stopped_in_time_keeps_its_records(tmp_path: Path) -> None:
    path = script(tmp_path, f"{WORK}import time\ntime.sleep(60)\n")
    done = record(tmp_path, [sys.executable, path], timeout_s=2)

    assert done.timed_out
    assert len(names_of(trace_of(tmp_path))) == 2


def test_forks_of_the_program_leave_the_recording_alone(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        f"{WORK}import os, sys\nif os.fork() == 0:\n    fake_gpu.launch('in the fork')\n"
        f"    sys.exit(0)\nos.wait()\n",
    )
    record(tmp_path, [sys.executable, path])

    assert names_of(trace_of(tmp_path)) == ["H2D copy", "axpy"]


def test_a_fork_that_ends_does_not_end_the_recording(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        f"{WORK}import os, signal, sys\nif os.fork() == 0:\n    sys.exit(0)\n"
        "os.wait()\nos.kill(os.getpid(), signal.SIGKILL)\n",
    )
    record(tmp_path, [sys.executable, path])

    assert Spool(tmp_path / "spool").read_end() is None


def test_a_program_under_the_recorder_cannot_record_itself(tmp_path: Path) -> None:
    text = f"{WORK}import gpuscope\nwith gpuscope.record('mine.sqlite'): pass\n"
    done = record(tmp_path, [sys.executable, script(tmp_path, text)])

    assert done.program_code == 1
    assert len(names_of(trace_of(tmp_path))) == 2


# ── what is refused ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("command", [["/bin/ls", "-l"], ["/bin/true"]])
def test_other_programs_are_refused_and_nsys_is_named(tmp_path: Path, command: list[str]) -> None:
    with pytest.raises(UsageError, match=r"is no Python program.*gpuscope run --nsys -- "):
        record(tmp_path, command)


def test_a_binary_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.out").write_bytes(b"\x7fELF\x02")
    with pytest.raises(UsageError, match=r"a\.out is no Python program"):
        record(tmp_path, [str(tmp_path / "a.out")])


@pytest.mark.parametrize("words", [[], ["-u"], ["-"]])
def test_python_without_a_program_is_refused(tmp_path: Path, words: list[str]) -> None:
    with pytest.raises(UsageError, match="no program to run"):
        record(tmp_path, [sys.executable, *words])


def test_a_capture_of_nsys_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is for nsys"):
        record(tmp_path, [sys.executable, "-c", ""], capture="delay:1")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"driver": None}, "no NVIDIA driver here"),
        ({"fault": "busy"}, "another profiler is attached to this program already"),
        ({"fault": "refuses"}, r"cuptiActivityEnable.* failed: CUPTI_ERROR_FAKE \(999\)"),
    ],
)
def test_what_is_missing_is_said_and_the_program_is_not_run(
    tmp_path: Path, options: dict[str, object], sentence: str, gpu: Path
) -> None:
    fake_cupti.install(gpu, **options)  # type: ignore[arg-type]
    ran = tmp_path / "ran"
    path = script(tmp_path, f"import pathlib\npathlib.Path({str(ran)!r}).touch()\n")
    with pytest.raises(MissingError, match=sentence):
        record(tmp_path, [sys.executable, path])
    assert not ran.exists()
    assert not (tmp_path / "spool").exists()


def test_a_capture_that_never_came(tmp_path: Path) -> None:
    with pytest.raises(CannotJudgeError, match="never called cudaProfilerStart"):
        record(tmp_path, [sys.executable, script(tmp_path, WORK)], capture="cuda")


def test_a_program_that_python_cannot_read(tmp_path: Path) -> None:
    done = record(tmp_path, [sys.executable, str(tmp_path / "absent.py")])

    assert done.program_code == 1


def test_an_interpreter_that_does_not_start(tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\nexit 9\n")
    python.chmod(0o755)
    with pytest.raises(ProgramError, match="exit code 9 before anything could be recorded"):
        record(tmp_path, [str(python), "train.py"])
