"""Fixtures of the Runs page, with simulated runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from PySide6.QtWidgets import QVBoxLayout, QWidget

from tests.core.examples import host
from tests.gui.runs.fake_hosts import Acting, close, runs_model
from tests.gui.theme_fixture import without_theme
from torchyard_core.home import Home
from torchyard_gui.runs.page import RunsPage

MakePage = Callable[..., RunsPage]


@pytest.fixture
def run() -> Acting:
    return Acting((host("gpu-a", 2), host("gpu-b", 2)))


@pytest.fixture
def make_page(qtbot: Any, home: Home) -> Iterator[MakePage]:
    """Returns a function that creates visible pages with simulated runs."""
    made: list[tuple[RunsPage, QWidget]] = []

    def make(*runs: Acting) -> RunsPage:
        with without_theme():
            page = RunsPage(runs_model(home, *runs))
            window = QWidget()
            layout = QVBoxLayout(window)
            layout.addWidget(page.bar)
            layout.addWidget(page, 1)
        qtbot.addWidget(window)
        window.resize(1200, 800)
        window.show()
        with qtbot.waitActive(window):
            window.activateWindow()
        page.list.setFocus()
        made.append((page, window))
        return page

    yield make
    for page, _ in made:
        page.close_feeds()
        close(page.model)


@pytest.fixture
def page(qtbot: Any, home: Home, run: Acting, make_page: MakePage) -> RunsPage:
    """Returns a page with one live run."""
    run.note(home)
    run.start()
    made = make_page(run)
    qtbot.waitUntil(lambda: made.feed is not None and made.feed.was_heard)
    qtbot.waitUntil(lambda: run.is_followed)
    return made
