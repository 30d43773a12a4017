"""What is on the page, what its script is answered, and who is answered at all."""

from __future__ import annotations

import dataclasses
import json
import logging
import socket
import webbrowser
from dataclasses import replace
from typing import Any

import pytest

from gpuscope import api, samples
from gpuscope.analysis import Options
from gpuscope.app import callbacks, layout, server
from gpuscope.app.data import describe
from gpuscope.app.state import Session, View
from gpuscope.errors import UsageError
from gpuscope.model.result import Scope
from gpuscope.model.trace import Process, Trace
from gpuscope.progress import Progress
from tests.make_trace import make_trace, of_rank

MS = 1_000_000
STREAMED = 1
"""Number of the range in the trace `streams`."""
HERE = {"Host": "localhost"}


@pytest.fixture(scope="module")
def session() -> Session:
    return Session([api.open_trace(samples.path("streams"))])


@pytest.fixture(scope="module")
def client(session: Session) -> Any:
    return server.make_app(session).server.test_client()


def made(trace: Trace, **limits: Any) -> Session:
    return Session([trace], [Options(ratio_limits=limits.get("limits", {}))])


def card_names(session: Session) -> list[str]:
    return [entry.name for entry in session.carded[0]]


def test_cards_are_the_outermost_ranges_with_pairs(session: Session) -> None:
    assert card_names(session) == ["sequential", "streamed"]
    assert [each.name for each in session.ranges_shown[:2]] == ["sequential", "streamed"]


def test_ranges_that_a_benchmark_judges_come_first() -> None:
    trace = make_trace(
        kernels=[(10, 50, "s7", {"launch": 3})],
        h2d=[(20, 40, "s8", {"launch": 4})],
        ranges=[("gs:measure", 0, 9), ("streamed", 1, 8), ("outer", 0, 9)],
    )
    limits = {("streamed", "h2d", "kernel"): 1.0}
    assert card_names(made(trace, limits=limits)) == ["streamed"]
    assert card_names(made(trace))[0] == "outer"


def test_a_single_outer_range_is_joined_by_the_few_in_it() -> None:
    assert set(card_names(made(api.open_trace(samples.path("p2p"))))) == {
        "p2p",
        "bidir",
        "p2p_compute",
    }
    assert set(card_names(made(api.open_trace(samples.path("pageable"))))) == {"pageable"}


def test_a_range_that_is_shown_whole_gives_its_figures(session: Session) -> None:
    shown = session.ranges_shown[STREAMED]
    title, scope = session.scope_of(View(shown.low_ns, shown.high_ns, STREAMED))
    assert title == "Range streamed, 3 instances"
    assert isinstance(scope, Scope)
    assert scope.span_ns == 21522953


def test_all_of_it_gives_the_whole_trace_and_any_other_view_its_window(session: Session) -> None:
    title, scope = session.scope_of(session.fit())
    assert scope is not None
    assert (title, scope.span_ns) == ("Whole trace", 84099822)
    title, scope = session.scope_of(View(0, 20 * MS))
    assert scope is not None
    assert title == "Visible window"
    assert 0 < scope.span_ns <= 20 * MS
    assert session.scope_of(View(0, 20 * MS, brushed=True))[0] == "Selection"


def test_a_view_is_read_from_what_the_script_keeps() -> None:
    data = {"low": 5, "high": 9, "range": 2, "device": 1, "brush": None}
    assert View.from_json(data) == View(5, 9, 2, 1)
    assert View.from_json({**data, "brush": [6, 7]}) == View(6, 7, -1, 1, brushed=True)
    wrong: Any
    for wrong in ({}, {**data, "low": "x"}, {**data, "brush": [1]}, {**data, "high": None}, []):
        with pytest.raises(ValueError, match="no view"):
            View.from_json(wrong)


def test_a_finding_leads_to_its_evidence() -> None:
    session = made(api.open_trace(samples.path("pageable")))
    number, finding = next(each for each in session.findings if each[1].evidence.get("window_ns"))
    window = session.finding_window(number, finding)
    assert window is not None
    shift = session.timeline.placed[0].shift_ns
    low, high = finding.evidence["window_ns"]
    assert window[0] <= low + shift < high + shift <= window[1]


