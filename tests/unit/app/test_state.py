"""The view, its address, and what each action does to it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuscope import api, samples
from gpuscope.app import callbacks, layout, server
from gpuscope.app.state import WHOLE, Session, View, view_from_query, view_to_query
from gpuscope.errors import UsageError
from gpuscope.model.trace import Process
from tests.make_trace import make_trace

MS = 1_000_000
STREAMED = 1
"""Number of the range in the trace `streams`."""


@pytest.fixture(scope="module")
def session() -> Session:
    return Session(api.open_trace(samples.path("streams")), {})


def test_cards_are_the_outermost_ranges_with_pairs(session: Session) -> None:
    assert [entry.name for entry in session.carded()] == ["sequential", "streamed"]
    assert session.range_names[:2] == ("sequential", "streamed")


def test_ranges_that_a_benchmark_judges_come_first() -> None:
    trace = make_trace(
        kernels=[(10, 50, "s7", {"launch": 3})],
        h2d=[(20, 40, "s8", {"launch": 4})],
        ranges=[("gs:measure", 0, 9), ("streamed", 1, 8), ("outer", 0, 9)],
    )
    limits = {("streamed", "h2d", "kernel"): 1.0}
    assert [entry.name for entry in Session(trace, limits).carded()] == ["streamed"]
    assert Session(trace, {}).carded()[0].name == "outer"


def test_picking_a_range_fits_it_and_gives_its_figures(session: Session) -> None:
    view = callbacks.next_view(session, session.fit(), "range", STREAMED, None)
    title, scopes = session.scopes(view)
    assert title == "Range streamed, 3 instances"
    assert scopes[0].span_ns == 21522953
    assert callbacks.next_view(session, view, "fit", STREAMED, None) == view


def test_another_view_gives_the_figures_of_its_window(session: Session) -> None:
    view = callbacks.next_view(session, session.fit(STREAMED), "zoom-in", STREAMED, None)
    assert view.range_number == STREAMED
    title, scopes = session.scopes(view)
    assert title == "Visible window"
    assert 0 < scopes[0].span_ns <= view.high_ns - view.low_ns


def test_the_whole_trace(session: Session) -> None:
    title, scopes = session.scopes(session.fit())
    assert title == "Whole trace"
    assert scopes[0].span_ns == 84099822


def test_buttons_zoom_and_move(session: Session) -> None:
    view = session.fit()
    width = view.high_ns - view.low_ns
    closer = callbacks.next_view(session, view, "zoom-in", WHOLE, None)
    assert closer.high_ns - closer.low_ns == pytest.approx(width / 2, abs=2)
    assert (closer.high_ns + closer.low_ns) // 2 == pytest.approx(
        (view.high_ns + view.low_ns) // 2, abs=2
    )
    left = callbacks.next_view(session, closer, "move-left", WHOLE, None)
    assert left.low_ns < closer.low_ns
    assert callbacks.next_view(session, closer, "zoom-out", WHOLE, None).low_ns < closer.low_ns


def test_dragging_reports_milliseconds(session: Session) -> None:
    drawn = {"low": 10.0, "high": 12.5, "at": 1}
    view = callbacks.next_view(session, session.fit(), "dragged", WHOLE, drawn)
    origin = session.timeline.low_ns
    assert (view.low_ns - origin, view.high_ns - origin) == (10 * MS, 12_500_000)
    for wrong in (
        {},
        None,
        {"low": "x", "high": 1},
        {"low": None, "high": 2},
        {"low": float("nan"), "high": 2},
    ):
        assert callbacks.next_view(session, view, "dragged", WHOLE, wrong) == view


def test_a_view_stays_within_reach(session: Session) -> None:
    far = session.clamp(View(10**15, 10**15 + 5))
    widest = session.fit()
    assert far.low_ns <= widest.high_ns
    assert far.high_ns - far.low_ns >= 20
    huge = session.clamp(View(-(10**15), 10**15))
    assert huge.high_ns - huge.low_ns <= 2 * (widest.high_ns - widest.low_ns)


def test_the_address_restores_the_view(session: Session) -> None:
    view = replace(session.fit(STREAMED), low_ns=session.timeline.low_ns + 5)
    query = view_to_query(view, session)
    assert view_from_query(query, session) == view
    assert View.from_json(view.to_json()) == view


@pytest.mark.parametrize(
    "query", [None, "", "?from=x&to=5", "?from=9&to=3", "?range=nowhere", "?range=%23999"]
)
def test_an_address_that_says_nothing_gives_the_whole_trace(
    query: str | None, session: Session
) -> None:
    assert view_from_query(query, session) == session.fit()


def test_a_finding_leads_to_its_evidence() -> None:
    session = Session(api.open_trace(samples.path("pageable")), {})
    number = next(i for i, f in enumerate(session.analysis.findings) if f.evidence.get("window_ns"))
    view = callbacks.next_view(
        session, session.fit(), {"type": "finding", "number": number}, WHOLE, None
    )
    low, high = session.analysis.findings[number].evidence["window_ns"]
    assert view.low_ns <= low < high <= view.high_ns


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
    host: str, status: int, session: Session
) -> None:
    client = server.make_app(session).server.test_client()
    assert client.get("/", headers={"Host": host}).status_code == status


def test_the_chosen_host_is_answered_too(session: Session) -> None:
    client = server.make_app(session, "10.1.2.3").server.test_client()
    assert client.get("/", headers={"Host": "10.1.2.3:80"}).status_code == 200


def test_a_taken_port_is_said(session: Session) -> None:
    app = server.make_app(session)
    first = server.bind(app, "127.0.0.1", 0)
    try:
        with pytest.raises(UsageError, match="leave --port out"):
            server.bind(app, "127.0.0.1", first.server_port)
    finally:
        first.server_close()


def test_processes_on_one_device_number_keep_their_own_figures() -> None:
    rows = [(10, 50, "s7", {"launch": 1}), (10, 90, "s7", {"launch": 2, "device": 1})]
    made = make_trace(devices=2, kernels=rows, ranges=[("step", 0, 9)], h2d=[(10, 20, "s8")])
    first, second = made.devices
    trace = replace(
        made,
        processes=(Process(100, "made", None), Process(101, "made", None)),
        devices=(first, replace(second, process=1, number=0)),
    )
    session = Session(trace, {})
    _, scopes = session.scopes(session.fit())
    assert {device: scope.span_ns for device, scope in scopes.items()} == {0: 40, 1: 80}
    options = str(layout.page(session))
    assert "GPU 0 · pid 100" in options
    assert "GPU 0 · pid 101" in options


def test_a_single_outer_range_is_joined_by_the_few_in_it() -> None:
    session = Session(api.open_trace(samples.path("p2p")), {})
    assert {entry.name for entry in session.carded()} == {"p2p", "bidir", "p2p_compute"}
    session = Session(api.open_trace(samples.path("pageable")), {})
    assert {entry.name for entry in session.carded()} == {"pageable"}  # it holds eight chunks


def test_start_gates_alone_are_no_gpu_work() -> None:
    session = Session(make_trace(gate=[(0, MS, "s7")]), {})
    assert "Nothing ran on a GPU" in str(layout.page(session))


def test_a_lone_class_says_why_nothing_is_judged() -> None:
    session = Session(make_trace(kernels=[(0, MS, "s7"), (0, MS, "s8")]), {})
    text = "only kernel ran, on up to 2 streams at once: there is no pair to overlap"
    assert text in str(layout.page(session))


def test_the_legend_of_the_partition_says_each_part(session: Session) -> None:
    drawn = callbacks.draw_scope(session, session.fit(), "light", 0)
    listed = str(drawn[3])
    for part in ("idle", "d2h + h2d + kernel", "27.0 % · 22.7 ms", "repeating-linear-gradient"):
        assert part in listed


def test_a_window_in_which_nothing_ran(session: Session) -> None:
    low = session.timeline.low_ns + 10 * MS
    _, sums, partition, parts, matrix = callbacks.draw_scope(
        session, View(low, low + MS), "light", 0
    )
    assert sums == "nothing ran here in this window"
    assert not partition.data
    assert not matrix.data
    assert parts == []


def test_the_address_names_the_theme(session: Session) -> None:
    assert view_to_query(session.fit(), session, "dark").endswith("&theme=dark")


def test_answers_let_the_browser_run_nothing_else(session: Session) -> None:
    client = server.make_app(session).server.test_client()
    policy = client.get("/", headers={"Host": "localhost"}).headers["Content-Security-Policy"]
    scripts = next(part for part in policy.split(";") if "script-src" in part)
    assert "unsafe" not in scripts
    assert "http" not in policy


def test_a_file_name_is_no_markup() -> None:
    trace = replace(make_trace(kernels=[(0, MS, "s7")]), path="a</title><script>x</script>.sqlite")
    client = server.make_app(Session(trace, {})).server.test_client()
    assert b"<script>x" not in client.get("/", headers={"Host": "localhost"}).data


def test_a_trace_without_gpu_work_says_so() -> None:
    session = Session(make_trace(), {})
    assert "Nothing ran on a GPU" in str(layout.page(session))
    client = server.make_app(session).server.test_client()
    assert client.get("/", headers={"Host": "localhost"}).status_code == 200


def test_a_long_name_goes_into_the_address_as_its_number() -> None:
    name = "n" * 1_000
    trace = make_trace(
        kernels=[(10, 50, "s7", {"launch": 3})],
        h2d=[(20, 40, "s8", {"launch": 4})],
        ranges=[(name, 0, 9)],
    )
    session = Session(trace, {})
    view = session.fit(0)
    query = view_to_query(view, session)
    assert len(query) < 100
    assert view_from_query(query, session) == view
