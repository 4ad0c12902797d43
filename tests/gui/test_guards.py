"""Tests that a test that leaves objects behind fails with a message that names them, and that the next test does not
fail.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests import REPOSITORY

UNTIDY = """
import logging, threading, warnings
from PySide6.QtCore import QRunnable, QThread, QThreadPool, QTimer, qWarning
from PySide6.QtWidgets import QWidget
import tests.conftest, tests.gui.conftest

tests.conftest.GONE_WITHIN_S = 0.3
tests.gui.conftest.POOL_ENDS_WITHIN_MS = 100
kept = []
enough = threading.Event()

class Waits(QRunnable):
    def run(self):
        enough.wait(20)

def test_timer(qapp):
    timer = QTimer(qapp)
    kept.append(timer)
    timer.start(100_000)

def test_qthread(qapp):
    thread = QThread()
    thread.setObjectName("forgotten")
    kept.append(thread)
    thread.start()

def test_thread():
    threading.Thread(target=enough.wait, args=(20,), name="lost").start()

def test_pool():
    QThreadPool.globalInstance().start(Waits())

def test_pool_over():
    enough.set()

def test_window(qapp):
    window = QWidget()
    window.setWindowTitle("still there")
    kept.append(window)
    window.show()

def test_qt_warning():
    qWarning("nobody reads this")

def test_warning():
    warnings.warn("this neither")

def test_log():
    logging.getLogger("torchyard_gui.bridge").warning("nor this")

def test_log_that_is_looked_at(caplog):
    logging.getLogger("torchyard_gui.bridge").warning("this is")
    assert "this is" in caplog.text

def test_exception_in_a_slot(qapp, qtbot):
    QTimer.singleShot(0, lambda: 1 / 0)
    qtbot.wait(20)

class Touchy:
    @property
    def __class__(self):
        warnings.warn("do not touch")
        return object

def test_that_keeps_an_object_which_warns_when_it_is_looked_at():
    kept.append(Touchy())

def test_tidy(qtbot):
    window = QWidget()
    qtbot.addWidget(window)
    timer = QTimer(window)
    timer.start(100_000)
    window.show()
    timer.stop()

def test_end():
    kept[0].stop()
    kept[1].quit()
    kept[1].wait()
    kept[2].close()
"""
SAYS = {
    "timer": "ERROR .*This test leaves behind: running timer of QApplication",
    "qthread": "ERROR .*This test leaves behind: running thread forgotten",
    "thread": "ERROR .*This test leaves behind: thread lost",
    "pool": "ERROR .*This test leaves behind: work on Qt's thread pool",
    "window": "ERROR .*This test leaves behind: open window QWidget “still there”",
    "qt_warning": "ERROR .*This test leaves behind: Qt said: nobody reads this",
    "warning": "FAILED .*UserWarning: this neither",
    "log": "ERROR .*This test leaves behind: torchyard_gui.bridge said: nor this",
    "exception_in_a_slot": "FAILED .*Exceptions caught in Qt event loop",
}


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Returns the summary that pytest prints for tests that leave objects behind."""
    folder = tmp_path_factory.mktemp("untidy")
    (folder / "test_untidy.py").write_text(UNTIDY)
    guards = ["-p", "tests.conftest", "-p", "tests.gui.conftest"]
    settings = [f"--rootdir={folder}", "-c", str(REPOSITORY / "pyproject.toml"), "-q", "-ra"]
    packages = [REPOSITORY, *(REPOSITORY / name for name in ("core", "agent", "gui"))]
    paths = os.pathsep.join(map(str, packages))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *guards, *settings, str(folder)],
        env={**os.environ, "PYTHONPATH": paths, "COLUMNS": "300", "QT_QPA_PLATFORM": "offscreen"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "short test summary info" in done.stdout, done.stdout + done.stderr
    return done.stdout.partition("short test summary info")[2]


@pytest.mark.parametrize("left", SAYS)
def test_what_is_left_behind_fails_its_test(summary: str, left: str) -> None:
    kind, _, words = SAYS[left].partition(" ")
    assert re.search(f"{kind} .*::test_{left} - {words}", summary), summary


def test_no_other_test_is_blamed(summary: str) -> None:
    blamed = re.findall(r"(?:ERROR|FAILED) .*::test_(\w+) ", summary)
    assert sorted(blamed) == sorted(SAYS), summary
