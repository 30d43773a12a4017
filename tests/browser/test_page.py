"""The page in a real Chromium: what a person sees and does."""

from __future__ import annotations

import shutil
import sqlite3
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
        self.until(lambda: self.script("return document.querySelectorAll('#matrix .hm').length"))
        self.until(lambda: self.axis() is not None and "from=" in self.chrome.current_url)

    def script(self, code: str, *arguments: Any) -> Any:
        return self.chrome.execute_script(code, *arguments)

    def until(self, reached: Callable[[], Any]) -> Any:
        """Wait until `reached` gives something true, and return it."""
        end = time.monotonic() + _PATIENCE_S
        while not (value := reached()):
            assert time.monotonic() < end, "the page did not get there"
            time.sleep(0.05)
        return value

    def axis(self) -> tuple[float, float] | None:
        """Return the time axis in ms."""
        found = self.script(
            "const g = document.querySelector('#timeline .js-plotly-plot');"
            "return g && g.layout && g.layout.xaxis && g.layout.xaxis.range;"
        )
        return (float(found[0]), float(found[1])) if found else None

    def text(self, selector: str) -> str:
        return str(self.script("return document.querySelector(arguments[0]).innerText", selector))

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
        session = Session(api.open_trace(path), api.run_limits(path))
        httpd = server.bind(server.make_app(session), "127.0.0.1", 0)
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
    assert before is not None
    layer = streams.chrome.find_element("css selector", "#timeline .nsewdrag")
    beside = int(layer.rect["width"] / 4)  # from the middle
    origin = ScrollOrigin.from_element(layer, beside, 0)

    def scrolled() -> tuple[float, float] | None:
        # The chart takes no wheel while it is being drawn.
        ActionChains(streams.chrome).scroll_from_origin(origin, 0, -200).perform()
        time.sleep(0.5)
        return streams.axis() if streams.axis() != before else None

    after = streams.until(scrolled)
    at = before[0] + 0.75 * (before[1] - before[0])
    assert after[1] - after[0] < before[1] - before[0]
    assert (at - after[0]) / (after[1] - after[0]) == pytest.approx(0.75, abs=0.02)
    streams.until(lambda: streams.text("#scope-title") == "Visible window")


def test_a_zoom_that_repeats_an_earlier_one_counts(streams: Page) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.actions.wheel_input import ScrollOrigin

    layer = streams.chrome.find_element("css selector", "#timeline .nsewdrag")
    origin = ScrollOrigin.from_element(layer, 0, 0)
    double_click = ActionChains(streams.chrome).double_click(layer)
    fits: list[Callable[[], None]] = [lambda: streams.press("f"), double_click.perform]
    for fit in fits:
        ActionChains(streams.chrome).scroll_from_origin(origin, 0, -200).perform()
        streams.until(lambda: streams.text("#scope-title") == "Visible window")
        fit()
        streams.until(lambda: streams.text("#scope-title") == "Whole trace")


def test_buttons_and_keys_zoom_move_and_fit(streams: Page) -> None:
    start = streams.axis()
    assert start is not None
    streams.chrome.find_element("id", "zoom-in").click()
    closer = streams.until(lambda: streams.axis() != start and streams.axis())
    assert closer[1] - closer[0] == pytest.approx((start[1] - start[0]) / 2, rel=0.01)
    streams.press("d")
    right = streams.until(lambda: streams.axis() != closer and streams.axis())
    assert right[0] > closer[0]
    streams.until(lambda: "from=" in streams.chrome.current_url)
    streams.press("f")
    streams.until(lambda: streams.axis() == start)


def test_dragging_moves(streams: Page) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    start = streams.axis()
    assert start is not None
    layer = streams.chrome.find_element("css selector", "#timeline .nsewdrag")
    ActionChains(streams.chrome).click_and_hold(layer).move_by_offset(-200, 0).release().perform()
    moved = streams.until(lambda: streams.axis() != start and streams.axis())
    assert moved[0] > start[0]
    assert moved[1] - moved[0] == pytest.approx(start[1] - start[0], rel=0.01)


def test_hovering_tells_what_an_operation_is(streams: Page) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    bar = streams.chrome.find_elements("css selector", "#timeline .trace.bars .point path")
    # Range bars come first; the last one is a copy to the host.
    ActionChains(streams.chrome).move_to_element(bar[-1]).perform()
    text = streams.until(
        lambda: streams.script(
            "const t = document.querySelector('#timeline .hoverlayer .hovertext');"
            "return t && t.textContent"
        )
    )
    for part in ("D2H copy", "67.1 MB", "GB/s", "stream", "pinned"):
        assert part in text


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


def test_the_range_picker_works_by_keyboard_and_mouse(streams: Page) -> None:
    streams.chrome.find_element("id", "range").click()
    option = streams.until(
        lambda: streams.script(
            "return [...document.querySelectorAll('.dash-dropdown-option')]"
            ".find(option => option.innerText.trim() === 'sequential')"
        )
    )
    option.click()
    streams.until(lambda: streams.text("#scope-title") == "Range sequential, 3 instances")


def test_light_and_dark(streams: Page) -> None:
    light = streams.script("return getComputedStyle(document.body).backgroundColor")
    streams.press("t")
    streams.until(
        lambda: streams.script("return getComputedStyle(document.body).backgroundColor") != light
    )
    streams.until(
        lambda: (
            streams.script(
                "return document.querySelector('#timeline .js-plotly-plot').layout.font.color"
            )
            == "#e6edf5"
        )
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


def test_names_stay_visible_in_a_close_view(streams: Page) -> None:
    streams.open("?from=38000000&to=39000000")
    written = streams.script(
        "return [...document.querySelectorAll('#timeline .textpoint')].map(e => e.textContent)"
    )
    assert "streamed" in written
    assert any(name.startswith("H2D") for name in written)


def test_the_page_fits_a_projector(streams: Page) -> None:
    streams.chrome.set_window_size(1280, 800)
    streams.open()
    assert streams.script(
        "return document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    )
    streams.keep("streams-1280")


def test_every_control_has_a_name(streams: Page) -> None:
    assert (
        streams.script(
            "return [...document.querySelectorAll('button')]"
            ".filter(b => !b.innerText.trim() && !b.getAttribute('aria-label')).length"
        )
        == 0
    )
    assert streams.script("return document.querySelectorAll('main, header, h1').length") == 3


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
    page.chrome.find_element("css selector", ".finding:not([disabled])").click()
    page.until(lambda: page.axis() != before)
    page.keep("pageable-finding")


def test_two_gpus_have_lanes_and_figures_of_their_own(serve: Callable[[Path], Page]) -> None:
    page = serve(samples.path("p2p"))
    page.open()
    assert "GPU 1" in page.text("#timeline")
    page.keep("p2p")


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
    from selenium.webdriver.common.action_chains import ActionChains

    for bar in page.chrome.find_elements("css selector", "#timeline .point path")[:40:4]:
        ActionChains(page.chrome).move_to_element(bar).perform()
    page.chrome.find_element("css selector", ".card").click()
    page.until(lambda: "Range" in page.text("#scope-title"))
    page.keep("hostile")
    assert page.script("return window.hacked") is None
    assert page.script("return document.querySelectorAll('img[src=x]').length") == 0
    assert page.script("return document.querySelectorAll('#timeline a').length") == 0


def test_requests_for_another_host_are_refused(streams: Page) -> None:
    request = urllib.request.Request(streams.address, headers={"Host": "evil.example"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    assert refused.value.code == 403
    refused.value.close()
