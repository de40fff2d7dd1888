"""What the tests of recipes share: many experiments at once, each led from mark to mark."""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import cloudpickle

from labkit.errors import LabError

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import it


def side_by_side(play, experiments) -> list:
    """What `play` returns for each experiment, all played at the same time."""
    experiments = list(experiments)
    with ThreadPoolExecutor(len(experiments)) as pool:
        return list(pool.map(play, experiments))


def eventually(look, what: str, timeout_s: float = 20) -> None:
    """Look each 40 ms, as many do so at once. The bound decides about failure only."""
    deadline = time.monotonic() + timeout_s
    while not look():
        assert time.monotonic() < deadline, f"not so within {timeout_s} s: {what}"
        threading.Event().wait(0.04)


def reaches(worker, mark: str, nth: int = 1) -> bool:
    """Lead it to the nth such mark; False if it ended before."""
    try:
        for _ in range(nth):
            worker.run_to(mark, timeout_s=60)
    except LabError:
        assert worker.state in ("done", "killed"), f"{worker} did not reach {mark!r}"
        return False
    return True
