"""Tests of the planned time of the Topology page, and of the links between runs and bookings.

The tests use the whole window with an SQLite store and a clock that stands still. They contact no host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QAccessible
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QPushButton
from pytestqt.qtbot import QtBot
from tools.launch_phases import StagedLaunch
from tools.sample_fleet import KINDS, let_hosts_answer, write_sample

from tests.gui.windows.test_keyboard_access import nameless
from torchyard_core.booking.model import Booking, Draft, Slot
from torchyard_core.booking.planned_time import PlannedTime
from torchyard_core.booking.store import BookingStore, open_store
from torchyard_core.booking.sync.cached_calendar import Calendar
from torchyard_core.launch.runs.history import History
from torchyard_gui import app
from torchyard_gui.bookings.page import BookingsPage
from torchyard_gui.launch import panel as launch_panel
from torchyard_gui.runs.page import RunsPage
from torchyard_gui.topology.page import TopologyPage
from torchyard_gui.topology.palette_list import COUNT
from torchyard_gui.windows.signal_connections import SignalConnections

ZONE = "Europe/Berlin"
NOW = datetime(2031, 1, 8, 8, 0, tzinfo=UTC)
"""A Wednesday at 09:00 in Berlin."""
HOUR = timedelta(hours=1)
LEFT, Key = Qt.MouseButton.LeftButton, Qt.Key


class Office:
    """The window of the user `kim`, and the team's calendar."""

    def __init__(self, qtbot: QtBot, folder: Path):
        self.qtbot = qtbot
        self.folder = folder
        self.now = NOW
        self.places = write_sample(folder / "yard", "eight")
        self.store = self.opened(f"sqlite:///{self.places[0].bookings_file}", "kim")
        slots = [
            Slot(f"GPU-{host}-{at}", host, at, kind[1], kind[2])
            for host, kind in KINDS.items()
            for at in range(kind[0])
        ]
        self.store.remember_slots(slots)

    def opened(self, url: str, person: str) -> BookingStore:
        return open_store(url, person, clock=lambda: self.now)

    def open(self) -> None:
        window = self.window = app.make_window(*self.places)
        self.qtbot.addWidget(window, before_close_func=lambda _: self.wiring.document.start_new())
        window.painted.disconnect()  # After its first paint, the window would contact hosts.
        wiring = window.findChild(SignalConnections)
        assert isinstance(wiring, SignalConnections)
        self.wiring = wiring
        wiring.runs.refresh = lambda: None  # type: ignore[method-assign]  # This prevents contact with hosts.
        let_hosts_answer(wiring.fleet)
        url = f"sqlite:///{self.places[0].bookings_file}"
        seen = self.folder / "seen.json"
        model = wiring.bookings
        model.clock = lambda: self.now
        model._open = lambda: (Calendar(url, "kim", seen, open_it=self.opened), ZONE)
        window.make_pages()
        window.resize(1440, 900)
        window.show()
        window.activateWindow()
        self.qtbot.waitUntil(window.isActiveWindow)
        wiring._use_calendar()
        self.wait_until(lambda: model.has_loaded)

    @property
    def page(self) -> TopologyPage:
        return cast("TopologyPage", self.window.page("topology"))

    def book(self, owner: str, gpus: str, begin: float, end: float, **more: Any) -> Booking:
        ids = tuple(f"GPU-{word.replace(':', '-')}" for word in gpus.split())
        start, finish = self.now + begin * HOUR, self.now + end * HOUR
        return self.store.book(Draft(more.pop("title", "digits"), ids, start, finish, ZONE, owner=owner, **more))

    def wait_until(self, condition: Callable[[], object]) -> None:
        self.qtbot.waitUntil(lambda: bool(condition()))

    def free(self, host: str) -> str:
        row = self.page.palette_.hosts.row_of(host)
        assert row is not None
        return str(row.data(COUNT))

    def slot(self, host: str, gpu: int) -> str:
        """Returns the tool tip of a slot."""
        return self.page.scene.tooltip_at(self.page.scene.rect_of_slot(host, gpu).center())

    def ask_when(self, start: str, lasts: str) -> None:
        """Sets the planned time: presses its button, fills the fields, and presses Enter."""
        QTest.mouseClick(self.page.bar.when, LEFT)
        popup = self.page.bar.when.popup
        assert popup.isVisible()
        for field, text in ((popup.start, start), (popup.lasts, lasts)):
            field.setFocus()
            field.selectAll()
            QTest.keyClicks(field, text)
        QTest.keyClick(popup.lasts, Key.Key_Return)


