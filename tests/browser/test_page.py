"""The page in a real Chromium: what a person sees and does."""

from __future__ import annotations

import itertools
import shutil
import sqlite3
import statistics
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpuscope import api, samples
from gpuscope.app import server
from gpuscope.app.state import Session
from gpuscope.cli import main
from tests.make_export import Export

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

pytestmark = pytest.mark.browser

SCREENSHOTS = Path(__file__).parent / "screenshots"
_PATIENCE_S = 20


class Page:
    """A page that is served and open in the browser."""

    def __init__(self, chrome: Chrome, address: str) -> None:
        self.chrome, self.address = chrome, address

    def open(self, query: str = "") -> None:
        self.chrome.get(self.address + query)
        self.until(lambda: self.script("return document.querySelector('#scope-sums')?.textContent"))
        self.settle()

    def settle(self) -> None:
        """Wait until what is looked at is drawn, and the address says it."""
        self.until(
            lambda: self.script("return window.gpuscope.page && window.gpuscope.page.idle()")
        )
        self.until(lambda: f"from={self.axis()[0]:.0f}" in self.chrome.current_url)

    def script(self, code: str, *arguments: Any) -> Any:
        return self.chrome.execute_script(code, *arguments)

    def until(self, reached: Callable[[], Any]) -> Any:
        """Wait until `reached` gives something true, and return it."""
        end = time.monotonic() + _PATIENCE_S
        while not (value := reached()):
            assert time.monotonic() < end, "the page did not get there"
            time.sleep(0.05)
        return value

    def axis(self) -> tuple[float, float]:
        """Return the stretch of time that is seen, in ns."""
        found = self.script("const s = window.gpuscope.page.state(); return [s.low, s.high]")
        return float(found[0]), float(found[1])

    def names(self, kind: str) -> list[str]:
        """Return the names of the marks in the rows of a kind."""
        found: list[str] = self.script(
            "const p = window.gpuscope.page, d = p.drawn();"
            "return Object.entries(d.rows)"
            ".filter(([row]) => p.meta.rows[row].kind === arguments[0])"
            ".flatMap(([, row]) => row.marks.flatMap((m) => m[4].map((at) => d.names[at])))",
            kind,
        )
        return found

    def canvas(self) -> Any:
        """Return the canvas, scrolled into view: WebDriver counts from the middle of what is."""
        canvas = self.chrome.find_element("css selector", ".tl-canvas")
        self.chrome.execute_script(
            "arguments[0].scrollIntoView({ block: 'center', behavior: 'instant' });", canvas
        )
        return canvas

    def at(self, kind: str, number: int = 0) -> tuple[int, int]:
        """Return where a mark is, from the middle of the canvas: the first row with `number` of it.

        The row is the first of its kind with so many marks.
        """
        place = self.script(
            "const p = window.gpuscope.page, d = p.drawn();"
            "const box = document.querySelector('.tl-canvas').getBoundingClientRect();"
            "for (const [row, drawn] of Object.entries(d.rows)) {"
            "  if (p.meta.rows[row].kind !== arguments[0]) continue;"
            "  const all = drawn.marks.flatMap((m) => m[1].map((start, i) =>"
            "    ({ row: +row, start, end: start + m[2][i] })))"
            "    .filter((m) => m.start >= p.state().low).sort((a, b) => a.start - b.start);"
            "  if (all.length <= arguments[1]) continue;"
            "  const at = p.place(all[arguments[1]]);"
            "  return [at.x - box.left - box.width / 2, at.y - box.top - box.height / 2];"
            "}",
            kind,
            number,
        )
        return round(place[0]), round(place[1])

    def click(self, kind: str, number: int = 0) -> None:
        from selenium.webdriver.common.action_chains import ActionChains

        at = self.at(kind, number)
        ActionChains(self.chrome).move_to_element_with_offset(self.canvas(), *at).click().perform()

    def text(self, selector: str) -> str:
        return str(self.script("return document.querySelector(arguments[0]).innerText", selector))

    def see_table(self) -> None:
        self.script("document.querySelector('#table').scrollIntoView({ block: 'end' })")

    def press(self, key: str) -> None:
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.chrome).send_keys(key).perform()

    def keep(self, name: str) -> None:
        SCREENSHOTS.mkdir(exist_ok=True)
        self.chrome.save_screenshot(str(SCREENSHOTS / f"{name}.png"))


@pytest.fixture
def serve(chrome: Chrome) -> Iterator[Callable[[Path], Page]]:
    """Serve a trace and give its page, not yet open."""
    running = []

    def start(path: Path) -> Page:
        session = Session([api.open_trace(path)], [api.told_beside(path)])
        httpd = server.bind(server.make_app(session).server, "127.0.0.1", 0)
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        running.append(httpd)
        return Page(chrome, f"http://127.0.0.1:{httpd.server_port}/")

    yield start
    for httpd in running:
        httpd.shutdown()
        httpd.server_close()


@pytest.fixture
def streams(serve: Callable[[Path], Page]) -> Page:
    page = serve(samples.path("streams"))
    page.open()
    return page


def test_verdicts_can_be_read_at_a_glance(streams: Page) -> None:
    cards = streams.script(
        "return [...document.querySelectorAll('.card')].map(card => ["
        "card.querySelector('h3').innerText,"
        "...[...card.querySelectorAll('.verdict')].map(word => word.innerText)])"
    )
    assert cards == [
        ["sequential", *["✕ serialized"] * 3],
        ["streamed", *["✓ overlapped"] * 3],
    ]
    assert "NVIDIA H200" in streams.text("header")
    streams.keep("streams-light")


def complaints(page: Page) -> list[Any]:
    """Return what the browser complains of: failed requests, errors, what the policy forbids."""
    log: Any = page.chrome.get_log("browser")  # type: ignore[no-untyped-call]  # selenium
    return [entry for entry in log if entry["level"] == "SEVERE"]


def test_nothing_comes_from_outside_and_nothing_is_wrong(streams: Page) -> None:
    foreign = streams.script(
        "return performance.getEntriesByType('resource').map(entry => entry.name)"
        ".filter(name => !name.startsWith(location.origin) && !name.startsWith('data:'))"
    )
    assert foreign == []
    assert complaints(streams) == []


