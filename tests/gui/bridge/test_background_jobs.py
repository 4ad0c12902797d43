"""Tests of jobs: they run on threads, their results arrive on the GUI thread, and no result arrives after closing."""

from __future__ import annotations

import threading

import pytest
import shiboken6
from PySide6.QtCore import QCoreApplication, QObject
from pytestqt.qtbot import QtBot

from torchyard_core.errors import TorchyardError, UsageError
from torchyard_gui.bridge.background_jobs import Cancelled, Job, Jobs

WITHIN_MS = 30_000
WITHIN_S = WITHIN_MS / 1000


@pytest.fixture
def jobs(qtbot: QtBot) -> Jobs:
    return Jobs()


def settle(thread: threading.Thread | None = None) -> None:
    """Processes all events that have been posted."""
    if thread is not None:
        thread.join(WITHIN_S)
    QCoreApplication.processEvents()


def test_work_runs_beside_the_gui_thread_and_its_result_comes_into_it(jobs: Jobs, qtbot: QtBot) -> None:
    threads: list[threading.Thread] = []
    results: list[tuple[int, threading.Thread]] = []

    def work() -> int:
        threads.append(threading.current_thread())
        return 42

    job = jobs.run(work, lambda value: results.append((value, threading.current_thread())))

    qtbot.waitUntil(lambda: bool(results), timeout=WITHIN_MS)
    assert results == [(42, threading.main_thread())]
    assert threads[0] is not threading.main_thread()
    assert job.is_finished


def test_an_error_that_explains_itself_is_handed_over_as_it_is(jobs: Jobs, qtbot: QtBot) -> None:
    errors: list[TorchyardError] = []

    def work() -> None:
        raise UsageError("the fleet has no host `gpu-x`.", hint="Its hosts: gpu-a.")

    jobs.run(work, failed=errors.append)

    qtbot.waitUntil(lambda: bool(errors), timeout=WITHIN_MS)
    assert errors[0].sentence() == "the fleet has no host `gpu-x`. Its hosts: gpu-a."


def test_an_unexpected_error_is_logged_and_reported_as_a_sentence(
    jobs: Jobs, qtbot: QtBot, caplog: pytest.LogCaptureFixture
) -> None:
    errors: list[TorchyardError] = []
    jobs.run(lambda: 1 // 0, failed=errors.append)

    qtbot.waitUntil(lambda: bool(errors), timeout=WITHIN_MS)
    assert "did not foresee" in errors[0].sentence()
    assert "ZeroDivisionError" in caplog.text


def test_a_cancelled_job_calls_no_callback_even_when_its_result_is_on_the_way(jobs: Jobs, qtbot: QtBot) -> None:
    called: list[object] = []
    finish = threading.Event()
    finished = threading.Event()

    def work() -> None:
        finish.wait(WITHIN_S)
        finished.set()

    job = jobs.run(work, called.append, called.append)
    finish.set()
    assert finished.wait(WITHIN_S)
    job.cancel()  # The job may have posted its result before it was cancelled.
    qtbot.wait(50)

    assert called == []
    assert job.is_finished


def test_work_that_asks_stops_where_it_was_cancelled(jobs: Jobs, qtbot: QtBot) -> None:
    job = Job()
    steps: list[int] = []
    stopped = threading.Event()

    def work() -> None:
        try:
            for step in range(100_000):
                steps.append(step)
                if step == 3:
                    job.cancel()
                job.checkpoint(step)
        except Cancelled:
            stopped.set()
            raise

    jobs.run(work, job=job)

    assert stopped.wait(WITHIN_S)
    assert steps == [0, 1, 2, 3]


def test_after_closing_nothing_arrives_and_nothing_starts(jobs: Jobs, qtbot: QtBot) -> None:
    called: list[object] = []
    go_on = threading.Event()
    jobs.run(lambda: go_on.wait(WITHIN_S), called.append, called.append)
    jobs.tell(called.append, "posted before closing")
    jobs.close()
    go_on.set()
    late = jobs.run(lambda: called.append("ran"), called.append)
    jobs.tell(called.append, "late")
    qtbot.wait(50)

    assert called == []
    assert late.is_cancelled


def test_a_result_for_a_deleted_receiver_is_dropped(jobs: Jobs, qtbot: QtBot) -> None:
    called: list[object] = []
    go_on = threading.Event()
    dialog = QObject()
    job = jobs.run(lambda: go_on.wait(WITHIN_S), called.append, owner=dialog)
    shiboken6.delete(dialog)
    go_on.set()

    qtbot.waitUntil(lambda: job.is_finished, timeout=WITHIN_MS)
    assert called == []


def test_jobs_may_be_destroyed_while_work_is_under_way(qtbot: QtBot) -> None:
    jobs = Jobs()
    go_on, told = threading.Event(), threading.Event()

    def work() -> None:
        go_on.wait(WITHIN_S)
        for number in range(1000):
            tell(print, number)
        told.set()

    tell = jobs.tell
    jobs.run(work)
    shiboken6.delete(jobs)
    go_on.set()

    assert told.wait(WITHIN_S)
    settle()


def test_many_results_arrive_each_once(jobs: Jobs, qtbot: QtBot) -> None:
    results: list[int] = []
    for number in range(200):
        jobs.run(lambda number=number: number, results.append)

    qtbot.waitUntil(lambda: len(results) == 200, timeout=WITHIN_MS)
    assert sorted(results) == list(range(200))