@pytest.fixture
def office(qtbot: QtBot, tmp_path: Path) -> Iterator[Office]:
    """Returns an `Office` whose window is not open yet, so that a test can first add bookings to the calendar."""
    made = Office(qtbot, tmp_path)
    yield made
    made.store.close()


def test_free_means_free_for_the_chosen_time_in_slots_palette_inspector_and_plan(office: Office) -> None:
    office.book("lee", "gpu-c:0 gpu-c:1", 0, 4)
    office.book("sam", "gpu-c:2", 6, 10, title="sweep")
    office.book("sam", "gpu-c:3", 20, 30)
    office.book("kim", "gpu-e:0 gpu-e:3", 0, 12, title="mine")
    office.open()
    page = office.page
    page.editor.show_host("gpu-c")
    office.wait_until(lambda: office.free("gpu-c") != "4 of 4 free")

    # In the next 8 h, two GPUs are booked from now and a third one from 15:00. A fourth GPU is booked only later, so
    # the plan uses it.
    assert page.bar.when.accessibleName() == "When: now, 8 h"
    assert page.current_plan.replica("worker-16").host == "gpu-c"
    assert [gpu.index for gpu in page.current_plan.replica("worker-16").gpus] == [3]
    assert office.slot("gpu-c", 0) == "lee has booked GPU 0 of gpu-c until 13:00: “digits”"
    assert office.slot("gpu-c", 2).startswith("sam has booked GPU 2 of gpu-c from 15:00 to 19:00")
    tip = page.palette_.hosts.row_of("gpu-c").toolTip()  # type: ignore[union-attr]  # The value is not None in this test.
    assert "booked by lee until 13:00, sam from 15:00 to 19:00" in tip
    page.editor.select(["worker-17"])
    lost = next(problem for problem in page.current_plan.problems if problem.code == "no-room")
    assert "2 booked by lee until 13:00, 1 booked by sam from 15:00 to 19:00" in lost.message
    assert page.editor.why_not(["worker-1"], "gpu-c:0") == "gpu-c:0 is booked by lee until 13:00"
    page.editor.pin(["chief-0"], "gpu-e:0")
    assert office.slot("gpu-e", 3) == "You have booked GPU 3 of gpu-e until 21:00: “mine”"
    # All four GPUs are in the user's own booking, so they count as free for this topology, which already uses one of
    # them.
    assert office.free("gpu-e") == "3 of 4 free"
    page.editor.select(["chief-0"])
    assert page.inspector.place.booked.text() == "In your booking “mine”, until 21:00."

    # With a planned length of two hours, the booking from 15:00 has no effect.
    office.ask_when("now", "2h")
    assert page.bar.when.accessibleName() == "When: now, 2 h"
    assert sorted(
        gpu.index for planned in page.current_plan.replicas if planned.host == "gpu-c" for gpu in planned.gpus
    ) == [2, 3]

    # Tomorrow at 07:00, the GPUs that Lee has booked are free again, and the present use of gpu-d has no effect.
    assert office.free("gpu-d") == "0 of 4 free"
    office.ask_when("tomorrow 7", "4h")
    assert page.bar.when.accessibleName() == "When: Thu 9 Jan 07:00, 4 h"
    assert office.free("gpu-d") == "4 of 4 free"
    taken = sorted(
        gpu.index for planned in page.current_plan.replicas if planned.host == "gpu-c" for gpu in planned.gpus
    )
    assert taken == [0, 1, 2]
    assert page.bar.launch.accessibleName() == "Book and launch …"

    # The page considers bookings that another desktop has made. A planned time in the past becomes the current time.
    office.book("lee", "gpu-c:0 gpu-c:1 gpu-c:2", 22, 24)
    office.wait_until(lambda: office.free("gpu-c") == "4 booked")
    office.now += 23 * HOUR
    office.wiring.planning.refresh()
    assert page.bar.when.accessibleName() == "When: now, 4 h"
    assert page.bar.launch.accessibleName() == "Launch …"