def test_the_wheel_zooms_at_the_cursor(streams: Page) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.actions.wheel_input import ScrollOrigin

    before = streams.axis()
    beside = int(streams.canvas().rect["width"] / 4)  # from the middle
    origin = ScrollOrigin.from_element(streams.canvas(), beside, 0)
    ActionChains(streams.chrome).scroll_from_origin(origin, 0, -200).perform()
    after = streams.until(lambda: streams.axis() != before and streams.axis())
    at = before[0] + 0.75 * (before[1] - before[0])
    assert after[1] - after[0] < before[1] - before[0]
    assert (at - after[0]) / (after[1] - after[0]) == pytest.approx(0.75, abs=0.02)
    streams.until(lambda: streams.text("#scope-title") == "Visible window")


def test_f_and_a_double_click_fit(streams: Page) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    whole = streams.axis()
    double_click = ActionChains(streams.chrome).double_click(streams.canvas())
    fits: list[Callable[[], None]] = [lambda: streams.press("f"), double_click.perform]
    for fit in fits:
        streams.press("w")
        streams.until(lambda: streams.axis() != whole)
        fit()
        streams.until(lambda: streams.axis() == whole)
        streams.until(lambda: streams.text("#scope-title") == "Whole trace")


def test_buttons_and_keys_zoom_move_and_fit(streams: Page) -> None:
    start = streams.axis()
    streams.chrome.find_element("css selector", "[data-act=zoom-in]").click()
    closer = streams.axis()
    assert closer[1] - closer[0] == pytest.approx((start[1] - start[0]) / 2, rel=0.01)
    streams.press("d")
    assert streams.axis()[0] > closer[0]
    streams.press("a")
    assert streams.axis()[0] == pytest.approx(closer[0], abs=4)
    streams.press("s")
    assert streams.axis()[1] - streams.axis()[0] == pytest.approx(start[1] - start[0], rel=0.01)


def test_dragging_moves(streams: Page) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    start = streams.axis()
    drag = ActionChains(streams.chrome).click_and_hold(streams.canvas())
    drag.move_by_offset(-200, 0).release().perform()
    moved = streams.axis()
    assert moved[0] > start[0]
    assert moved[1] - moved[0] == pytest.approx(start[1] - start[0], rel=0.01)


def test_a_selection_on_the_time_axis_is_measured_at_once(streams: Page) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    ruler = streams.chrome.find_element("css selector", ".tl-ruler")
    drag = ActionChains(streams.chrome).move_to_element_with_offset(ruler, -200, 0).click_and_hold()
    drag.move_by_offset(120, 0).release().perform()
    streams.until(lambda: streams.text("#scope-title") == "Selection")
    streams.until(lambda: "select=" in streams.chrome.current_url)
    streams.see_table()
    assert "in the selection" in streams.until(
        lambda: "selection" in streams.text("#table-count") and streams.text("#table-count")
    )
    streams.keep("streams-selection")
    low, high = streams.script("return window.gpuscope.page.state().brush")
    streams.press("z")
    assert streams.axis() == (low, high)
    from selenium.webdriver.common.keys import Keys

    streams.press(Keys.ESCAPE)
    streams.until(lambda: streams.text("#scope-title") == "Visible window")


def test_hovering_tells_what_an_operation_is(streams: Page) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    at = streams.at("stream", 2)
    ActionChains(streams.chrome).move_to_element_with_offset(streams.canvas(), *at).perform()
    text = streams.until(lambda: "pinned" in streams.text(".tl-tip") and streams.text(".tl-tip"))
    for part in ("D2H copy", "67.1 MB", "GB/s", "stream", "pinned"):
        assert part in text


def test_a_click_tells_what_an_operation_waited_for(streams: Page) -> None:
    streams.click("stream", 2)
    details = streams.until(
        lambda: "duration" in streams.text("#details") and streams.text("#details")
    )
    for part in ("It started", "alike", "launched by", "of its path"):
        assert part in details
    streams.until(lambda: "op=" in streams.chrome.current_url)
    streams.keep("streams-details")
    # The table marks it, and the address brings it back.
    address = streams.chrome.current_url
    streams.see_table()
    streams.until(lambda: streams.script("return document.querySelector('tr.picked')"))
    streams.open(address.removeprefix(streams.address))
    streams.until(lambda: "duration" in streams.text("#details"))
    # What it waited for is a click away.
    first = streams.script("return window.gpuscope.page.state().picked.item")
    streams.chrome.find_element("css selector", "#details .link").click()
    streams.until(
        lambda: streams.script("return window.gpuscope.page.state().picked.item") != first
    )


def test_by_keyboard_from_one_operation_to_the_next(streams: Page) -> None:
    streams.press("n")
    first = streams.until(lambda: streams.script("return window.gpuscope.page.state().picked"))
    streams.press("n")
    second = streams.script("return window.gpuscope.page.state().picked")
    assert second["start"] >= first["end"]
    streams.press("p")
    assert streams.script("return window.gpuscope.page.state().picked.item") == first["item"]


def test_names_are_found(streams: Page) -> None:
    from selenium.webdriver.common.keys import Keys

    streams.press("/")
    assert streams.script("return document.activeElement.id") == "find"
    streams.press("D2H")
    streams.until(lambda: streams.names("stream") and set(streams.names("stream")) == {"D2H copy"})
    streams.until(lambda: "find=D2H" in streams.chrome.current_url)
    streams.press(Keys.ENTER)
    first = streams.until(lambda: streams.script("return window.gpuscope.page.state().picked"))
    assert first["name"] == "D2H copy"
    streams.until(lambda: streams.text("#find-count") == "1 of 25")
    streams.press("n")
    streams.until(lambda: streams.text("#find-count") == "2 of 25")
    streams.until(
        lambda: streams.script("return window.gpuscope.page.state().picked.item") != first["item"]
    )
    streams.press("p")
    streams.until(
        lambda: streams.script("return window.gpuscope.page.state().picked.item") == first["item"]
    )
    streams.press("/")
    streams.press("(")
    assert streams.script("return document.activeElement.getAttribute('aria-invalid')") == "true"
    assert complaints(streams) == []


