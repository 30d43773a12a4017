"""What was worked out last is not worked out again."""

from __future__ import annotations

import threading
import time

from gpuscope.latest import Latest


def test_only_the_same_objects_and_settings_find_it() -> None:
    made: list[int] = []
    latest: Latest[int] = Latest()

    def make() -> int:
        made.append(len(made))
        return len(made)

    one, other = [1], [1]
    assert latest.get((one,), ("a",), make) == 1
    assert latest.get((one,), ("a",), make) == 1
    assert latest.get((other,), ("a",), make) == 2
    assert latest.get((other,), ("b",), make) == 3
    assert latest.get((one,), ("a",), make) == 4


def test_threads_wait_for_the_one_that_works_it_out() -> None:
    made: list[int] = []
    latest: Latest[int] = Latest()

    def make() -> int:
        time.sleep(0.05)
        made.append(1)
        return 7

    threads = [threading.Thread(target=latest.get, args=((made,), (), make)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]
