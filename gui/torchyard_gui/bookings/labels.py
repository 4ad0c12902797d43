"""Texts of the calendar for times, states and amounts."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime, timedelta

from PySide6.QtCore import QCoreApplication, QDate, QLocale

from torchyard_core.booking.model import Booking, State, is_of_cluster
from torchyard_core.booking.time_parser import zone_of
from torchyard_core.errors import TorchyardError
from torchyard_gui.bookings.calendar.time_axis import Span, local_day
from torchyard_gui.bridge.bookings_model import CalendarState
from torchyard_gui.widgets.next_steps import as_sentence

translate = QCoreApplication.translate


def error_text(error: TorchyardError, *, has_buttons: bool = False) -> str:
    """Returns an error as sentences. If the first word is a name such as `gpu-a:0`, it is not capitalized."""
    message = error.message
    if message.partition(" ")[0].isalpha():
        message = message[0].upper() + message[1:]
    return as_sentence(message, error.advice, has_buttons=has_buttons)


def day_name(day: date, pattern: str) -> str:
    return QLocale().toString(QDate(day.year, day.month, day.day), pattern)


def days_title(span: Span, days: tuple[date, ...], *, is_short: bool = False) -> str:
    """Returns the shown days as a title, such as `23 – 29 November 2026`, or in short `23 – 29 Nov 2026`."""
    first, last = days[0], days[-1]
    if span == "day":
        return day_name(first, "ddd d MMM yyyy" if is_short else "dddd d MMMM yyyy")
    if span == "month":
        return day_name(first, "MMM yyyy" if is_short else "MMMM yyyy")
    if first.year != last.year:
        year = "" if is_short else " yyyy"
        return f"{day_name(first, f'd MMM{year}')} – {day_name(last, f'd MMM{year}')}"
    if first.month != last.month:
        return f"{day_name(first, 'd MMM')} – {day_name(last, 'd MMM' if is_short else 'd MMM yyyy')}"
    return f"{first.day} – {day_name(last, 'd MMM yyyy' if is_short else 'd MMMM yyyy')}"


def clock(moment: datetime, zone: str) -> str:
    return f"{moment.astimezone(zone_of(zone)):%H:%M}"


def end_text(booking: Booking, zone: str) -> str:
    """Returns the end of a booking as `to 18:00`, with the day if it differs from the day of the start."""
    until = booking.until
    words = clock(until, zone)
    # An end at midnight counts as part of the previous day.
    if local_day(booking.start, zone) != local_day(until - timedelta(seconds=1), zone):
        words = f"{day_name(local_day(until, zone), 'ddd')} {words}"
    return translate("Bookings", "to {time}").format(time=words)


def time_span(start: datetime, end: datetime, zone: str, now: datetime, *, is_inside: bool = False) -> str:
    """Returns a period as text, such as `Today 18:00 – 24:00` or `Thu 26 Nov 12:00 – Fri 27 Nov 18:00`.

    Args:
        is_inside: Whether the text follows other words in a sentence. If so, it begins with `today` instead of `Today`.
    """
    first, last = local_day(start, zone), local_day(end, zone)
    begins, finishes = clock(start, zone), clock(end, zone)
    day = day_word(first, zone, now, is_inside=is_inside)
    if last == first + timedelta(days=1) and finishes == "00:00":
        return f"{day} {begins} – 24:00"
    if last == first:
        return f"{day} {begins} – {finishes}"
    return f"{day} {begins} – {day_word(last, zone, now, is_inside=True)} {finishes}"


def moment_text(moment: datetime, zone: str, now: datetime, *, is_inside: bool = False) -> str:
    """Returns a time as text, such as `Today 18:00` or `Thu 26 Nov 12:00`. With `is_inside`, `today` is lower case."""
    return f"{day_word(local_day(moment, zone), zone, now, is_inside=is_inside)} {clock(moment, zone)}"


def day_word(day: date, zone: str, now: datetime, *, is_inside: bool = False) -> str:
    """Returns Yesterday, Today, Tomorrow, or a date such as `Thu 26 Nov`. With `is_inside`, words are in lower case."""
    days = (day - local_day(now, zone)).days
    if days == -1:
        return translate("Bookings", "yesterday") if is_inside else translate("Bookings", "Yesterday")
    if days == 0:
        return translate("Bookings", "today") if is_inside else translate("Bookings", "Today")
    if days == 1:
        return translate("Bookings", "tomorrow") if is_inside else translate("Bookings", "Tomorrow")
    return day_name(day, "ddd d MMM")


def duration_text(seconds: float) -> str:
    """Returns a duration as text, such as `6 h`, `45 min` or `2 days 4 h`."""
    minutes = round(seconds / 60)
    if minutes < 60:
        return translate("Bookings", "{count} min").format(count=minutes)
    hours, rest = divmod(minutes, 60)
    if hours >= 48:
        days, hours = divmod(hours, 24)
        words = translate("Bookings", "{count} days").format(count=days)  # Always plural: there are at least two days.
        return words + (" " + translate("Bookings", "{count} h").format(count=hours) if hours else "")
    words = translate("Bookings", "{count} h").format(count=hours)
    return words + (" " + translate("Bookings", "{count} min").format(count=rest) if rest else "")


def core_count(count: int) -> str:
    one, several = translate("Bookings", "1 core"), translate("Bookings", "{count} cores")
    return (one if count == 1 else several).format(count=count)


def slots_count(gpus: Iterable[str]) -> str:
    """Returns the number of GPUs, such as `4 GPUs`. CPU slots are counted separately."""
    ids = list(gpus)
    cpus = sum(one.endswith(":cpu") for one in ids)
    nodes = sum(map(is_of_cluster, ids))
    parts = []
    if nodes:
        several = translate("Bookings", "{count} nodes").format(count=nodes)
        parts.append(translate("Bookings", "1 node") if nodes == 1 else several)
    if len(ids) - cpus - nodes:
        count = len(ids) - cpus - nodes
        parts.append(
            translate("Bookings", "1 GPU") if count == 1 else translate("Bookings", "{count} GPUs").format(count=count)
        )
    if cpus:
        parts.append(
            translate("Bookings", "1 CPU host")
            if cpus == 1
            else translate("Bookings", "{count} CPU hosts").format(count=cpus)
        )
    return ", ".join(parts)


def state_text(booking: Booking, now: datetime) -> str:
    """Returns the state of a booking as text. A booking that was neither cancelled nor released is booked, running or
    ended, depending on the time.
    """
    if not booking.state.is_live:
        return state_name(booking.state)
    if booking.end <= now:
        return translate("Bookings", "ended")
    if booking.start > now:
        return translate("Bookings", "booked")
    return translate("Bookings", "running")


def state_name(state: State) -> str:
    names = {
        State.BOOKED: translate("Bookings", "booked"),
        State.ACTIVE: translate("Bookings", "running"),
        State.RELEASED: translate("Bookings", "released early"),
        State.CANCELLED: translate("Bookings", "cancelled"),
        State.NO_SHOW: translate("Bookings", "released: not used"),
    }
    return names[state]


def unavailable_text(seen: CalendarState, now: datetime) -> str:
    """Returns a text that says why nothing can be booked and, if a calendar has been loaded, how old the shown calendar
    is.
    """
    if seen.as_of is None:
        return translate("Bookings", "The calendar is unreachable and was never loaded here. Nothing can be booked.")
    when = clock(seen.as_of, seen.zone)
    if local_day(seen.as_of, seen.zone) != local_day(now, seen.zone):
        when = f"{day_name(local_day(seen.as_of, seen.zone), 'ddd d MMM')} {when}"
    age = duration_text(max(0.0, (now - seen.as_of).total_seconds()))
    return translate(
        "Bookings",
        "The calendar is unreachable. Shown as of {when}, {age} ago; nothing can be booked.",
    ).format(when=when, age=age)


def owner_name(person: str, me: str) -> str:
    return translate("Bookings", "You") if person == me else person