def test_a_finding_says_what_limits_its_saving() -> None:
    def texts(name: str) -> str:
        return str(layout.findings_panel(Session([api.open_trace(samples.path(name))])))

    limited = texts("synchronous_copy")
    assert "Span(children='up to 8.94 ms', className='saving')" in limited
    assert "chunk's own (saves up to 8.94 ms, all that can be saved here)" in limited
    assert "all that can be saved here" not in texts("host_read")
    shared = texts("connections_limit")
    assert "(saves up to 9.01 ms, together with connections-limit at most 9.14 ms)" in shared
    session = Session([api.open_trace(samples.path("connections_limit"))])
    rows = describe(session)["tables"]["findings"]["rows"]
    assert [row["cells"][4].partition(" (")[2] for row in rows] == [
        "saves all that can be saved here)",
        "saves together with connections-limit at most 9.14 ms)",
    ]


def test_several_traces_have_cards_rows_and_devices_of_their_own() -> None:
    session = Session([api.open_trace(samples.path(f"jacobi_nccl_r{rank}")) for rank in (0, 1)])
    assert [number for number, _, _ in session.devices] == [0, 1]
    text = str(layout.page(session))
    for name in ("jacobi_nccl_r0.sqlite + jacobi_nccl_r1.sqlite", " · rank 1"):
        assert name in text
    assert " in mpi_staged · rank 0" in text
    assert {row["cells"][2] for row in describe(session)["tables"]["findings"]["rows"]} >= {
        "mpi_staged · rank 0",
        "mpi_staged · rank 1",
    }
    for at in (0, 1):
        _, scope = session.scope_of(View(0, session.timeline.end_ns // 2, device_number=at))
        assert scope is not None


def test_processes_on_one_device_number_keep_their_own_figures() -> None:
    rows = [(10, 50, "s7", {"launch": 1}), (10, 90, "s7", {"launch": 2, "device": 1})]
    trace = make_trace(devices=2, kernels=rows, ranges=[("step", 0, 9)], h2d=[(10, 20, "s8")])
    first, second = trace.devices
    session = made(
        replace(
            trace,
            processes=(Process(100, "made", None), Process(101, "made", None)),
            devices=(first, replace(second, process=1, number=0)),
        )
    )
    spans = []
    for at in range(2):
        scope = session.scope_of(replace(session.fit(), device_number=at))[1]
        assert scope is not None
        spans.append(scope.span_ns)
    assert spans == [40, 80]
    options = str(layout.page(session))
    assert "GPU 0 · pid 100" in options
    assert "GPU 0 · pid 101" in options


@pytest.mark.parametrize(
    "trace", [make_trace(), make_trace(gate=[(0, MS, "s7")])], ids=["empty", "gates"]
)
def test_a_trace_without_gpu_work_says_so(trace: Trace) -> None:
    session = made(trace)
    text = str(layout.page(session))
    assert "Nothing ran on a GPU" in text
    assert "GPU of unknown name" not in text
    assert " ns" not in text
    client = server.make_app(session).server.test_client()
    assert client.get("/", headers=HERE).status_code == 200


def test_a_lone_class_says_why_nothing_is_judged() -> None:
    session = made(make_trace(kernels=[(0, MS, "s7"), (0, MS, "s8")]))
    text = "only kernel ran, up to 2 at once, 2.0 in the mean: there is no pair to overlap"
    assert text in str(layout.page(session))


def test_the_legend_of_the_partition_says_each_part(session: Session) -> None:
    drawn = callbacks.draw_scope(session, session.fit())
    listed = str(drawn[3])
    for part in ("idle", "d2h + h2d + kernel", "27.0 % · 22.7 ms", "repeating-linear-gradient"):
        assert part in listed
    widths = [float(piece.style["width"].rstrip("%")) for piece in drawn[2]]
    assert sum(widths) == pytest.approx(100, abs=0.01)


def test_a_window_in_which_nothing_ran(session: Session) -> None:
    _, sums, partition, parts, matrix = callbacks.draw_scope(session, View(10 * MS, 11 * MS))
    assert sums == "nothing ran here in this window"
    assert partition == []
    assert matrix == []
    assert parts == []


# What the script asks for


def test_the_script_learns_the_rows_the_ranges_and_the_tables(session: Session) -> None:
    known = json.loads(json.dumps(describe(session)))
    assert {row["kind"] for row in known["rows"]} >= {"device", "idle", "stream", "thread"}
    assert known["ranges"][STREAMED]["name"] == "streamed"
    ranges = known["tables"]["ranges"]
    assert all(len(row["cells"]) == len(ranges["columns"]) for row in ranges["rows"])
    findings = known["tables"]["findings"]
    assert all(len(row["cells"]) == len(findings["columns"]) for row in findings["rows"])


@pytest.mark.parametrize(
    "path",
    [
        "/describe",
        "/view?low=0&high=1000000&pixels=100&rows=0,1,2",
        "/item?row=5&item=0",
        "/operations?low=0&high=90000000&sort=duration&descending=1&find=copy",
        "/operations.csv?low=0&high=90000000",
        '/operations?low=0&high=90000000&where=[["duration",">",1000],["class","has","h2d"]]',
        "/operation?row=8&item=3",
        "/found?find=copy",
        "/found?find=copy&at=0&row=8&item=3&step=-1",
        "/shared/drawing.js",
        "/shared/controls.js",
        "/shared/timeline.js",
    ],
)
def test_the_script_is_answered(path: str, client: Any) -> None:
    with client.get(path, headers=HERE) as answer:
        assert answer.status_code == 200
        assert answer.data
    assert client.get(path, headers={"Host": "evil.example"}).status_code == 403


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/view", 400),
        ("/view?low=5&high=5&pixels=100&rows=0", 400),
        ("/view?low=0&high=x&pixels=100&rows=0", 400),
        ("/view?low=0&high=10&pixels=100&rows=0,a", 400),
        ("/view?low=0&high=99999999999999999999999&pixels=1&rows=0", 400),
        ("/view?low=0&high=10&pixels=1&rows=0&find=(", 400),
        (f"/view?low=0&high=10&pixels=1&rows=0&find={'x' * 2_000}", 400),
        ("/operations?low=0&high=10&sort=secret", 400),
        ("/operations?low=0&high=10&where=[1]", 400),
        ("/operations?low=0&high=10&where={", 400),
        ('/operations?low=0&high=10&where=[["secret","<",1]]', 400),
        (f"/operations?low=0&high=10&where=[{','.join(['[0,0,0]'] * 21)}]", 400),
        ("/found?find=(", 400),
        ("/found?find=copy&at=0&step=2", 400),
        ("/found?find=copy&at=x", 400),
        ("/item?row=9999&item=0", 404),
        ("/item?row=5&item=-3", 404),
        ("/shared/no-such", 404),
    ],
)
def test_what_means_nothing_is_refused(path: str, status: int, client: Any) -> None:
    assert client.get(path, headers=HERE).status_code == status


