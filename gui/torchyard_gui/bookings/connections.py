"""Joins the parts of the Bookings page: which action, gesture and signal does what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchyard_gui.bookings.commands import HOUR

if TYPE_CHECKING:
    from torchyard_gui.bookings.page import BookingsPage


def join(page: BookingsPage) -> None:
    """Once, when the page is made."""
    _join_actions(page)
    _join_views(page)
    _join_drawers(page)
    page.legend.share_wanted.connect(page.dialogs.tell_how_to_share)
    page.notice.action_triggered.connect(lambda number: page.model.reload())
    page.body.resized.connect(page.place)
    for part in (page.deeds, page.dialogs):
        part.said.connect(page.sayings.say)
        part.failed.connect(page.sayings.refuse)
    page.dialogs.closed.connect(lambda: page.surface.set_cursor(None))
    page.dialogs.closed.connect(page.focus_body)
    page.deeds.done.connect(page.surface.select)
    page.deeds.undo_changed.connect(page.enable)
    page.model.changed.connect(page.model_changed)
    page.model.settled.connect(page.sayings.settled)
    page.model.fleet.use_changed.connect(lambda name: page.say_free())


def _join_actions(page: BookingsPage) -> None:
    acts, views = page.acts, page.bar.views
    acts.connect_to(
        {
            acts.book: page.book,
            acts.find: page.find_slot,
            acts.edit: page.edit,
            acts.extend: lambda: page.stretch(HOUR),
            acts.shorten: lambda: page.stretch(-HOUR),
            acts.release: page.let_go,
            acts.cancel_series: page.cancel_series,
            acts.run: page.show_run,
            acts.undo: page.deeds.undo,
            acts.paste: page.dialogs.paste,
            acts.copy: page.copy,
            acts.search: page.bar.open_search,
            acts.today: page.go_today,
            acts.earlier: lambda: page.go(-1),
            acts.later: lambda: page.go(1),
            acts.day: lambda: views.set_value("day"),
            acts.week: lambda: views.set_value("week"),
            acts.month: lambda: views.set_value("month"),
            acts.agenda: lambda: views.set_value("agenda"),
            acts.fold: page.fold_all,
            acts.refresh: page.model.reload,
            acts.waitlist: page.show_waitlist,
            acts.usage: page.dialogs.usage_report,
            acts.export: page.dialogs.export,
            acts.import_: page.import_bookings,
            acts.rules: page.dialogs.rules,
        }
    )
    for widget in (page, page.bar):
        widget.addActions(acts.all())


def _join_views(page: BookingsPage) -> None:
    surface, agenda, bar = page.surface, page.agenda, page.bar
    surface.refuse = page.refuse
    surface.book_wanted.connect(page.dialogs.book_at)
    surface.change_wanted.connect(page.deeds.change)
    surface.refused.connect(page.sayings.refuse)
    surface.selected.connect(page.select)
    surface.activated.connect(page.activate)
    surface.fold_wanted.connect(page.fold)
    surface.step_wanted.connect(page.go)
    surface.fit_wanted.connect(page.book_fit)
    surface.context_requested.connect(page.open_menu)
    agenda.chosen.connect(page.select)
    agenda.activated_.connect(page.activate)
    bar.views.changed.connect(page.show_span)
    bar.filter_changed.connect(lambda chosen: page.refresh())
    bar.filter_menu.aboutToShow.connect(lambda: bar.offer(page.model.seen))


def _join_drawers(page: BookingsPage) -> None:
    finder, waitlist, drawers = page.finder, page.waitlist, page.drawers
    finder.book_wanted.connect(page.book_fit)
    finder.wait_wanted.connect(lambda wish: page.deeds.wait(wish, finder.title_.text()))
    waitlist.leave_wanted.connect(page.deeds.stop_waiting)
    waitlist.join_wanted.connect(page.find_slot)
    drawers.changed.connect(page.place)
    drawers.left.connect(page.focus_body)
    drawers.fit_pointed.connect(page.point_at)
