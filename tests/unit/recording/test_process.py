"""Programs are run, stopped and cleaned up after, whatever they do to get away."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from gpuscope.errors import ProgramError
from gpuscope.recording import process
from gpuscope.recording.process import Line

PYTHON = sys.executable


def run(code: str, **options: object) -> tuple[process.Ended, list[Line]]:
    lines: list[Line] = []
    ended = process.run([PYTHON, "-c", code], on_line=lines.append, **options)  # type: ignore[arg-type]
    return ended, lines


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def interrupt_soon(delay_s: float = 0.5) -> None:
    threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGINT)).start()


def test_a_program_is_shown_with_what_it_was_given() -> None:
    assert process.shown(["/usr/bin/python", "prog.py", "a b"]) == "python prog.py 'a b'"
    assert process.shown(["python", "-c", "print(1)\nprint(2)"]) == "python -c 'print(1) print(2)'"
    assert len(process.shown(["python", *["x"] * 100])) == process.SHOWN_LENGTH


def test_output_comes_line_by_line_and_the_code_is_the_programs() -> None:
    ended, lines = run("import sys; print('one'); print('två', file=sys.stderr); sys.exit(3)")

    assert ended == process.Ended(3, interrupted=False, timed_out=False, outlived=())
    assert sorted(line.text for line in lines) == ["one", "två"]


def test_a_signal_is_shown_as_a_shell_shows_it() -> None:
    ended, _ = run("import os; os.kill(os.getpid(), 11)")

    assert ended.code == 128 + 11


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (r"a\nb\n", [("a", False), ("b", False)]),
        (r"a\r\nb", [("a", False), ("b", False)]),
        (r"1%\r2%\rdone\n", [("1%", True), ("2%", True), ("done", False)]),
        (r"\n\n", [("", False), ("", False)]),
        (r"end\r", [("end", False)]),
        ("", []),
    ],
)
def test_lines_and_progress_displays_are_told_apart(
    written: str, expected: list[tuple[str, bool]]
) -> None:
    _, lines = run(f"import sys; sys.stdout.buffer.write(b'{written}')")

    assert [(line.text, line.replaced) for line in lines] == expected


def test_a_line_end_torn_in_two_is_one() -> None:
    _, lines = run(
        "import os, time; os.write(1, b'a\\r'); time.sleep(0.2); os.write(1, b'\\nb\\n')"
    )

    assert [(line.text, line.replaced) for line in lines] == [("a", False), ("b", False)]


def test_standard_output_can_be_told_apart() -> None:
    _, lines = run("import sys; print('table'); print('talk', file=sys.stderr)", apart=True)

    assert {(line.text, line.is_product) for line in lines} == {("table", True), ("talk", False)}


def test_a_program_that_is_not_there() -> None:
    with pytest.raises(ProgramError, match=r"/nowhere/x cannot be started: No such file"):
        process.run(["/nowhere/x"], on_line=lambda line: None)


def test_ctrl_c_reaches_the_program_and_is_reported() -> None:
    before = signal.getsignal(signal.SIGINT)
    interrupt_soon()
    ended, lines = run(
        "import time\ntry:\n time.sleep(60)\nexcept KeyboardInterrupt:\n print('tidied')"
    )

    assert ended.interrupted
    assert ended.code == 0
    assert [line.text for line in lines] == ["tidied"]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_program_that_ignores_everything_is_killed() -> None:
    stages: list[int] = []
    interrupt_soon(0.3)
    interrupt_soon(0.6)  # a second Ctrl-C does not wait for the grace
    interrupt_soon(0.9)
    ended, _ = run(
        "import signal, time\n"
        "for number in (2, 15): signal.signal(number, signal.SIG_IGN)\n"
        "time.sleep(60)",
        on_stop=stages.append,
    )

    assert stages == [0, 1, 2]
    assert ended.code == 128 + signal.SIGKILL


def test_the_grace_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "TERMINATE_S", 0.2)
    interrupt_soon(0.3)
    started = time.monotonic()
    ended, _ = run(
        "import signal, time\n"
        "for number in (2, 15): signal.signal(number, signal.SIG_IGN)\n"
        "time.sleep(60)",
        grace_s=0.2,
    )

    assert ended.code == 128 + signal.SIGKILL
    assert time.monotonic() - started < 10


def test_the_time_limit_stops_it() -> None:
    ended, _ = run("import time; time.sleep(60)", timeout_s=0.5)

    assert ended.timed_out
    assert not ended.interrupted
    assert ended.code in {1, 128 + signal.SIGINT}


def test_a_program_that_lingers_when_all_is_done_is_ended_at_once() -> None:
    """As an mpirun that waits for ranks that are gone; nobody has interrupted anything."""
    stages: list[int] = []
    began = time.monotonic()
    ended, _ = run(
        "import signal, time\nsignal.signal(2, signal.SIG_IGN)\ntime.sleep(60)",
        over_when=lambda: time.monotonic() - began > 0.3,
        on_stop=stages.append,
        grace_s=60,
        stop_argv=[PYTHON, "-c", "import time; time.sleep(60)"],
    )

    assert time.monotonic() - began < 10
    assert not ended.interrupted
    assert not ended.timed_out
    assert ended.code == 128 + signal.SIGTERM
    assert stages == []


def test_a_rank_keeps_the_file_that_it_talks_to_its_launcher_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """mpiexec of MPICH leaves a socket open, and its number in PMI_FD."""
    reading, writing = os.pipe()
    ask = "import os\nos.write(int(os.environ['PMI_FD']), b'cmd=init')"
    for env in (None, {**os.environ, "PMI_FD": str(writing)}):
        monkeypatch.setenv("PMI_FD", str(writing))
        ended, lines = run(ask, env=env)
        assert ended.code == 0, lines
        assert os.read(reading, 100) == b"cmd=init"
    os.close(reading)
    os.close(writing)
    ended, _ = run("pass")  # it is long closed: no reason not to start
    assert ended.code == 0


def test_the_stop_command_comes_before_the_signal(tmp_path: Path) -> None:
    note = tmp_path / "asked"
    command = f"import pathlib, time; time.sleep(0.3); pathlib.Path({str(note)!r}).touch()"
    interrupt_soon()
    ended, lines = run(
        "import os, time\ntry:\n time.sleep(60)\n"
        f"except KeyboardInterrupt:\n print(os.path.exists({str(note)!r}))",
        stop_argv=[PYTHON, "-c", command],
    )

    assert ended.interrupted
    assert [line.text for line in lines] == ["True"]


def test_a_stop_command_that_is_not_there_or_hangs_is_passed_over() -> None:
    code = "import time\ntry:\n time.sleep(60)\nexcept KeyboardInterrupt:\n print('stopped')"
    interrupt_soon()
    _, lines = run(code, stop_argv=["/nowhere/x"])
    assert [line.text for line in lines] == ["stopped"]

    interrupt_soon(0.3)
    interrupt_soon(0.8)
    ended, _ = run(code, stop_argv=["sleep", "600"])
    assert ended.code == 128 + signal.SIGTERM


def test_what_detached_itself_is_ended_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "SETTLE_S", 0.2)
    monkeypatch.setattr(process, "TERMINATE_S", 0.3)
    note = tmp_path / "pid"
    ended, _ = run(
        "import os, signal, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"        open({str(note)!r}, 'w').write(str(os.getpid()))\n"
        "        time.sleep(600)\n"
        "    os._exit(0)\n"
        f"while not os.path.exists({str(note)!r}): time.sleep(0.01)\n"
        "time.sleep(0.1)"
    )

    assert ended.code == 0
    assert ended.outlived == (Path(PYTHON).name,)
    assert not is_running(int(note.read_text()))


def test_processes_of_before_are_left_alone() -> None:
    mine = os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "60")
    try:
        ended, _ = run("pass")

        assert ended.outlived == ()
        assert is_running(mine)
    finally:
        os.kill(mine, signal.SIGKILL)
        os.waitpid(mine, 0)


def test_an_error_of_the_listener_leaves_nothing_running() -> None:
    pids: list[int] = []

    def fail(line: Line) -> None:
        pids.append(int(line.text))
        raise RuntimeError(line.text)

    with pytest.raises(RuntimeError):
        process.run(
            [PYTHON, "-uc", "import os, time; print(os.getpid()); time.sleep(60)"], on_line=fail
        )
    assert not is_running(pids[0])


def test_it_works_off_the_main_thread() -> None:
    done: list[process.Ended] = []
    thread = threading.Thread(target=lambda: done.append(run("print(1)")[0]))
    thread.start()
    thread.join(20)

    assert done[0].code == 0


def test_helpers_answer_in_time_or_not_at_all() -> None:
    assert process.output([PYTHON, "-c", "print('x')"]) == (0, "x\n")
    assert process.output(["/nowhere/x"])[0] == 127
    assert process.output([PYTHON, "-c", "import time; time.sleep(9)"], timeout_s=0.2)[0] == 124