def test_ranges_and_calls_are_found_too_and_what_is_not_there_is_said(streams: Page) -> None:
    from selenium.webdriver.common.keys import Keys

    def kind() -> Any:
        return streams.script(
            "const p = window.gpuscope.page, { picked } = p.state();"
            "return picked && p.meta.rows[picked.row].kind"
        )

    def search(text: str) -> None:
        streams.press("/")
        streams.press(text)

    search("^streamed$")
    streams.until(lambda: streams.text("#find-count") == "3 found")
    streams.press(Keys.ENTER)
    streams.until(lambda: kind() == "range")
    streams.press(Keys.ENTER)  # the timeline has the focus, and goes on
    streams.until(lambda: streams.text("#find-count") == "2 of 3")
    search("cudaDeviceSync")
    streams.press(Keys.ENTER)
    streams.until(lambda: kind() == "thread")
    search("no such name")
    streams.until(lambda: streams.text("#find-count") == "none found")
    find, rows = (streams.chrome.find_element("id", name) for name in ("find", "rows"))
    find.send_keys(Keys.CONTROL, "a", Keys.BACKSPACE)
    streams.until(lambda: streams.text("#find-count") == "")
    rows.send_keys("no such row")
    streams.until(lambda: streams.text(".tl-trouble") == "No row is called so.")
    rows.send_keys(Keys.CONTROL, "a", Keys.BACKSPACE)
    streams.until(lambda: streams.text(".tl-trouble") == "")


def test_what_a_search_does_not_find_stays_pale(streams: Page) -> None:
    from selenium.webdriver.common.keys import Keys

    def opacity() -> int:
        """Return how opaque the longest operation of the first stream is drawn, of 255."""
        seen: int = streams.script(
            "const p = window.gpuscope.page, { rows } = p.meta;"
            "const row = rows.findIndex((each) => each.kind === 'stream');"
            "const d = p.drawn(), marks = ((d.rest || d).rows[row]).marks[0];"
            "const i = marks[2].indexOf(Math.max(...marks[2]));"
            "const at = p.place({ row, start: marks[1][i], end: marks[1][i] + marks[2][i] });"
            "const canvas = document.querySelector('.tl-canvas');"
            "const box = canvas.getBoundingClientRect(), ratio = devicePixelRatio;"
            "const x = (at.x - box.left) * ratio, y = (at.y - box.top) * ratio;"
            "return canvas.getContext('2d').getImageData(x, y, 1, 1).data[3];"
        )
        return seen

    streams.open()
    assert opacity() == 255
    streams.press("/")
    streams.press("^streamed$")
    streams.until(lambda: 0 < opacity() < 64)
    for _ in "^streamed$":
        streams.press(Keys.BACKSPACE)
    streams.until(lambda: opacity() == 255)


def test_back_leads_to_before_a_leap(streams: Page) -> None:
    def seen() -> tuple[Any, ...]:
        picked = streams.script("return window.gpuscope.page.state().picked?.item")
        return *streams.axis(), picked, streams.text("#scope-title")

    streams.press("w")  # no leap: it has no entry
    streams.settle()
    start = seen()
    streams.chrome.find_elements("css selector", ".card")[1].click()
    streams.until(lambda: streams.text("#scope-title") == "Range streamed, 3 instances")
    streams.settle()
    carded = seen()
    streams.chrome.find_element("css selector", ".finding .example").click()
    streams.until(lambda: "op=" in streams.chrome.current_url)
    streams.press("d")
    streams.settle()
    moved = seen()
    streams.chrome.back()
    streams.until(lambda: seen() == carded)
    assert streams.script("return document.querySelector('#range').selectedOptions[0].label") == (
        "streamed"
    )
    streams.chrome.back()
    streams.until(lambda: seen()[:3] == start[:3])
    for _ in range(2):
        streams.chrome.forward()
        streams.settle()
    streams.until(lambda: seen() == moved)


def test_z_zooms_to_what_is_picked(streams: Page) -> None:
    streams.press("n")
    picked = streams.until(lambda: streams.script("return window.gpuscope.page.state().picked"))
    streams.press("z")
    wide = picked["end"] - picked["start"]
    assert streams.axis() == (picked["start"] - wide, picked["end"] + wide)


def test_up_and_down_scroll_the_page_until_the_timeline_has_the_focus(streams: Page) -> None:
    from selenium.webdriver.common.keys import Keys

    streams.chrome.set_window_size(1440, 500)
    streams.open()
    before = streams.axis()
    streams.press(Keys.ARROW_DOWN)
    streams.until(lambda: streams.script("return scrollY > 0"))
    assert streams.axis() == before
    streams.script("document.querySelector('.tl-canvas').focus()")
    streams.press(Keys.ARROW_UP)
    assert streams.axis()[1] - streams.axis()[0] < before[1] - before[0]


def test_pinching_zooms_as_far_as_a_wheel(streams: Page) -> None:
    def zoomed(wheel: str) -> float:
        low, high = streams.axis()
        streams.script(
            "document.querySelector('.tl-canvas').dispatchEvent(new WheelEvent('wheel', "
            f"{{ {wheel}, cancelable: true }}))"
        )
        return (streams.axis()[1] - streams.axis()[0]) / (high - low)

    assert zoomed("ctrlKey: true, deltaY: -10") == pytest.approx(zoomed("deltaY: -100"), rel=0.01)
    assert zoomed("ctrlKey: true, deltaY: -120") == pytest.approx(zoomed("deltaY: -120"), rel=0.01)


def test_the_menu_closes(streams: Page) -> None:
    from selenium.webdriver.common.keys import Keys

    def is_open() -> Any:
        return streams.script("return document.querySelector('.menu').open")

    summary = streams.chrome.find_element("css selector", ".menu summary")
    summary.click()
    assert is_open()
    streams.press(Keys.ESCAPE)
    assert not is_open()
    assert streams.script("return document.activeElement.tagName") == "SUMMARY"
    summary.click()
    streams.canvas().click()
    assert not is_open()


