"""Fixtures of the Runs page, with simulated runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from PySide6.QtWidgets import QWidget

from tests.core.examples import host
from tests.gui.page_window import show_page
from tests.gui.runs.fake_hosts import Acting, close, runs_model
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
        page, window = show_page(qtbot, lambda: RunsPage(runs_model(home, *runs)), 1200, 800)
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