def test_the_operations_as_csv(client: Any) -> None:
    text = client.get("/operations.csv?low=0&high=1000&find=copy", headers=HERE).text
    header, *rows = text.splitlines()
    assert header.startswith("trace,process,device,stream,class,name,start_ns")
    assert len(rows) == 1


def test_no_operation_in_the_csv_is_a_formula() -> None:
    trace = make_trace(kernels=[(10, 50, "s7", {"name": "=1+2"})])
    client = server.make_app(made(trace)).server.test_client()
    text = client.get("/operations.csv?low=0&high=1000", headers=HERE).text
    assert ",kernel,'=1+2,10,50," in text


# Safety


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8050", 200),
        ("127.0.0.1", 200),
        ("[::1]:8050", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example:8050", 403),
        ("", 403),
    ],
)
def test_only_requests_that_name_this_machine_are_answered(
    host: str, status: int, client: Any
) -> None:
    assert client.get("/", headers={"Host": host}).status_code == status


def test_the_chosen_host_is_answered_too(session: Session) -> None:
    client = server.make_app(session, "10.1.2.3").server.test_client()
    assert client.get("/", headers={"Host": "10.1.2.3:80"}).status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("10.1.2.3:8050", 200),
        ("[fd00::7]:8050", 200),
        ("gpubox:8050", 200),
        ("localhost:8050", 200),
        ("evil.example", 403),
        ("gpubox.evil.example:8050", 403),
        ("10.1.2.3.evil.example", 403),
    ],
)
def test_where_every_address_is_served_each_is_answered_and_no_other_name(
    host: str, status: int, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "GpuBox")
    client = server.make_app(session, "0.0.0.0").server.test_client()
    answer = client.get("/", headers={"Host": host})
    assert answer.status_code == status
    assert status == 200 or "answers as localhost or GpuBox only" in answer.text