def test_copying_the_link_says_whether_it_worked(streams: Page) -> None:
    link = "document.querySelector('[data-act=link]').click()"
    allowed = {"origin": streams.address, "permissions": ["clipboardSanitizedWrite"]}
    streams.chrome.execute_cdp_cmd("Browser.grantPermissions", allowed)
    streams.chrome.find_element("css selector", ".menu summary").click()
    streams.script(link)
    streams.until(lambda: streams.text("#said") == "Copied.")
    # As on a page of another machine, which has no clipboard without https.
    streams.script("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    streams.script(link)
    streams.until(lambda: streams.text("#said").endswith("take the address from its bar."))


def test_the_classes_keep_their_colours_where_the_system_picks_all_others(
    chrome: Chrome, serve: Callable[[Path], Page]
) -> None:
    page = serve(samples.path("streams"))
    page.open()
    colours = (
        "const colored = '.tl-chip .swatch, .fill.overlapped, #partition > div';"
        "return [...document.querySelectorAll(colored)]"
        ".map((each) => getComputedStyle(each).background)"
    )
    usual = page.script(colours)
    forced = {"features": [{"name": "forced-colors", "value": "active"}]}
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", forced)
    assert page.script("return matchMedia('(forced-colors: active)').matches")
    assert page.script(colours) == usual
    page.keep("streams-forced-colours")


def test_rows_are_filtered_folded_and_moved(streams: Page) -> None:
    def labels() -> list[str]:
        found: list[str] = streams.script(
            "return [...document.querySelectorAll('.tl-name')].map((e) => e.textContent)"
        )
        return found

    assert "stream 14" in labels()
    assert "kernel" not in labels()
    streams.script("document.querySelector('.tl-label.group').click()")  # the engines
    assert labels()[labels().index("engines") + 1] == "kernel"
    streams.script("document.querySelector('.tl-label.device').click()")
    assert "stream 14" not in labels()
    streams.script("document.querySelector('.tl-label.device').click()")
    box = streams.chrome.find_element("id", "rows")
    box.send_keys("stream 1[45]")
    streams.until(lambda: labels() == ["GPU 0", "stream 14", "stream 15"])
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    streams.script("document.querySelectorAll('.tl-label.stream')[0].focus()")
    keys = ActionChains(streams.chrome).key_down(Keys.ALT).send_keys(Keys.ARROW_DOWN)
    keys.key_up(Keys.ALT).perform()
    assert labels() == ["GPU 0", "stream 15", "stream 14"]
    streams.until(lambda: "rows=stream" in streams.chrome.current_url)


def test_what_is_picked_is_uncovered(streams: Page) -> None:
    def labels() -> list[str]:
        found: list[str] = streams.script(
            "return [...document.querySelectorAll('.tl-name')].map((e) => e.textContent)"
        )
        return found

    streams.script("document.querySelector('.tl-label.device').click()")
    assert "stream 14" not in labels()
    streams.script("document.querySelector('.finding .example').click()")
    streams.until(lambda: streams.script("return window.gpuscope.page.state().picked"))
    assert "stream 14" in labels()
    streams.chrome.set_window_size(1440, 500)
    streams.script("window.gpuscope.page.pick(null)")
    streams.script("document.querySelector('.tl-scroll').scrollTop = 1000")
    streams.script("document.querySelector('.finding .example').click()")
    streams.until(
        lambda: streams.script(
            "const p = window.gpuscope.page, box = document.querySelector('.tl-canvas');"
            "const at = p.state().picked && p.place(p.state().picked);"
            "const { top, bottom } = box.getBoundingClientRect();"
            "return at && at.y > top && at.y < bottom"
        )
    )


def test_a_piece_of_the_band_is_selected_and_measured(streams: Page) -> None:
    streams.open("?from=38000000&to=44000000")
    streams.click("device", 2)
    streams.until(lambda: streams.text("#scope-title") == "Selection")
    assert streams.text("#parts").count("%") == 1


def test_kernels_that_run_at_once_lie_beside_each_other(serve: Callable[[Path], Page]) -> None:
    page = serve(samples.path("hyperq"))
    page.open()
    page.script("document.querySelector('.tl-label.group').click()")
    page.settle()
    page.keep("hyperq-engines")
    most = page.script(
        "const d = window.gpuscope.page.drawn();"
        "return Math.max(...Object.values(d.rows).filter((row) => row.lanes)"
        ".flatMap((row) => row.lanes.flat().map(([, count]) => count)))"
    )
    assert most >= 8


def test_a_class_is_hidden(streams: Page) -> None:
    chip = streams.chrome.find_elements("css selector", ".tl-chip")[0]
    assert chip.text == "kernel"
    chip.click()
    chip = streams.chrome.find_elements("css selector", ".tl-chip")[0]
    assert chip.get_attribute("aria-pressed") == "false"
    streams.until(lambda: "hide=kernel" in streams.chrome.current_url)


def test_tables_are_sorted_and_lead_to_the_timeline(streams: Page) -> None:
    streams.see_table()
    streams.until(lambda: len(streams.chrome.find_elements("css selector", "#table tbody tr")) > 9)
    head = streams.chrome.find_elements("css selector", "#table th button")[1]
    head.click()
    streams.until(lambda: "duration ▲" in streams.text("#table thead"))
    streams.script("document.querySelector('#table tbody tr').click()")
    streams.until(lambda: "duration" in streams.text("#details"))
    streams.until(lambda: streams.script("return document.querySelector('tr.picked')"))
    streams.script("document.querySelectorAll('#tabs button')[2].click()")
    streams.until(lambda: "could be hidden" in streams.text("#table"))
    streams.script("document.querySelector('#table tbody tr').click()")
    streams.until(lambda: streams.text("#scope-title").startswith("Range "))


def test_tables_are_filtered_column_by_column_and_follow_the_view(streams: Page) -> None:
    def count() -> str:
        return streams.text("#table-count")

    def write(column: int, text: str) -> None:
        boxes = streams.chrome.find_elements("css selector", "#table .filters input")
        boxes[column].clear()
        boxes[column].send_keys(text)

    streams.see_table()
    streams.until(lambda: count() == "75 operations in view")
    write(2, "H2D")
    streams.until(lambda: count() == "25 operations in view")
    write(1, "> 1.3 ms")
    streams.until(lambda: count() == "5 operations in view")
    write(1, "> 1.3 parsecs")
    assert streams.script("return document.activeElement.getAttribute('aria-invalid')") == "true"
    write(1, ">= 1354 us")
    streams.until(lambda: count() == "4 operations in view")
    address = streams.until(
        lambda: "1354" in streams.chrome.current_url and streams.chrome.current_url
    )
    streams.open(address.removeprefix(streams.address))
    streams.see_table()
    streams.until(lambda: count() == "4 operations in view")
    # An operation that is picked in the view has its row, though the filter leaves it out.
    streams.press("n")
    streams.until(lambda: streams.script("return document.querySelector('tr.picked')"))
    streams.script("document.querySelectorAll('#tabs button')[2].click()")
    streams.until(lambda: count() == "6 ranges")
    streams.script("document.querySelector('#range').value = '1'")
    streams.script("document.querySelector('#range').dispatchEvent(new Event('change'))")
    streams.until(
        lambda: streams.script("return document.querySelector('tr.picked td')?.textContent")
    )
    assert streams.script("return document.querySelector('tr.picked td').textContent") == (
        streams.script("return document.querySelector('#range').selectedOptions[0].textContent")
    )
    streams.keep("streams-table")


def test_an_expression_that_would_never_end_is_given_up(streams: Page) -> None:
    box = streams.chrome.find_element("id", "rows")
    box.send_keys("^(([a-z0-9 -]+)+)+!$")
    streams.until(lambda: "takes too long" in streams.text(".tl-trouble"))
    box.clear()
    box.send_keys("stream 14")
    streams.until(
        lambda: streams.script("return document.querySelectorAll('.tl-name').length") == 2
    )
    assert streams.text(".tl-trouble") == ""
    streams.chrome.find_element("id", "find").send_keys("^(([a-z0-9 -]+)+)+!$")
    streams.until(lambda: "find=%5E" in streams.chrome.current_url)
    streams.settle()
    assert streams.names("stream") == []  # the server has no trouble with it


def test_pictures_hold_the_rows_as_text(streams: Page) -> None:
    from xml.etree import ElementTree

    text = streams.script("return window.gpuscope.page.svg()")
    words = {each.text for each in ElementTree.fromstring(text).iter() if each.text}
    assert {"stream 14", "sequential", "streamed"} <= words
    size = streams.chrome.execute_async_script(
        "const done = arguments[0]; window.gpuscope.page.png().then((blob) => done(blob.size))"
    )
    assert size > 10_000


def test_a_card_picks_its_range_and_the_address_brings_it_back(streams: Page) -> None:
    streams.chrome.find_elements("css selector", ".card")[1].click()
    streams.until(lambda: streams.text("#scope-title") == "Range streamed, 3 instances")
    assert "75.8 %" in streams.text("#scope-sums")
    assert "75.0 %" in streams.text("#matrix")
    address = streams.until(
        lambda: "range=streamed" in streams.chrome.current_url and streams.chrome.current_url
    )
    streams.keep("streams-range")
    streams.chrome.get("about:blank")
    streams.open(address.removeprefix(streams.address))
    streams.until(lambda: streams.text("#scope-title") == "Range streamed, 3 instances")
    assert "streamed" in streams.text("#range")


def test_the_range_picker_works(streams: Page) -> None:
    from selenium.webdriver.support.select import Select

    Select(streams.chrome.find_element("id", "range")).select_by_visible_text("sequential")
    streams.until(lambda: streams.text("#scope-title") == "Range sequential, 3 instances")


def test_light_and_dark(streams: Page) -> None:
    light = streams.script("return getComputedStyle(document.body).backgroundColor")
    streams.press("t")
    streams.until(
        lambda: streams.script("return getComputedStyle(document.body).backgroundColor") != light
    )
    streams.keep("streams-dark")
    streams.open()  # remembered
    assert streams.script("return document.documentElement.dataset.theme") == "dark"
    streams.press("t")


def test_the_theme_is_remembered_on_another_port_and_in_the_address(
    serve: Callable[[Path], Page], streams: Page
) -> None:
    first = streams.script("return document.documentElement.dataset.theme")
    streams.press("t")
    streams.until(lambda: f"theme={first}" not in streams.chrome.current_url)
    other = serve(samples.path("streams"))
    other.open()
    assert other.script("return document.documentElement.dataset.theme") != first
    other.open(f"?theme={first}")
    assert other.script("return document.documentElement.dataset.theme") == first
    assert f"theme={first}" in other.chrome.current_url


def test_a_system_in_dark_gets_a_dark_page(chrome: Chrome, serve: Callable[[Path], Page]) -> None:
    chrome.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": "dark"}]},
    )
    page = serve(samples.path("streams"))
    page.open()
    assert page.script("return document.documentElement.dataset.theme") == "dark"


