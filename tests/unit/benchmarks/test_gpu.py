"""The measuring loop, on a CuPy that only writes down what it is told."""

import sys
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpuscope.benchmarks._harness import gpu
from gpuscope.benchmarks._harness.gpu import (
    Pass,
    Session,
    StartGate,
    Team,
    refuse_blocking_launches,
)
from gpuscope.benchmarks._harness.machine import Readings, Sample
from gpuscope.benchmarks._harness.result import Quantity
from gpuscope.errors import MissingError, ProgramError, UsageError


class FakeRange:
    """A range that writes down when it is pushed and popped."""

    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name

    def __enter__(self) -> None:
        self.log.append(f"push {self.name}")

    def __exit__(self, *error: object) -> None:
        self.log.append("pop")


@pytest.fixture
def session(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> Session:
    def annotate(message: str, domain: str, category: str, payload: int | None) -> FakeRange:
        assert (domain, category) == ("gpuscope", "streams")
        return FakeRange(cupy.log, message if payload is None else f"{message}={payload}")

    monkeypatch.setitem(sys.modules, "nvtx", SimpleNamespace(annotate=annotate))
    monkeypatch.setattr(gpu, "is_warm", lambda times, elapsed: len(times) == 5)
    made = Session("streams", cupy, 0, Team())
    cupy.log.clear()
    return made


def make_pass(cupy: Any, name: str) -> Pass:
    stream = cupy.cuda.Stream(non_blocking=True)
    return Pass(name, [stream], lambda: cupy.log.append(f"issue {name}"))


def test_only_the_measurement_is_recorded(cupy: Any, session: Session) -> None:
    passes = [make_pass(cupy, "a"), make_pass(cupy, "b")]
    found = session.measure(passes, 2, check=lambda: cupy.log.append("check"))
    begin, end = cupy.log.index("profilerStart"), cupy.log.index("profilerStop")
    assert cupy.log[begin + 1] == "push gs:measure=2"
    assert cupy.log[end - 2 : end] == ["deviceSynchronize", "pop"]
    assert cupy.log[:begin].count("issue a") == found.warmup == 5
    assert cupy.log[begin - 3 : begin] == ["push gs:validate", "check", "pop"]
    assert cupy.log[end + 1 :] == ["push gs:validate", "check", "pop"]
    steps = [line for line in cupy.log[begin:end] if line.startswith(("push", "issue"))]
    assert steps == [
        "push gs:measure=2",
        "push gs:iter=0", "push a", "issue a", "push b", "issue b",
        "push gs:iter=1", "push a", "issue a", "push b", "issue b",
    ]  # fmt: skip
    assert found.passes["a"].times_ns == (2_000_000, 2_000_000)


def test_the_gate_belongs_to_no_pass_and_holds_its_streams(cupy: Any, session: Session) -> None:
    item = make_pass(cupy, "a")
    session.measure([item], 1, check=lambda: None, warm=False)
    begin, push = cupy.log.index("push gs:iter=0"), cupy.log.index("push a")
    before = cupy.log[begin + 1 : push]
    assert before[0].startswith("gs_gate ")
    assert before[-1] == f"{item.streams[0].name} waits for {session.gate.started.name}"


def test_the_gate_opens_after_everything_was_issued(cupy: Any, session: Session) -> None:
    closed = []
    state = session.gate._state
    item = make_pass(cupy, "a")
    watched = Pass("a", item.streams, lambda: closed.append(state[0] != session.gate._ticket))
    session.measure([watched], 1, check=lambda: None, warm=False)
    assert closed == [True]


def test_the_gate_opens_first_where_issuing_waits(cupy: Any, session: Session) -> None:
    closed = []
    state = session.gate._state
    item = make_pass(cupy, "a")
    watched = Pass("a", item.streams, lambda: closed.append(state[0] != session.gate._ticket), True)
    session.measure([watched], 1, check=lambda: None, warm=False)
    assert closed == [False]


def test_the_end_is_recorded_before_the_gate_opens(cupy: Any) -> None:
    flag = np.zeros(1, np.uint32)
    gate, stream = StartGate(cupy, flag), cupy.cuda.Stream(non_blocking=True)
    gate.hold([stream])
    cupy.log.clear()
    gate.finish([stream], lambda: cupy.log.append(f"opened: {flag[0] == gate._ticket}"))
    assert cupy.log[0].endswith(f" in {stream.name}")
    assert cupy.log[-2:] == ["opened: False", f"host waits for {gate._ended.name}"]
    assert cupy.log[-3].startswith(f"{gate._ended.name} in ")
    assert flag[0] == gate._ticket


def test_what_leads_runs_behind_the_gate_before_the_time_begins(cupy: Any) -> None:
    gate, streams = StartGate(cupy), [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    opened, (a, b) = gate.started.name, (stream.name for stream in streams)
    cupy.log.clear()
    gate.hold(streams, lambda: cupy.log.append("lead"))
    own = gate._stream.name
    kernel, *rest = cupy.log
    assert kernel == f"gs_gate {own}"
    ends = [line.split()[0] for line in rest[4:8:2]]
    assert rest == [
        f"{opened} in {own}", f"{a} waits for {opened}", f"{b} waits for {opened}", "lead",
        f"{ends[0]} in {a}", f"{own} waits for {ends[0]}",
        f"{ends[1]} in {b}", f"{own} waits for {ends[1]}",
        f"{opened} in {own}", f"{a} waits for {opened}", f"{b} waits for {opened}",
    ]  # fmt: skip


def test_what_leads_a_pass_is_issued_before_it(cupy: Any, session: Session) -> None:
    order: list[str] = []
    item = make_pass(cupy, "a")
    led = Pass("a", item.streams, lambda: order.append("a"), lead=lambda: order.append("lead"))
    session.measure([led], 2, check=lambda: None, warm=False)
    assert order == ["lead", "a"] * 2


def test_a_gate_that_another_process_opens_is_left_to_it(cupy: Any) -> None:
    flag = np.zeros(1, np.uint32)
    watching, opening = StartGate(cupy, flag, opens=False), StartGate(cupy, flag)
    for gate in (watching, opening):
        gate.hold([])
    watching.open()
    assert flag[0] == 1  # the opening one's first, when it was made
    opening.open()
    assert flag[0] == 2


def test_a_gate_that_gave_up_gives_no_time(cupy: Any, session: Session) -> None:
    def give_up() -> None:
        session.gate._state[1] = session.gate._ticket

    item = Pass("a", make_pass(cupy, "a").streams, give_up)
    with pytest.raises(ProgramError, match="gave up after 10 s"):
        session.measure([item], 1, check=lambda: None, warm=False)


def test_the_gate_opens_and_the_recording_ends_when_a_pass_fails(
    cupy: Any, session: Session
) -> None:
    def fail() -> None:
        raise KeyboardInterrupt

    item = Pass("a", make_pass(cupy, "a").streams, fail)
    with pytest.raises(KeyboardInterrupt):
        session.measure([item], 1, check=lambda: None, warm=False)
    assert session.gate._state[0] == session.gate._ticket
    assert cupy.log[-1] == "profilerStop"
    assert sum(line.startswith("push") for line in cupy.log) == cupy.log.count("pop")


def test_what_a_pass_prepares_is_done_before_the_gate_and_the_range(
    cupy: Any, session: Session
) -> None:
    item = make_pass(cupy, "a")
    item = Pass("a", item.streams, item.issue, prepare=lambda: cupy.log.append("prepare"))
    session.measure([item], 1, check=lambda: None, warm=False)
    begin = cupy.log.index("push gs:iter=0")
    assert cupy.log[begin + 1] == "prepare"
    assert cupy.log[begin + 2].startswith("gs_gate ")


def test_one_element_is_changed_before_the_last_check(cupy: Any, session: Session) -> None:
    data, seen = np.zeros(3), []
    session.measure(
        [make_pass(cupy, "a")], 1, check=lambda: seen.append(data.tolist()), corrupt=data
    )
    assert seen == [[0, 0, 0], [0, 0, 1]]


def test_the_result_holds_what_was_measured_and_whether_it_is_void(
    cupy: Any, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "describe", lambda *arguments: {"gpu": "a GPU"})
    measured = session.measure([make_pass(cupy, "a")], 2, check=lambda: None)
    drifting = Readings((Sample(1980, 0, 1.0, 5, 16), Sample(1500, 0, 1.0, 5, 16)), 0)
    parts: Any = {
        "twin": "t",
        "options": {"n": 1},
        "stages": {},
        "figures": {},
        "quantities": [Quantity("copy", 1e9, "bytes/s", 2e9, "the link")],
        "expected": [],
        "title": "small",
        "notes": ["a note"],
    }
    found = session.conclude(replace(measured, readings=drifting), **parts)
    assert (found.benchmark, found.twin, found.repetitions) == ("streams", "t", 2)
    assert found.valid is False
    assert found.table.splitlines()[0] == "streams, twin t, on a GPU: small"
    assert "50.0 %" in found.table
    assert found.table.splitlines()[1].startswith("VOID, times not to be used: the SM clock drift")
    assert found.table.splitlines()[-1] == "note: a note"
    assert [note[:12] for note in found.notes] == ["the SM clock", "a note"]
    assert session.conclude(replace(measured, readings=drifting), **parts, cold=True).valid


def test_a_second_gpu_is_watched_and_its_faults_are_its_own(
    cupy: Any, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "describe", lambda *_: {"gpu": "a GPU"})
    monkeypatch.setattr(gpu, "describe_links", lambda ids: [f"link of {len(ids)}"])
    cupy.cuda.runtime.deviceGetPCIBusId = lambda device: f"0000:ff:0{device}.0"
    session.watch(1)
    measured = session.measure([make_pass(cupy, "a")], 1, check=lambda: None)
    assert len(measured.beside) == 1
    steady = Readings((Sample(1980, 0, 1.0, 5, 16),), 0)
    drifting = Readings((Sample(1980, 0, 1.0, 5, 16), Sample(1500, 0, 1.0, 5, 16)), 0)
    parts: Any = {"stages": {}, "figures": {}, "quantities": [], "expected": [], "title": "x"}
    found = session.conclude(
        replace(measured, readings=steady, beside=[drifting]), twin=None, options={}, **parts
    )
    assert found.valid is False
    assert found.notes[0].startswith("GPU 0000:ff:01.0: the SM clock drifted")
    assert found.machine["gpus"][1] == "0000:ff:01.0"
    assert found.machine["links"] == ["link of 2"]
    assert found.table.splitlines()[0] == "streams, on 2 × a GPU: x"


def test_gpus_that_ranks_share_count_once() -> None:
    assert gpu.count_gpus({}) == 1
    assert gpu.count_gpus({"gpus": ["1", "2"]}) == 2
    assert gpu.count_gpus({"hosts": ["a", "a", "b"], "gpus": ["1", "1", "1"]}) == 2


def test_an_event_is_made_on_the_gpu_of_its_stream(cupy: Any) -> None:
    current: list[int | None] = []

    def device(number: int | None) -> Any:
        current.append(number)
        return nullcontext()

    cupy.cuda.Device = device
    stream = cupy.cuda.Stream(non_blocking=True)
    stream.device_id = 3
    gpu.event_for(cupy, stream)
    stream.device_id = -1  # the null stream, of whichever is current
    gpu.event_for(cupy, stream)
    assert current == [3, None]


def test_wrong_data_ends_the_measurement_before_it_is_recorded(cupy: Any, session: Session) -> None:
    def check() -> None:
        raise ProgramError("wrong data")

    with pytest.raises(ProgramError):
        session.measure([make_pass(cupy, "a")], 1, check=check)
    assert "profilerStart" not in cupy.log


def test_a_batch_is_timed_from_the_gate_to_its_end(cupy: Any, session: Session) -> None:
    stream = cupy.cuda.Stream(non_blocking=True)
    closed: list[bool] = []
    state, gate = session.gate._state, session.gate

    def issue() -> None:
        closed.append(state[0] != gate._ticket)

    assert session.time_batch([stream], issue) == 2_000_000
    assert session.time_batch([stream], issue, waits=True) == 2_000_000
    assert closed == [True, False]


def test_operations_are_timed_one_by_one(cupy: Any, session: Session) -> None:
    times = iter([1.0, 3.0, 4.0])
    session.gate.finish = lambda streams, before_opening=None: 0  # type: ignore[method-assign]
    cupy.cuda.get_elapsed_time = lambda start, end: next(times)
    (spans,) = session.time_operations([(cupy.cuda.Stream(non_blocking=True), [lambda: None] * 2)])
    assert spans == [(1_000_000, 3_000_000), (3_000_000, 4_000_000)]


@pytest.mark.parametrize("value", ["1", "yes"])
def test_blocking_launches_are_refused(value: str) -> None:
    with pytest.raises(UsageError, match="CUDA_LAUNCH_BLOCKING"):
        refuse_blocking_launches({"CUDA_LAUNCH_BLOCKING": value})


@pytest.mark.parametrize("environment", [{}, {"CUDA_LAUNCH_BLOCKING": "0"}])
def test_other_environments_are_not(environment: dict[str, str]) -> None:
    refuse_blocking_launches(environment)


def test_a_missing_cupy_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(MissingError, match=r"gpuscope\[cuda13\]"):
        gpu.import_cupy()


def test_a_missing_driver_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    class CUDARuntimeError(RuntimeError):
        pass

    def count() -> int:
        raise CUDARuntimeError("cudaErrorNoDevice")

    runtime = SimpleNamespace(CUDARuntimeError=CUDARuntimeError, getDeviceCount=count)
    fake = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    monkeypatch.setitem(sys.modules, "cupy", fake)
    with pytest.raises(MissingError, match="no CUDA driver or GPU found"):
        gpu.import_cupy()