def test_over_ssh_no_browser_is_opened_and_the_tunnel_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    opened: list[str] = []

    def note(address: str) -> bool:
        opened.append(address)
        return True

    monkeypatch.setattr(webbrowser, "open", note)
    monkeypatch.setattr(socket, "gethostname", lambda: "gpubox")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.9 50000 10.0.0.7 22")
    server._open_browser("http://127.0.0.1:8050/", said.append)
    assert opened == []
    assert said == [
        "To see it where you are: ssh -L 8050:localhost:8050 gpubox, then open "
        "http://localhost:8050/ there."
    ]
    server._open_browser("http://gpubox:8050/", said.append)
    assert said.pop() == "No browser could be opened: open http://gpubox:8050/ in one."
    monkeypatch.setenv("DISPLAY", "localhost:10.0")  # forwarded
    server._open_browser("http://127.0.0.1:8050/", said.append)
    assert opened == ["http://127.0.0.1:8050/"]
    assert len(said) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"output": 5}',
        b'{"output": "no.such", "inputs": []}',
        b'{"output": "OUT", "inputs": {}}',
        b'{"output": "OUT", "inputs": []}',
        b'{"output": "OUT", "inputs": [5]}',
        b'{"output": "OUT", "inputs": [{"id": "view", "property": "data"}], "state": 3}',
    ],
)
def test_a_malformed_request_is_refused_quietly(
    body: bytes, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    app = server.make_app(session)
    (output,) = app.callback_map
    answer = app.server.test_client().post(
        "/_dash-update-component",
        data=body.replace(b"OUT", output.encode()),
        headers={**HERE, "Content-Type": "application/json"},
    )
    assert answer.status_code == 400
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    "value", [None, 5, "x", {}, {"low": "a"}, {"low": 1, "high": [], "range": 0}]
)
def test_a_view_that_means_nothing_changes_nothing(value: object, session: Session) -> None:
    app = server.make_app(session)
    (output,) = app.callback_map
    answer = app.server.test_client().post(
        "/_dash-update-component",
        json={
            "output": output,
            "outputs": [
                {"id": part.rpartition(".")[0], "property": part.rpartition(".")[2]}
                for part in output.strip(".").split("...")
            ],
            "inputs": [{"id": "view", "property": "data", "value": value}],
            "changedPropIds": ["view.data"],
        },
        headers=HERE,
    )
    assert answer.status_code in (200, 204)