def test_close_up_every_operation_has_its_name(streams: Page) -> None:
    streams.open("?from=38000000&to=39000000")
    assert "streamed" in streams.names("range")
    assert "H2D copy" in streams.names("stream")
    streams.keep("streams-close")


def test_the_page_fits_a_projector(streams: Page) -> None:
    streams.chrome.set_window_size(1280, 800)
    streams.open()
    assert streams.script(
        "return document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    )
    streams.keep("streams-1280")


def test_a_wide_screen_is_used(streams: Page) -> None:
    streams.chrome.set_window_size(2560, 1200)
    streams.open()
    assert streams.canvas().rect["width"] > 2_000


def test_the_page_fits_a_phone(serve: Callable[[Path], Page]) -> None:
    page = serve(samples.path("jacobi_nccl_r0"))  # six classes: a wide matrix
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    page.chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    try:
        page.open()
        assert page.script("return document.documentElement.scrollWidth") == 390
        assert page.canvas().rect["width"] > 200
        page.script("document.querySelector('.finding .example').click()")
        page.until(lambda: page.script("return document.querySelector('#details.open')"))
        assert page.canvas().rect["width"] > 200
        page.keep("phone")
    finally:
        page.chrome.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_tables_that_are_not_yet_seen_are_reached_by_tab(streams: Page) -> None:
    from selenium.webdriver.common.keys import Keys

    streams.chrome.set_window_size(1440, 500)
    streams.open()
    streams.script(
        "[...document.querySelectorAll('.finding button')].pop().focus({ preventScroll: true })"
    )
    assert not streams.script("return document.querySelector('#table table')")
    streams.press(Keys.TAB)
    assert streams.script("return document.activeElement.id") == "tab-operations"
    streams.until(lambda: streams.script("return document.querySelector('#table table')"))


NAMED = {
    *("alertdialog", "application", "button", "columnheader", "combobox", "dialog", "grid"),
    *("image", "link", "option", "rowheader", "tab", "table", "tablist", "tabpanel", "textbox"),
    *("tree", "treeitem"),
}
"""Roles that say nothing without a name."""


def nameless(page: Page) -> list[str]:
    """Return what a screen reader would come to on the page without being told what it is."""
    page.chrome.execute_cdp_cmd("Accessibility.enable", {})
    tree = page.chrome.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    return [
        node["role"]["value"]
        for node in tree
        if not node.get("ignored")
        and node["role"]["value"] in NAMED
        and not node.get("name", {}).get("value", "").strip()
    ]


def faint(page: Page) -> Any:
    """Return the texts whose contrast with what is under them is below 4.5 (WCAG AA)."""
    return page.script(
        """
        const light = ([r, g, b]) => {
          const part = (v) => (v <= 10 ? v / 3294.6 : ((v / 255 + 0.055) / 1.055) ** 2.4);
          return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
        };
        const parse = (text) => {
          const found = (text.match(/^rgba?\\(([^)]+)/) || [])[1];
          return found && found.split(/[ ,/]+/).map(Number);
        };
        const under = (element) => {
          for (let each = element; each; each = each.parentElement) {
            const color = parse(getComputedStyle(each).backgroundColor);
            if (color && (color.length < 4 || color[3] > 0.99)) return color;
          }
          return [255, 255, 255];
        };
        return [...document.querySelectorAll("body *")].filter((element) => {
          const texts = [...element.childNodes].filter((each) => each.nodeType === 3);
          const said = texts.some((each) => each.textContent.trim());
          if (!said || !element.getClientRects().length || element.disabled) return false;
          const color = parse(getComputedStyle(element).color);
          if (!color) return false;
          const [a, b] = [light(color), light(under(element))].sort((x, y) => y - x);
          return (a + 0.05) / (b + 0.05) < 4.5;
        }).map((element) => element.textContent.trim().slice(0, 60));
        """
    )


def test_controls_have_names_and_texts_contrast(streams: Page, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    assert main(["report", str(samples.path("streams")), "-o", str(path)]) == 0
    assert streams.script("return document.querySelectorAll('main, header, h1').length") == 3
    streams.see_table()
    streams.until(lambda: streams.script("return document.querySelector('#table tbody tr')"))
    streams.press("n")
    streams.until(lambda: streams.text("#details"))
    spoken = streams.script("return document.querySelector('.tl > [role=status]').textContent")
    assert spoken.startswith("H2D copy, 1.21 ms. It was launched last of all")
    levels = streams.script(
        "return [...document.querySelectorAll('h1, h2, h3')].map((each) => +each.tagName[1])"
    )
    assert all(below - above <= 1 for above, below in itertools.pairwise(levels))
    assert nameless(streams) == []
    assert faint(streams) == []
    streams.press("t")
    streams.settle()
    assert faint(streams) == []
    streams.press("?")
    assert nameless(streams) == []
    page = Page(streams.chrome, path.as_uri())
    page.chrome.get(page.address)
    page.until(lambda: page.script("return window.gpuscope.page.idle()"))
    page.press("n")
    assert nameless(page) == []
    assert faint(page) == []


def test_by_keyboard_to_a_selection_and_a_findings_evidence(streams: Page) -> None:
    streams.press("n")
    picked = streams.until(lambda: streams.script("return window.gpuscope.page.state().picked"))
    streams.press("b")
    streams.until(lambda: streams.text("#scope-title") == "Selection")
    assert streams.script("return window.gpuscope.page.state().brush") == [
        picked["start"],
        picked["end"],
    ]
    streams.see_table()
    streams.script("document.querySelector('#tab-findings').click()")
    streams.until(lambda: streams.text("#table-count").endswith("findings"))
    streams.script("document.querySelector('#table tbody tr').focus()")
    from selenium.webdriver.common.keys import Keys

    streams.press(Keys.ENTER)
    streams.until(
        lambda: streams.script("return window.gpuscope.page.state().picked.item") != picked["item"]
    )


def test_by_keyboard_through_the_tables(streams: Page) -> None:
    from selenium.webdriver.common.keys import Keys

    streams.see_table()
    streams.until(lambda: len(streams.chrome.find_elements("css selector", "#table tbody tr")) > 9)
    stops = "return document.querySelectorAll('#table tr[tabindex=\"0\"]').length"
    assert streams.script(stops) == 1
    streams.script("document.querySelector('#table tr[tabindex=\"0\"]').focus()")
    streams.press(Keys.ARROW_DOWN)
    streams.press(Keys.ENTER)
    picked = streams.until(lambda: streams.script("return window.gpuscope.page.state().picked"))
    assert picked["item"] == 1
    streams.until(lambda: streams.script("return document.querySelector('tr.picked')"))
    assert streams.script("return document.activeElement.tagName") == "TR"
    streams.script("document.querySelector('#tab-operations').focus()")
    streams.press(Keys.ARROW_RIGHT)
    streams.until(lambda: streams.text("#table-count").endswith("findings"))
    assert streams.script("return document.activeElement.id") == "tab-findings"


def test_a_trace_without_gpu_work_has_a_page_too(
    chrome: Chrome, serve: Callable[[Path], Page], tmp_path: Path
) -> None:
    path = tmp_path / "idle.sqlite"
    shutil.copyfile(samples.path("streams"), path)
    connection = sqlite3.connect(path)
    for table in ("KERNEL", "MEMCPY", "MEMSET"):
        if connection.execute(
            "SELECT 1 FROM sqlite_master WHERE name = ?", (f"CUPTI_ACTIVITY_KIND_{table}",)
        ).fetchone():
            connection.execute(f"DELETE FROM CUPTI_ACTIVITY_KIND_{table}")
    connection.commit()
    connection.close()
    page = serve(path)
    chrome.get(page.address)
    page.until(lambda: page.script("return document.querySelector('.panel.empty')"))
    assert "Nothing ran on a GPU" in page.text("main")
    before = page.script("return document.documentElement.dataset.theme")
    page.press("t")
    page.until(lambda: page.script("return document.documentElement.dataset.theme") != before)
    assert complaints(page) == []


def test_help_lists_the_keys(streams: Page) -> None:
    streams.press("?")
    streams.until(lambda: streams.script("return document.getElementById('help').open"))
    assert "zoom in" in streams.text("#help")


def test_a_finding_shows_its_evidence(serve: Callable[[Path], Page]) -> None:
    page = serve(samples.path("pageable"))
    page.open()
    before = page.axis()
    page.chrome.find_element("css selector", ".finding > button[data-op]").click()
    page.until(lambda: page.axis() != before)
    page.until(lambda: "launched last of all" in page.text("#details"))
    page.keep("pageable-finding")
    before = page.axis()
    page.chrome.find_elements("css selector", ".example")[1].click()
    page.until(lambda: page.axis() != before)


def test_two_gpus_have_rows_and_figures_of_their_own(serve: Callable[[Path], Page]) -> None:
    page = serve(samples.path("p2p"))
    page.open()
    assert "GPU 1" in page.text(".tl-labels")
    page.keep("p2p")
    # The figures are those of the GPU whose work is picked, until another one is chosen.
    chosen = "return document.querySelector('#device').selectedIndex"
    assert page.script(chosen) == 0
    page.script(
        "const p = window.gpuscope.page;"
        "const row = p.meta.rows.findIndex((r) => r.kind === 'stream' && r.device === 1);"
        "p.pick({ row, item: p.drawn().rows[row].marks[0][3][0], start: 0, end: 1 })"
    )
    page.until(lambda: page.script(chosen) == 1)
    page.until(lambda: "device=1" in page.chrome.current_url)
    page.script(
        "const place = document.querySelector('#device'); place.value = '0';"
        "place.dispatchEvent(new Event('change'))"
    )
    address = page.until(
        lambda: "device=1" not in page.chrome.current_url and page.chrome.current_url
    )
    page.open(address.removeprefix(page.address))
    page.until(lambda: page.text("#details"))
    assert page.script(chosen) == 0


def test_the_time_of_the_host_in_mpi_is_not_on_the_row_of_the_gpu(
    serve: Callable[[Path], Page],
) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    page = serve(samples.path("jacobi_mpi_blocking_r0"))
    page.open()

    def longest(name: str) -> Any:
        """Return the longest piece of a set of classes in the GPU's row: its paint and where."""
        return page.script(
            "const p = window.gpuscope.page, d = p.drawn(), { rows, paints } = p.meta;"
            "const row = rows.findIndex((each) => each.kind === 'device');"
            "const [paint, starts, lengths] ="
            "  d.rows[row].marks.find(([each]) => paints[each].name === arguments[0]);"
            "const i = lengths.indexOf(Math.max(...lengths));"
            "const at = p.place({ row, start: starts[i], end: starts[i] + lengths[i] });"
            "const canvas = document.querySelector('.tl-canvas');"
            "const box = canvas.getBoundingClientRect(), ratio = devicePixelRatio;"
            "const x = at.x - box.left, y = at.y - box.top;"
            "const pen = canvas.getContext('2d');"
            "const [...seen] = pen.getImageData(x * ratio, y * ratio, 1, 1).data.slice(0, 3);"
            "const color = paints[paint][document.documentElement.dataset.theme][0];"
            "return { x: x - box.width / 2, y: y - box.height / 2, seen,"
            "  paint: [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16)) };",
            name,
        )

    def selected(piece: Any) -> bool:
        """Whether a click on a piece selects it."""
        at = round(piece["x"]), round(piece["y"])
        ActionChains(page.chrome).move_to_element_with_offset(page.canvas(), *at).click().perform()
        return bool(page.script("return Boolean(window.gpuscope.page.state().brush)"))

    kernel, mpi = longest("kernel"), longest("mpi")
    assert kernel["seen"] == kernel["paint"]
    assert mpi["seen"] != mpi["paint"]
    assert not selected(mpi)
    assert selected(kernel)


def test_a_million_operations(serve: Callable[[Path], Page], tmp_path: Path) -> None:
    from tests.perf import make_export

    path = tmp_path / "large.sqlite"
    make_export.write(str(path), 1_000_000)
    page = serve(path)
    page.open()
    page.keep("million")
    shares = page.script(
        "const d = window.gpuscope.page.drawn();"
        "return Object.values(d.rows).map((row) => row.columns.length).filter(Boolean).length"
    )
    assert shares > 8
    page.open("?from=700000000&to=700080000")
    assert {"gemm", "H2D copy"} <= set(page.names("stream"))
    page.keep("million-close")
    assert complaints(page) == []


def test_the_report_opens_from_a_file_and_moves(chrome: Chrome, tmp_path: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    path = tmp_path / "report.html"
    assert main(["report", str(samples.path("streams")), "-o", str(path)]) == 0
    page = Page(chrome, path.as_uri())
    chrome.get(page.address)
    page.until(lambda: page.script("return window.gpuscope.page.idle()"))
    page.keep("report")
    whole = page.axis()
    page.press("w")
    assert page.axis()[1] - page.axis()[0] == pytest.approx((whole[1] - whole[0]) / 2, rel=0.01)
    chrome.find_elements("css selector", ".card")[1].click()
    assert page.axis() != whole
    assert "streamed" in page.names("range")
    page.press("/")
    page.press("^streamed$")
    page.until(lambda: page.script("return window.gpuscope.page.state().find") == "^streamed$")
    found = []
    picked = "const p = window.gpuscope.page, { picked } = p.state();"
    picked += "return picked && [p.meta.rows[picked.row].kind, picked.item]"
    for _ in range(4):
        time.sleep(0.3)
        page.press(Keys.ENTER)
        found.append(tuple(page.until(lambda: page.script(picked))))
    assert len(set(found)) == 3  # each instance once, and the first again
    assert found[0] == found[3]
    assert {kind for kind, _ in found} == {"range"}
    page.press(Keys.ESCAPE)
    before = page.script("return document.documentElement.dataset.theme")
    page.press("t")
    assert page.script("return document.documentElement.dataset.theme") != before
    assert complaints(page) == []


def test_a_report_shows_the_shares_of_short_operations_as_the_page_does(
    serve: Callable[[Path], Page], tmp_path: Path
) -> None:
    """Copies of a microsecond, a millisecond apart, seen from far: the GPU is all but idle."""

    def heights(page: Page) -> list[int]:
        """Return how many pixels of the GPU's band are filled, at each step of the screen."""
        found: list[int] = page.script(
            "const canvas = document.querySelector('.tl-canvas'), pen = canvas.getContext('2d');"
            "const row = document.querySelector('.tl-label.device'), top = row.offsetTop + 4;"
            "return Array.from({ length: 40 }, (_, at) => {"
            "  const x = Math.round((at + 0.5) * canvas.width / 40);"
            "  return [...pen.getImageData(x, top, 1, row.offsetHeight - 8).data]"
            "    .filter((_, i) => i % 4 === 3).filter((alpha) => alpha > 0).length;"
            "});"
        )
        return found

    path = tmp_path / "sparse.sqlite"
    with Export(path) as export:
        for start in range(0, 2_000_000_000, 1_000_000):
            export.operation("MEMCPY", start, start + 1_000, copyKind=1, bytes=4)
    page = serve(path)
    page.open()
    shown = heights(page)
    report = tmp_path / "report.html"
    assert main(["report", str(path), "-o", str(report)]) == 0
    page.chrome.get(report.as_uri())
    page.until(lambda: page.script("return document.querySelector('.tl-label.device')"))
    page.until(lambda: any(heights(page)))
    assert heights(page) == shown
    assert 0 < statistics.median(shown) < 5


def test_a_report_tells_why_and_measures_any_stretch_as_the_page_does(
    streams: Page, tmp_path: Path
) -> None:
    from selenium.webdriver.common.keys import Keys

    path = tmp_path / "report.html"
    assert main(["report", str(samples.path("streams")), "-o", str(path)]) == 0
    figures = (
        "return [...document.querySelectorAll('#scope-sums, #parts li, #matrix td, .figures .sums,"
        " .figures .parts li, .figures .matrix td')].map((each) => each.innerText.trim())"
        ".filter((text) => text && !text.includes('possible gain'))"
    )
    streams.open("?from=38000000&to=44000000")
    streams.until(lambda: streams.text("#scope-title") == "Visible window")
    expected = streams.script(figures)
    streams.press("n")
    why = streams.until(lambda: streams.text("#details") and streams.text("#details .why"))
    mark = streams.script("return window.gpuscope.page.state().picked")

    page = Page(streams.chrome, path.as_uri())
    page.chrome.get(page.address)
    page.until(lambda: page.script("return window.gpuscope.page.idle()"))
    whole = page.text(".figures")
    page.script("window.gpuscope.page.show(38000000, 44000000)")
    page.until(lambda: page.text(".scope-title") == "visible window")
    assert sorted(page.script(figures)) == sorted(expected)
    page.press("n")
    assert page.script("return window.gpuscope.page.state().picked.item") == mark["item"]
    assert page.text("#details .why") == why
    page.keep("report-why")
    page.chrome.find_element("css selector", "#details .link.decisive").click()
    assert page.script("return window.gpuscope.page.state().picked.item") != mark["item"]
    page.script("window.gpuscope.page.set({ brush: [38000000, 44000000] })")
    page.until(lambda: page.text(".scope-title") == "selection")
    page.press(Keys.ESCAPE)
    page.press(Keys.ESCAPE)
    page.chrome.find_elements("css selector", ".card")[1].click()
    page.until(lambda: page.text(".scope-title") == "range streamed, 3 instances")
    assert "75.0 %" in page.text(".figures .matrix")
    page.script("document.querySelector('tr[data-low]').focus()")
    page.press(Keys.ENTER)
    page.until(lambda: page.text(".scope-title") == "range chunk0, 7 instances")
    page.script("window.gpuscope.page.state().range = -1; window.gpuscope.page.fit()")
    page.until(lambda: page.text(".scope-title") == "whole trace")
    assert page.text(".figures") == whole
    assert complaints(page) == []


HOSTILE = (
    "<img src=x onerror=\"window.hacked='img'\">",
    "<script>window.hacked='script'</script>",
    "<a href=\"javascript:window.hacked='link'\">press</a>",
    "\x1b[31mred\x07",
    "x" * 1_000_000,
    "{%app_entry%}",
)


def test_names_from_a_trace_do_nothing(serve: Callable[[Path], Page], tmp_path: Path) -> None:
    path = tmp_path / "hostile<b>.sqlite"
    shutil.copyfile(samples.path("streams"), path)
    connection = sqlite3.connect(path)
    names = connection.execute(
        "SELECT DISTINCT id FROM StringIds WHERE id IN (SELECT shortName FROM"
        " CUPTI_ACTIVITY_KIND_KERNEL UNION SELECT textId FROM NVTX_EVENTS)"
    ).fetchall()
    for number, (name,) in enumerate(names):
        text = HOSTILE[number % len(HOSTILE)] + str(number)
        connection.execute("UPDATE StringIds SET value = ? WHERE id = ?", (text, name))
    connection.execute("UPDATE TARGET_INFO_GPU SET name = ?", (HOSTILE[0],))
    connection.commit()
    connection.close()
    page = serve(path)
    page.open()
    for kind in ("range", "stream", "thread", "nvtx"):
        page.click(kind)
        page.until(lambda: "duration" in page.text("#details"))
        page.press("f")
    page.script("window.gpuscope.page.svg()")
    page.chrome.find_element("css selector", ".card").click()
    page.until(lambda: "Range" in page.text("#scope-title"))
    page.keep("hostile")
    report = tmp_path / "report.html"
    assert main(["report", str(path), "-o", str(report)]) == 0
    assert page.script("return window.hacked") is None
    page.chrome.get(report.as_uri())
    page.until(lambda: page.script("return window.gpuscope.page.idle()"))
    page.keep("hostile-report")
    assert page.script("return window.hacked") is None
    assert page.script("return document.querySelectorAll('img[src=x]').length") == 0
    assert page.script("return document.querySelectorAll('#timeline a').length") == 0


def test_requests_for_another_host_are_refused(streams: Page) -> None:
    request = urllib.request.Request(streams.address, headers={"Host": "evil.example"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    assert refused.value.code == 403
    refused.value.close()
