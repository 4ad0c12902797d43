"""Finds, selects and books slots by pointer and by keys at 1024×768, joins the waitlist, and changes the view."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from PySide6.QtCore import QPoint
from PySide6.QtWidgets import QWidget

from tests.window.user import User
from torchyard_core.booking.model import Booking, Draft, Slot
from torchyard_core.booking.search.slot_search import Fit
from torchyard_core.booking.store import open_store
from torchyard_core.home import Home
from torchyard_core.identity import login_name
from torchyard_gui.bookings.dialogs.team_calendar_dialog import TeamCalendarDialog
from torchyard_gui.theme.tokens import METRICS as M

SLOTS = [
    Slot(f"GPU-{host}{number}", f"gpu-{host}", number, "NVIDIA A100-SXM4-40GB", 40960)
    for host in "ab"
    for number in range(4)
]


def prepare(home: Path) -> None:
    """Books all GPUs of gpu-b for the next 24 hours."""
    store = open_store(f"sqlite:///{Home(home).bookings_file}", login_name())
    store.remember_slots(SLOTS)
    begin = datetime.now(UTC).replace(microsecond=0)
    store.book(Draft("evaluation", tuple(f"GPU-b{number}" for number in range(4)), begin, begin + timedelta(1), "UTC"))
    store.close()


def journey(user: User) -> None:
    page = user.show_page("bookings")
    user.expect(lambda: page.surface.picture.blocks, "the booking is shown")
    everything_fits(user, page)
    book_and_extend_by_keys(user, page)
    select_and_book_by_pointer(user, page)
    select_and_book_by_keys(user, page)
    wait_for_a_busy_host(user, page)
    close_with_escape(user, page)
    change_views(user, page)
    refuse_a_wrong_address(user, page)


def everything_fits(user: User, page: Any) -> None:
    """Checks that the bar is large enough for all of its parts, and that the current time is within the first three of
    the seven days.
    """

    def room() -> bool:
        bar: QWidget = page.bar
        children = [one for one in bar.children() if isinstance(one, QWidget) and one.isVisible()]
        across = sorted((one for one in children if not one.isWindow()), key=lambda one: one.x())
        return (
            len(across) > 5
            and all(
                one.width() >= one.minimumSizeHint().width() for one in [*across, *page.bar.views.findChildren(QWidget)]
            )
            and all(before.geometry().right() < after.x() for before, after in pairwise(across))
            and across[-1].geometry().right() < bar.width()
        )

    user.expect(room, "the bar has room for its parts")
    axis = user.gui(lambda: page.surface.axis)
    assert axis.x_of(datetime.now(UTC).timestamp()) <= axis.width * 3 / 7, "today is the third of seven days"
    user.picture("week-1024")


def book_and_extend_by_keys(user: User, page: Any) -> None:
    """Books two GPUs, extends the booking, undoes the extension, and cancels the booking, by keys in the calendar."""
    user.key("ctrl+2")
    user.expect(lambda: user.window.current == "fleet", "the Fleet page")
    user.key("ctrl+4")
    user.expect(page.surface.hasFocus, "the calendar of the page that is shown has the focus")
    user.key("Down", "Right", "Right", "shift+Right", "shift+Down", "Return")
    user.expect(lambda: page.dialog is not None and page.dialog.isActiveWindow(), "Enter asks for the title")
    user.type("by keys")
    user.key("Return")
    user.expect(lambda: len(live(page)) == 2 and page.dialog is None, "Enter books")
    user.expect(lambda: window_is_active(page) and page.surface.hasFocus(), "the calendar has the focus again")
    made = user.gui(lambda: next(one for one in live(page) if one.title == "by keys"))
    assert len(made.gpus) == 2
    user.key("bracketright")
    user.expect(page.surface.tip.isVisible, "the new times are shown")
    user.picture("edge-by-key")
    user.key("Return")
    longer = made.end + timedelta(minutes=15)
    user.expect(lambda: longer in [one.end for one in live(page)], "Enter applies them")
    user.key("ctrl+z")
    user.expect(lambda: made.end in [one.end for one in live(page)], "Ctrl+Z undoes the change")
    user.key("ctrl+shift+z")
    user.expect(lambda: longer in [one.end for one in live(page)], "Ctrl+Shift+Z makes it again")
    user.key("ctrl+z")
    user.expect(lambda: made.end in [one.end for one in live(page)], "and Ctrl+Z undoes it again")
    user.key("Delete")
    user.expect(lambda: page.dialog is not None and page.dialog.isActiveWindow(), "Delete asks")
    user.click(user.gui(lambda: page.dialog.yes))
    user.expect(lambda: len(live(page)) == 1 and page.dialog is None, "the booking is cancelled")
    user.key("Escape")
    user.expect(lambda: page.drawers.current is None, "Esc closes the drawer")


def window_is_active(page: Any) -> bool:
    return bool(page.window().isActiveWindow())


def live(page: Any) -> list[Booking]:
    return [one for one in page.model.seen.bookings if one.is_live]


def select_and_book_by_pointer(user: User, page: Any) -> None:
    user.click(page.bar.find_button)
    finder = page.finder
    user.expect(lambda: len(finder.cards) > 1 and finder.book.text() == "Book slot 1", "slots are found")
    user.click(finder.cards[1])
    user.expect(lambda: page.surface.chosen_fit == 1 and finder.cards[1].property("selected"), "a card selects")
    user.picture("card-selected")
    user.click(ghost(user, page, 0))
    user.expect(lambda: finder.chosen == 0 and finder.cards[0].property("selected"), "a ghost selects")
    assert user.gui(lambda: len(live(page))) == 1, "nothing is booked by selecting"
    fit: Fit = user.gui(lambda: page.surface.fits[0])
    user.click(finder.book)
    user.expect(lambda: len(live(page)) == 2 and not finder.isVisible(), "the button books")
    assert fit.gpus in [one.gpus for one in bookings(user, page)]
    user.click(user.button("Undo", page.toast))
    user.expect(lambda: sum(one.is_live for one in page.model.seen.bookings) == 1, "the booking is taken back")


def select_and_book_by_keys(user: User, page: Any) -> None:
    user.key("ctrl+shift+f")
    finder = page.finder
    user.expect(lambda: finder.count.hasFocus(), "the form has the focus")
    user.type("2")
    user.key("Tab", "Tab", "Tab")
    user.expect(lambda: finder.length.hasFocus() and len(finder.cards) > 2, "Tab goes to the length")
    user.expect(lambda: len(finder.cards[0].fit.gpus) == 2, "slots for two GPUs")
    user.key("Down", "Down")
    user.expect(lambda: finder.chosen == 2 and page.surface.chosen_fit == 2, "arrows select")
    user.picture("slot-selected-by-arrows")
    fit: Fit = user.gui(lambda: page.surface.fits[2])
    user.key("Return")
    user.expect(lambda: not finder.isVisible(), "Enter books")
    user.expect(lambda: any(one.is_live and one.gpus == fit.gpus for one in page.model.seen.bookings))
    user.key("ctrl+z")
    user.expect(lambda: sum(one.is_live for one in page.model.seen.bookings) == 1, "Ctrl+Z takes it back")


def wait_for_a_busy_host(user: User, page: Any) -> None:
    """Joins the waitlist without booking anything.

    The window offers the waitlist only for a later slot, and not for GPUs that are free now.
    """
    user.key("ctrl+shift+f")
    finder = page.finder
    user.expect(lambda: finder.cards and not finder.wait.isEnabled(), "there is nothing to wait for")
    user.gui(lambda: finder.on.setCurrentIndex(1))
    user.click(finder.count)
    user.key("ctrl+a")
    user.type("8")
    user.expect(lambda: finder.cards and len(finder.cards[0].fit.gpus) == 8 and finder.wait.isEnabled(), "later slots")
    user.picture("waitlist-offered")
    user.click(finder.wait)
    user.expect(lambda: page.model.seen.waiting, "the request waits")
    assert sum(one.is_live for one in bookings(user, page)) == 1, "nothing was booked"


def close_with_escape(user: User, page: Any) -> None:
    user.key("Escape")
    user.expect(lambda: page.drawers.current is None, "Esc closes the drawer from its form")
    block = user.gui(lambda: next(one for one in page.surface.picture.blocks if one.booking.title == "evaluation"))
    for _ in range(2):
        now = datetime.now(UTC).timestamp()
        user.click(at(user, page, block.top + M.lane, now + 3 * 3600))
        user.expect(lambda: page.drawers.current is page.details, "a click opens the details")
        user.key("Escape")
        user.expect(lambda: page.drawers.current is None, "Esc closes them from the calendar")


def change_views(user: User, page: Any) -> None:
    today = user.gui(lambda: page.day)
    for key, view in (("alt+3", "month"), ("alt+1", "day"), ("alt+4", "agenda"), ("alt+2", "week")):
        user.key(key)
        user.expect(lambda view=view: page.bar.views.value == view, view)
        user.expect(lambda: page.day == today, "the day stays")
        user.picture(f"{view}-1024")
        if view == "agenda":
            user.expect(lambda: page.agenda.rows_.rowCount() == 1, "the agenda has the booking")


def refuse_a_wrong_address(user: User, page: Any) -> None:
    user.click(page.legend.share)
    user.expect(lambda: isinstance(page.dialog, TeamCalendarDialog), "the dialog of the team's calendar opens")
    user.type("127.0.0.1:1/gpus")
    user.click(user.gui(lambda: page.dialog.role))
    user.type("kim")
    user.click(user.gui(lambda: page.dialog.test_button))
    user.expect(lambda: "does not answer" in page.dialog.answer.text(), "the test has an answer")
    user.picture("team-calendar")
    user.key("Escape")
    user.expect(lambda: page.dialog is None, "Esc closes the dialog")


def bookings(user: User, page: Any) -> list[Booking]:
    return user.gui(lambda: list(page.model.seen.bookings))


def ghost(user: User, page: Any, number: int) -> QPoint:
    fit: Fit = user.gui(lambda: page.surface.fits[number])
    middle = fit.start.timestamp() + (fit.end - fit.start).total_seconds() / 2
    top = user.gui(lambda: page.surface.picture.lanes.lane_of[fit.gpus[0]].top)
    return at(user, page, top + M.lane // 2, middle)


def at(user: User, page: Any, y: float, second: float) -> QPoint:
    """Returns the global position of a point in the calendar, given by a time and a height among the lanes."""

    def find() -> QPoint:
        surface = page.surface
        x = M.lane_header + round(surface.axis.x_of(second))
        return surface.viewport().mapToGlobal(QPoint(x, int(y) + M.days_header - surface.verticalScrollBar().value()))

    return user.gui(find)