def test_the_planned_time_is_set_by_keyboard_validated_stored_and_launched(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    office.open()
    page = office.page
    page.view.setFocus()
    QTest.keyClick(page.view, Key.Key_T, Qt.KeyboardModifier.ControlModifier)
    popup = page.bar.when.popup
    office.wait_until(lambda: QApplication.activePopupWidget() is popup and popup.start.hasFocus())
    QApplication.processEvents()
    assert popup.isVisible()
    for widget in [*popup.findChildren(QPushButton), popup.start, popup.lasts, page.bar.when]:
        told = QAccessible.queryAccessibleInterface(widget)
        assert told is not None
        assert told.text(QAccessible.Text.Name).strip(), widget
    QTest.keyClicks(popup.start, "08:00")
    QTest.keyClick(popup.start, Key.Key_Return)
    assert popup.isVisible()
    assert popup.start_row.note.text().startswith("08:00 is past")
    QTest.keyClick(popup.start, Key.Key_Escape)
    assert not popup.isVisible()
    office.window.resize(960, 600)  # A narrow window shows only the time, but screen readers get the full text.
    assert (page.bar.when.text(), page.bar.when.accessibleName()) == ("now, 8 h", "When: now, 8 h")
    office.window.resize(1440, 900)

    office.ask_when("18:00", "3h")
    wanted = PlannedTime(NOW + 9 * HOUR, 3 * HOUR)
    assert office.wiring.planning.planned == wanted
    assert "A launch books the GPUs" in page.bar.when.accessibleDescription()

    monkeypatch.setattr(launch_panel, "LaunchJob", StagedLaunch)  # The launch is simulated and contacts no host.
    office.wiring._launch(page.document.as_file())
    panel = office.wiring.launch_panel
    assert panel.job is not None
    assert panel.job._planned == wanted
    panel.job.is_over = True
    panel.hide()

    office.window.close()
    office.open()
    assert office.page.bar.when.text() == "When: 18:00, 3 h"


def test_an_unavailable_calendar_is_reported_in_the_control(office: Office) -> None:
    office.book("lee", "gpu-c:0", 0, 4)
    office.open()
    office.wait_until(lambda: office.wiring.planning.booked.others)
    seen = office.wiring.bookings.seen
    office.wiring.bookings.seen = replace(seen, is_live=False)
    office.wiring.planning.refresh()
    assert "The calendar does not answer; bookings are as of 2031-01-08 08:00 UTC." in office.page.bar.when.toolTip()
    assert office.wiring.planning.booked.others


def test_booking_and_run_lead_to_each_other(office: Office) -> None:
    history = History(office.places[0].history)
    run = history.records()[0]
    made_for = office.book("kim", "gpu-a:0", 0, 4, title="its own", run_id=run.run_id)
    held = office.book("kim", "gpu-a:1", 0, 4, title="held")
    other = history.records()[1]
    history.save(replace(other, booking=held.id))
    office.open()
    office.wiring.runs.read_history()
    bookings = cast("BookingsPage", office.window.show_page("bookings"))
    office.wait_until(lambda: bookings.surface.picture.blocks)
    runs = cast("RunsPage", office.window.page("runs"))

    def shows(run_id: str) -> bool:
        return runs.feed is not None and runs.feed.run.run_id == run_id

    for booking, wanted in ((made_for, run.run_id), (held, other.run_id)):
        office.window.show_page("bookings")
        bookings.show_booking(booking.id)
        office.wait_until(lambda booking=booking: bookings.surface.selection == booking.id)
        assert bookings.details.show_run.isVisible()
        QTest.mouseClick(bookings.details.show_run, LEFT)
        assert office.window.current == "runs"
        office.wait_until(lambda wanted=wanted: shows(wanted))

    menu = bookings.acts.menu(bookings, has_booking=True)
    assert bookings.acts.run in menu.actions()
    menu.deleteLater()
    # *Booking* shows the run's booking, although the calendar was showing a different week.
    bookings.go(3)
    button = next(one for one in runs.bar.findChildren(QPushButton) if one.text() == "Booking")
    assert button.isVisible()
    QTest.mouseClick(button, LEFT)
    assert office.window.current == "bookings"
    office.wait_until(lambda: bookings.surface.selection == held.id)
    assert bookings.details.title.text() == "held"

    # If the booking has not been loaded, the window queries the store for it.
    far = office.book("kim", "gpu-a:2", 24 * 50, 24 * 50 + 2, title="far")
    bookings.show_booking(far.id)
    office.wait_until(lambda: bookings.surface.selection == far.id)
    # A run that has no booking shows no link to one.
    runs.show_run(history.records()[2].run_id)
    office.window.show_page("runs")
    office.wait_until(lambda: not button.isVisible())


def test_focusable_widgets_of_the_bookings_page_have_names(office: Office) -> None:
    """Covers each view of the calendar, each drawer and dialog, and the reminder."""
    mine = office.book("kim", "gpu-a:0", 0, 4)
    history = History(office.places[0].history)
    history.save(replace(history.records()[0], state="running", ended="", booking=mine.id))
    office.open()
    page = cast("BookingsPage", office.window.show_page("bookings"))
    office.wait_until(lambda: page.surface.picture.blocks)
    acts = page.acts
    page.show_booking(mine.id)
    for act in (acts.find, acts.waitlist, acts.agenda, acts.day):
        assert nameless(office.window) == []
        act.trigger()
    assert nameless(office.window) == []
    for act in (acts.book, acts.edit, acts.usage, acts.rules, acts.release):
        act.trigger()
        assert page.dialog is not None, act.text()
        assert nameless(page.dialog) == [], act.text()
    page.dialogs.close()
    office.now += timedelta(hours=3, minutes=50)
    office.wiring.bookings.reload()
    office.wait_until(lambda: office.wiring.reminder.bar.isVisible())
    assert nameless(office.window) == []
    assert office.wiring.reminder.bar.buttons[0].text() == "Extend by 1 h"


def test_without_a_calendar_planning_for_later_opens_none(qtbot: QtBot, tmp_path: Path) -> None:
    home, fleet_file, file = write_sample(tmp_path / "yard", "eight")
    window = app.make_window(home, fleet_file, file)
    qtbot.addWidget(window)
    window.painted.disconnect()
    wiring = window.findChild(SignalConnections)
    assert isinstance(wiring, SignalConnections)
    let_hosts_answer(wiring.fleet)
    assert [len(host.busy_gpus) for host in wiring.fleet.facts() if host.name == "gpu-d"] == [4]
    wiring._use_calendar()
    wiring.planning.choose(PlannedTime(datetime.now(UTC) + 20 * HOUR, HOUR))
    assert [len(host.busy_gpus) for host in wiring.fleet.facts() if host.name == "gpu-d"] == [0]
    assert "bookings" not in wiring.__dict__
    assert not home.bookings_file.exists()
    wiring.document.start_new()
