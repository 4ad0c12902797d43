"""Tests of launches with a calendar on real hosts: one is refused, one is booked for later, and one is booked and
launched at once.

A booking ends with its run, or when its launch is cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest

from tests.core.cli.command_runner import torchyard
from tests.end_to_end.running import programs_on
from tests.end_to_end.test_bookings import HOSTS, topology
from tests.gui.end_to_end.conftest import OpenWindow
from tests.gui.end_to_end.simulated_user import LAUNCHED_WITHIN_MS, SimulatedUser
from tests.gui.end_to_end.test_close_confirmation import answer, at_step, question
from tests.lab import Desktop, Lab
from tests.waiting import wait_until
from torchyard_core.booking.model import Booking, Draft, Slot
from torchyard_core.booking.store import BookingStore, open_store
from torchyard_core.formatting import until
from torchyard_gui.bookings.page import BookingsPage

pytestmark = pytest.mark.lab
ZONE = "Europe/Berlin"
AGAIN_WITHIN_MS = 90_000
"""Timeout in milliseconds for synchronizing the calendar, which is tried again half a minute after a failure."""


@pytest.fixture
def kim(gpu_lab: Lab, make_desktop: Callable[..., Desktop], tmp_path: Path) -> Desktop:
    desktop = make_desktop(gpu_lab, python=None)
    url = f"sqlite:///{tmp_path / 'team.sqlite3'}"
    (desktop.home / "settings.yaml").write_text(f"bookings_url: {url}\nperson: kim\nzone: {ZONE}\n")
    torchyard(desktop, "hosts", "check", code=1)  # The hosts have no torch, so the check reports problems.
    return desktop


@pytest.fixture
def lee(kim: Desktop, tmp_path: Path) -> Iterator[BookingStore]:
    store = open_store(f"sqlite:///{tmp_path / 'team.sqlite3'}", "lee")
    yield store
    store.close()


def bookings_page(person: SimulatedUser) -> BookingsPage:
    return cast("BookingsPage", person.window.page("bookings"))


def of_kim(store: BookingStore) -> Booking | None:
    now = datetime.now(UTC)
    found = store.bookings(now - timedelta(hours=1), now + timedelta(days=2), owner="kim", live=True)
    return found[0] if found else None


def stop(person: SimulatedUser, store: BookingStore) -> None:
    """Stops the run and confirms the dialog; the window then releases the run's booking."""
    person.stop_the_run()
    person.wait_until(lambda: person.picture.state == "stopped")
    person.wait_until(lambda: of_kim(store) is None, AGAIN_WITHIN_MS)


def test_the_calendar_is_obeyed_books_for_then_and_books_and_launches_now(
    window_of: OpenWindow, kim: Desktop, gpu_lab: Lab, lee: BookingStore, tmp_path: Path
) -> None:
    start = lee.now()
    lee.remember_slots([Slot(f"GPU-{host}-{number}", host, number) for host in HOSTS for number in range(2)])
    theirs = lee.book(Draft("digits", ("GPU-gpu-a-0", "GPU-gpu-a-1"), start, start + timedelta(hours=2), ZONE))
    person = window_of(kim, topology(tmp_path / "one", hosts=("gpu-a",), gpus=2, says="time.sleep(600)"))
    person.hosts_were_asked()
    page = person.topology
    person.wait_until(lambda: page.planning.booked.others)
    # Before the launch, the window shows when the booking will end.
    end = until(start, theirs.end, ZONE)
    assert "booked by lee until" in page.current_plan.problems[0].message

    # The launch is refused, with the owner and the end of the booking. One click books the next free time.
    panel = person.press_launch()
    person.wait_until(lambda: panel.again.isVisible(), LAUNCHED_WITHIN_MS)
    (told,) = panel.row("booking").texts
    assert "gpu-a:0-1 are booked by lee ('digits')" in told
    assert f"to {theirs.end.astimezone(start.tzinfo):%H:%M}" in told or end in told
    assert "torchyard run" not in told
    line = panel.row("booking")._lines.itemAt(0).widget()
    person.wait_until(lambda: line.height() >= line.heightForWidth(line.width()))
    assert panel.notice.buttons[0].text() == f"Book and launch at {end}"
    person.press(panel.notice.buttons[0])
    person.on_the_runs_page()
    booked = of_kim(lee)
    assert booked is not None
    assert (booked.start, booked.duration) == (theirs.end, timedelta(hours=8))
    assert booked.run_id == person.picture.run_id
    person.wait_until(lambda: person.picture.state == "waiting")
    stop(person, lee)

    # Lee releases the booking. Using GPUs of two hosts requires a booking, so the button is *Book and launch*.
    lee.release(theirs.id)
    person.window.show_page("topology")
    page.open(topology(tmp_path / "two", hosts=HOSTS, says="time.sleep(600)"))
    person.wait_until(lambda: len(page.document.value.pools) == 2)
    panel = person.press_launch()
    person.wait_until(lambda: panel.question.isVisible() or panel.again.isVisible(), LAUNCHED_WITHIN_MS)
    assert "only with a booking" in panel.question.sentence.text()
    assert "--book" not in panel.question.advice.text()
    assert panel.question.yes.text() == "Book and launch"
    person.press(panel.question.yes)
    person.on_the_runs_page()
    person.wait_until(lambda: person.picture.state == "running")
    booked = of_kim(lee)
    assert booked is not None
    assert booked.run_id == person.picture.run_id
    assert len(booked.gpus) == 2

    # The user opens the booking from the run's page, sees there that the run is active, and returns to the run.
    person.press(person.button(person.runs.bar, "Booking"))
    calendar = bookings_page(person)
    person.wait_until(lambda: calendar.surface.selection == booked.id)
    assert person.window.current == "bookings"
    assert calendar.details.title.text() == "work"
    person.press(calendar.details.show_run)
    assert person.window.current == "runs"
    stop(person, lee)
    person.window.show_page("bookings")
    person.wait_until(lambda: not calendar.model.booking(booked.id).is_live)  # type: ignore[union-attr]  # The value is not None in this test.
    assert lee.booking(booked.id).state == "released"
    person.window.show_page("runs")

    # The user closes the window before the second run starts. The window asks for confirmation, and then cancels the
    # launch and its booking.
    closed: list[bool] = []
    person.window.closed.connect(lambda: closed.append(True))
    runs = person.runs
    person.restart_the_run()
    person.wait_until(lambda: question(person), LAUNCHED_WITHIN_MS)
    answer(person, "Book and launch")

    def close() -> None:
        assert of_kim(lee) is not None
        person.window.show_page("topology")
        person.window.close()
        assert not closed
        answer(person, "Cancel the launch and close")
        person.window.close()  # If the user closes the window again, it shows the progress of the cancellation.
        assert person.window.current == "runs"
        assert runs.run_view.work.text == "Cancelling …"

    asked = at_step(runs.restarting.job, "preparing", close)
    person.wait_until(lambda: closed, LAUNCHED_WITHIN_MS)
    assert asked
    assert of_kim(lee) is None
    wait_until(lambda: not programs_on(gpu_lab))
    assert len(runs.model.history.records()) == 2
