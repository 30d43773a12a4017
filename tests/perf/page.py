"""Measure how fast the page answers: laying out, views at random zooms, figures of a window, paint.

Usage: python -m tests.perf.page TRACE [TRACE ...] [--browser] [--views N]

Views are as wide as the trace down to a millionth of it, on a logarithmic scale, anywhere in it,
for a screen of 1,200 pixels and half a view on either side, as the page's script asks. With
--browser a headless Chromium of 1440 × 900 shows the page: from the change of the view to its paint
with the data of that view, and the time of the paint alone.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import logging
import resource
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from gpuscope import api
from gpuscope.app import server
from gpuscope.app.state import Session
from gpuscope.figures.details import details
from gpuscope.figures.listing import listing
from gpuscope.figures.timeline import Timeline

PIXELS = 1_200
NARROWEST = 1e-6


def random_views(end_ns: int, count: int) -> list[tuple[int, int]]:
    random = np.random.default_rng(5)
    wide = end_ns * NARROWEST ** random.random(count)
    low = random.random(count) * (end_ns - wide)
    return [(int(a), int(a + max(b, 20))) for a, b in zip(low, wide, strict=True)]


def spread(what: str, milliseconds: Sequence[float]) -> None:
    found = np.percentile(milliseconds, [50, 90, 99, 100])
    names = ("median", "90 %", "99 %", "longest")
    row = "  ".join(f"{name} {ms:8.2f}" for name, ms in zip(names, found, strict=True))
    print(f"  {what:<34} {row}  ms", flush=True)


def timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1e3


def gigabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def measure(path: Path, count: int, browser: bool) -> None:
    start = time.perf_counter()
    trace = api.open_trace(path)
    read_s = time.perf_counter() - start
    assert trace.operations is not None
    print(f"{path.name}: {len(trace.operations):,} operations, read in {read_s:.1f} s", flush=True)
    before = gigabytes()
    start = time.perf_counter()
    timeline = Timeline([trace])
    laid_s = time.perf_counter() - start
    print(
        f"  laid out in {laid_s:.1f} s; peak memory {before:.1f} GB before, {gigabytes():.1f} after"
    )
    rows = [number for number, row in enumerate(timeline.rows) if row.kind != "engine"]
    views = random_views(timeline.end_ns, count)
    sizes, answers, windows, tables, stories = [], [], [], [], []
    stream = next(number for number, row in enumerate(timeline.rows) if row.kind == "stream")
    items = np.random.default_rng(6).integers(0, len(trace.operations), count)
    (device,) = timeline.row_of_device[0]
    for low, high in views:
        half = (high - low) // 2
        start = time.perf_counter()
        seen = timeline.view(low - half, high + half, 2 * PIXELS, rows)
        text = json.dumps(seen, separators=(",", ":"))
        answers.append((time.perf_counter() - start) * 1e3)
        sizes.append(len(text) / 1e3)
        windows.append(timed(functools.partial(timeline.together, 0, device, low, high)))
        tables.append(timed(functools.partial(listing, timeline, low, high)))
    for item in items[:50].tolist():
        stories.append(timed(functools.partial(details, timeline, stream, item)))
    spread("a view, as JSON", answers)
    spread("figures of the window", windows)
    spread("the table of the window", tables)
    spread("what an operation waited for", stories)
    print(f"  size of an answer: median {np.median(sizes):.0f} kB, largest {max(sizes):.0f} kB")
    del timeline  # the page lays out its own
    gc.collect()  # not while the page is timed
    if browser:
        paint(Session([trace]), views[: min(count, 60)])


def paint(session: Session, views: Sequence[tuple[int, int]]) -> None:
    from selenium import webdriver

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    httpd = server.bind(server.make_app(session).server, "127.0.0.1", 0)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for argument in ("--headless=new", "--no-sandbox", "--window-size=1440,990"):
        options.add_argument(argument)
    chrome = webdriver.Chrome(
        options=options, service=webdriver.ChromeService(shutil.which("chromedriver"))
    )
    chrome.set_script_timeout(60)
    chrome.get(f"http://127.0.0.1:{httpd.server_port}/")
    while not chrome.execute_script(
        "return window.gpuscope && gpuscope.page && gpuscope.page.idle()"
    ):
        time.sleep(0.1)
    totals, paints = [], []
    for low, high in views:
        total, alone = chrome.execute_async_script(
            "const [low, high, done] = arguments, page = window.gpuscope.page;"
            "const start = performance.now(); page.show(low, high);"
            "const look = () => page.idle() ? done([performance.now() - start, page.paint_ms])"
            " : requestAnimationFrame(look); requestAnimationFrame(look);",
            low,
            high,
        )
        totals.append(total)
        paints.append(alone)
    chrome.quit()
    httpd.shutdown()
    spread("browser: view to its paint", totals)
    spread("browser: the paint alone", paints)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--views", type=int, default=300)
    parser.add_argument("--browser", action="store_true")
    asked = parser.parse_args()
    for each in asked.traces:
        measure(each, asked.views, asked.browser)