def test_a_failure_is_a_sentence_in_the_terminal(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    app = server.make_app(session)

    def broken() -> str:
        raise ZeroDivisionError

    app.server.add_url_rule("/broken", view_func=broken)
    with caplog.at_level(logging.ERROR):
        answer = app.server.test_client().get("/broken", headers=HERE)
    assert answer.status_code == 500
    assert "Traceback" not in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_a_taken_port_is_said(session: Session) -> None:
    app = server.make_app(session).server
    first = server.bind(app, "127.0.0.1", 0)
    try:
        with pytest.raises(UsageError, match="leave --port out"):
            server.bind(app, "127.0.0.1", first.server_port)
    finally:
        first.server_close()


def test_an_empty_host_is_a_usage_error(session: Session) -> None:
    with pytest.raises(UsageError, match="--host needs an address"):
        server.bind(server.make_app(session).server, "", 0)


def test_answers_let_the_browser_run_nothing_else(client: Any) -> None:
    policy = client.get("/", headers=HERE).headers["Content-Security-Policy"]
    scripts = next(part for part in policy.split(";") if "script-src" in part)
    assert "unsafe" not in scripts
    assert "http" not in policy


def test_a_file_name_is_no_markup() -> None:
    trace = replace(make_trace(kernels=[(0, MS, "s7")]), path="a</title><script>x</script>.sqlite")
    client = server.make_app(made(trace)).server.test_client()
    assert b"<script>x" not in client.get("/", headers=HERE).data


# Loading


def test_the_page_tells_how_loading_goes() -> None:
    from werkzeug.test import Client

    front = server.Front("127.0.0.1")
    front.stage = "Reading a<b>"
    client = Client(front)
    answer = client.get("/", headers=HERE)
    assert "Reading a&lt;b&gt;" in answer.text
    assert client.get("/describe", headers=HERE).status_code == 503
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 403


def test_what_fails_to_load_is_raised_and_the_port_is_free_again() -> None:
    said: list[str] = []

    def load(progress: Progress) -> Session:
        raise UsageError("no")

    with pytest.raises(UsageError, match="no"):
        server.serve(load, what="x", host="127.0.0.1", port=0, browser=False, say=said.append)
    assert said == []


def test_what_cannot_be_judged_does_not_crowd_a_card() -> None:
    (card, *_) = layout.cards(made(api.open_trace(samples.path("training"))))
    text = str(card)
    assert "◐ partial" in text
    assert "? inconclusive" not in text
    assert "5 pairs cannot be judged" in text
    assert "under the 20 µs that a verdict takes" in text  # where one points at it


def test_the_ranks_of_a_run_have_one_card_a_range_with_the_worst_of_each_pair() -> None:
    def rank(number: int, copied_ns: int) -> Trace:
        trace = make_trace(
            kernels=[(0, 10 * MS + 1, "s7")],
            h2d=[(copied_ns + 3, copied_ns + 10 * MS + 8, "s8", {"bytes": 1_000_000})],
            ranges=[("step", 0, 30 * MS)],
        )
        return of_rank(trace, number)

    hidden, bare = 0, 12 * MS
    session = Session([rank(0, hidden), rank(1, bare), rank(2, hidden)])
    (card,) = layout.cards(session)
    assert "3 ranks jointly · worst: rank 1" in str(card)
    assert "span 10.0 ms to 22.0 ms" in str(card)
    assert "0.0 % to 100.0 % of the possible gain" in str(card)
    assert "✕ serialized" in str(card)
    assert "rank 1: no" in str(card)
    assert card.to_plotly_json()["props"]["data-device"] == "1"
    (card,) = layout.cards(Session([rank(0, hidden), rank(1, hidden)]))
    assert "✓ overlapped" in str(card)
    assert "span 10.0 ms'" in str(card)
    # That its host was in MPI beside no kernel does not make a rank the worst.
    in_mpi = make_trace(
        kernels=[(0, 10 * MS, "s7")],
        h2d=[(0, 10 * MS, "s8", {"bytes": 1_000_000})],
        ranges=[("step", 0, 30 * MS)],
        mpi=[("MPI_Barrier", 15 * MS, 28 * MS)],
    )
    (card,) = layout.cards(Session([of_rank(in_mpi, 0), rank(1, 6 * MS)]))
    assert "◐ partial" in str(card)
    assert "2 ranks jointly · worst: rank 1" in str(card)
    elsewhere = of_rank(make_trace(kernels=[(0, MS, "s7")]), 2)
    (card,) = layout.cards(Session([rank(0, hidden), rank(1, bare), elsewhere]))
    assert "2 of 3 ranks jointly · worst: rank 1" in str(card)


def on_gpus(count: int) -> Session:
    """Return a trace of two ranges on as many GPUs: the last used first, one of them bare."""
    bare, gpus = 3, range(count)
    late = [12 * MS if gpu == bare else 0 for gpu in gpus]
    steps = ((0, "first"), (40 * MS, "second"))

    def rows(name: str, begins: list[int]) -> list[Any]:
        return [
            (at + begin - gpu, at + begin - gpu + 10 * MS, name, {"device": gpu, "launch": at})
            for at, _ in steps
            for gpu, begin in zip(gpus, begins, strict=True)
        ]

    trace = make_trace(
        kernels=rows("s7", [count] * count),
        h2d=rows("s8", [count + begin for begin in late]),
        ranges=[(name, at, at + 30 * MS) for at, name in steps],
        devices=count,
    )
    return Session([trace])


def test_many_gpus_of_a_trace_have_one_card_a_range_with_the_worst_of_each_pair() -> None:
    first, second = layout.cards(on_gpus(8))
    assert "first" in str(first)
    assert "second" in str(second)
    for card in (first, second):
        assert "8 GPUs jointly · worst: GPU 3" in str(card)
        assert "span 10.0 ms to 22.0 ms" in str(card)
        assert "GPU 3: no" in str(card)
        assert card.to_plotly_json()["props"]["data-device"] == "3"
    # Few have a card each, in their order.
    apart = layout.cards(on_gpus(4))
    assert len(apart) == 8
    assert [f"GPU {gpu} · " in str(apart[gpu]) for gpu in range(4)] == [True] * 4


def test_a_finding_says_on_which_of_several_gpus_and_shows_its_figures() -> None:
    session = Session([api.open_trace(samples.path("p2p_driver_run"))])
    places = [session.place_of(*each) for each in session.findings]
    assert places == ["hops-64 · GPU 0", "hops-64 · GPU 1"]
    panel = str(layout.findings_panel(session))
    assert "data-device='0'" in panel
    assert "data-device='1'" in panel
    cells = [row["cells"][2] for row in describe(session)["tables"]["findings"]["rows"]]
    assert cells == places


def test_a_rank_without_gpu_work_leaves_open_what_the_ranks_hid() -> None:
    hidden = make_trace(
        kernels=[(0, 10 * MS + 1, "s7")],
        h2d=[(3, 10 * MS + 8, "s8", {"bytes": 1_000_000})],
        ranges=[("step", 0, 30 * MS)],
    )
    idle = make_trace(ranges=[("step", 0, 30 * MS)])
    (card,) = layout.cards(Session([of_rank(hidden, 0), of_rank(hidden, 1)]))
    assert "✓ overlapped" in str(card)
    (card,) = layout.cards(Session([of_rank(hidden, 0), of_rank(idle, 1)]))
    assert "1 of 2 ranks jointly · worst: rank 0 · rank 1 recorded no GPU work" in str(card)
    assert "? inconclusive" in str(card)
    assert "✓ overlapped" not in str(card)
    # So does one without a trace.
    first = dataclasses.replace(of_rank(hidden, 0), missing_ranks=(2,))
    (card,) = layout.cards(Session([first, of_rank(hidden, 1)]))
    assert "2 ranks jointly · worst: rank 0 · rank 2 is without a trace" in str(card)
    assert "? inconclusive" in str(card)
    # What was seen to be serialized stays so.
    bare = make_trace(
        kernels=[(0, 10 * MS + 1, "s7")],
        h2d=[(10 * MS + 3, 20 * MS + 8, "s8", {"bytes": 1_000_000})],
        ranges=[("step", 0, 30 * MS)],
    )
    (card,) = layout.cards(Session([of_rank(bare, 0), of_rank(idle, 1)]))
    assert "✕ serialized" in str(card)


def test_a_card_of_ranks_on_which_nothing_matters_names_no_worst() -> None:
    trace = make_trace(
        kernels=[(0, 100 * MS, "s7")],
        h2d=[(0, MS, "s8", {"bytes": 1_000_000})],
        ranges=[("step", 0, MS)],
        mpi=[("MPI_Barrier", 0, 50 * MS)],  # the verdict on the host is not the card's
    )
    (card,) = layout.cards(Session([of_rank(trace, number) for number in (0, 1)]))
    assert "1 pair is too small to matter" in str(card)
    assert "2 ranks jointly'" in str(card)


def test_directions_between_gpus_have_a_worst_rank() -> None:
    there, back = {"src": 0, "dst": 1}, {"src": 1, "dst": 0, "device": 1}
    trace = make_trace(
        devices=2,
        p2p=[(0, 10 * MS, "s1", there), (0, 10 * MS, "s1", back)],
        ranges=[("step", 0, 30 * MS)],
    )
    (card,) = layout.cards(Session([of_rank(trace, number) for number in (0, 1)]))
    assert "2 ranks jointly · worst: rank 0" in str(card)


def test_the_time_of_the_host_in_mpi_is_on_no_card() -> None:
    traces = [api.open_trace(samples.path(f"jacobi_nccl_r{rank}")) for rank in (0, 1)]
    session = Session(traces)
    pairs = [pair for entry in session.carded[0] for pair in entry.scope.pairs]
    assert any("mpi" in (pair.a, pair.b) for pair in pairs)
    text = str(layout.page(session))
    assert "comm ∩ kernel" in text
    assert "∩ mpi" not in text


def test_what_a_recording_lacks_is_told() -> None:
    trace = make_trace(kernels=[(0, MS, "s7")])
    text = str(layout.notes(made(replace(trace, lost_records=2, damaged={"X: no number": 3}))))
    assert "3 damaged rows left out." in text
    assert "About 2 GPU records were lost while recording." in text


# Many ranges


def test_ranges_are_the_scripts_to_list_and_numbers_in_their_names_are_told() -> None:
    steps = [(f"step {at}", at * MS, at * MS + MS // 2) for at in range(60)]
    session = made(make_trace(kernels=[(low, high, "s7") for _, low, high in steps], ranges=steps))
    assert str(layout.page(session)).count("Option(") == 1 + len(session.devices)
    assert [each["label"] for each in describe(session)["ranges"]][:2] == ["step 0", "step 1"]
    assert [row["range"] for row in describe(session)["tables"]["ranges"]["rows"]] == [*range(60)]
    assert "60 ranges differ by a number alone, such as" in str(layout.notes(session))


def test_of_several_traces_each_range_says_which() -> None:
    traces = [
        replace(
            make_trace(kernels=[(0, MS, "s7")], ranges=[("step", 0, MS)]), path=f"{name}.sqlite"
        )
        for name in "ab"
    ]
    labels = [each["label"] for each in describe(Session(traces))["ranges"]]
    assert labels == ["step · a.sqlite", "step · b.sqlite"]


def test_cards_of_ranges_that_only_communicate_say_what_ran() -> None:
    traces = [api.open_trace(samples.path(f"nccl_several_r{rank}")) for rank in (0, 1)]
    one, several = layout.cards(Session(traces))
    assert "one at a time: there is no pair to overlap" in str(one)
    assert "only comm ran, up to 2 at once, 1.9 in the mean" in str(several)
    told = "communication 858 µs to 869 µs, 858 µs to 869 µs of it under no kernel"
    assert told in str(several)
    # Pairs with the host's time in MPI are none of the card's, so that there is something to say.
    alone = make_trace(
        comm=[(0, MS, "s7")], ranges=[("step", 0, 2 * MS)], mpi=[("MPI_Wait", 0, MS)]
    )
    (card,) = layout.cards(made(alone))
    assert "only comm ran, one at a time" in str(card)


def test_a_card_says_what_was_hidden_of_transfers_and_of_the_time_in_mpi() -> None:
    traces = [api.open_trace(samples.path(f"jacobi_mpi_overlap_r{rank}")) for rank in (0, 1)]
    *others, overlapped = layout.cards(Session(traces))
    told = "transfers 99.2 % to 99.3 % hidden · time in MPI 100.0 % beside kernels"
    assert told in str(overlapped)
    assert "rank 0: 98.5 % of d2h runs under kernel; rank 1: immaterial" in str(overlapped)
    assert [card.className for card in (*others, overlapped)] == ["card joint"] * 3
    assert "hidden" not in str(others)  # these compute, or transfer, alone


def test_ranges_of_kernels_alone_have_cards_that_say_how_many_ran_at_once() -> None:
    session = Session([api.open_trace(samples.path("hyperq"))])
    assert card_names(session) == ["hyperq", "concurrent", "serial", "full_gpu"]
    told = str(layout.cards(session))
    assert "only kernel ran, up to 32 at once, 23.3 in the mean: there is no pair" in told
    assert "only kernel ran, one at a time: there is no pair" in told
