"""Fixtures for all tests, and the guard against leaked threads, processes and warnings."""

from __future__ import annotations

import gc
import logging
import signal
import threading
from collections.abc import Generator, Iterator
from contextlib import suppress

import pytest

from tests.lab.hosts.processes import children_of_this_process
from tests.lab.lab import open_host_pids
from tests.lab_fixtures import (
    _agent,
    _commands,
    _module_cluster,
    _three_hosts,
    bare_hosts,
    bare_module_lab,
    cluster,
    desktop,
    gpu_lab,
    lab,
    lab3,
    make_cluster,
    make_desktop,
    module_lab,
    needs_lab,
    torch_for_hosts,
    warm_python,
)
from tests.waiting import NotInTime, wait_until

__all__ = [
    "_agent",
    "_commands",
    "_module_cluster",
    "_three_hosts",
    "bare_hosts",
    "bare_module_lab",
    "cluster",
    "desktop",
    "gpu_lab",
    "lab",
    "lab3",
    "make_cluster",
    "make_desktop",
    "module_lab",
    "needs_lab",
    "torch_for_hosts",
    "warm_python",
]

GONE_WITHIN_S = 20.0
KEPT = ("multiprocessing.resource_tracker", "-m tests.fork_server")
"""Processes whose command lines contain one of these texts are not reported as leaks, because later tests use them,
too.
"""


def pytest_configure() -> None:
    """Restores Python's handling of SIGINT, which a shell disables in background jobs.

    Tests interrupt programs that they have started, and these programs inherit the setting.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Imports the tests without the garbage collector, which would take a fifth of the time of the imports."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Freezes all objects that exist after the imports, because the guard below collects garbage after each test."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs files with training tests first, and then files that use hosts, which mainly wait, mixed with others, which
    mainly compute. If tests run in parallel, all cores therefore have work, and the last files are short.
    """
    trains = {item.path for item in items if item.get_closest_marker("train")}
    waits = {item.path for item in items if item.get_closest_marker("lab")} - trains
    others = {item.path for item in items} - trains - waits
    places = dict.fromkeys(trains, -1.0)
    for paths, end in ((waits, 0.8), (others, 1.0)):
        places |= {path: end * number / len(paths) for number, path in enumerate(sorted(paths))}
    items.sort(key=lambda item: places[item.path])


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves a non-daemon thread, a child process, an asyncio error or a logged Torchyard warning.

    A test that expects such a warning requests the `caplog` fixture.
    """
    threads = set(threading.enumerate())
    children = set(children_of_this_process())
    complaints = _Complaints(of_ours="caplog" not in request.fixturenames)
    logging.getLogger().addHandler(complaints)
    try:
        yield
        with suppress(NotInTime):
            wait_until(lambda: not _left_behind(threads, children), GONE_WITHIN_S)
        left = _left_behind(threads, children)
        # asyncio reports such errors only when the objects are collected.
        gc.collect()
        # The remaining objects come from imports or are kept for other tests. Without `freeze`, collecting them takes
        # 0.25 s after each test.
        gc.freeze()
    finally:
        logging.getLogger().removeHandler(complaints)
    left += complaints.messages
    if left:
        pytest.fail("This test leaves behind: " + "; ".join(left), pytrace=False)


def _left_behind(threads: set[threading.Thread], children: set[int]) -> list[str]:
    left = [f"thread {thread.name}" for thread in threading.enumerate() if thread not in threads and not thread.daemon]
    ours = children | open_host_pids()
    for pid, command in children_of_this_process().items():
        if pid not in ours and not any(words in command for words in KEPT):
            left.append(f"process {pid} ({command})")
    return left


class _Complaints(logging.Handler):
    """Collects errors of asyncio (exceptions that were never retrieved, and pending tasks that were destroyed) and
    Torchyard's warnings.
    """

    def __init__(self, *, of_ours: bool) -> None:
        super().__init__(logging.WARNING)
        self._of_ours = of_ours
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        package = record.name.partition(".")[0]
        if package == "asyncio" and record.levelno >= logging.ERROR:
            self.messages.append(f"asyncio: {record.getMessage()}")
        elif package.startswith("torchyard_") and self._of_ours:
            self.messages.append(f"{record.name} said: {record.getMessage()}")
