"""Formatting of amounts, durations and times for the window and the command line.

The results are not translated. Translatable text is in the `labels` modules of the window.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

DAY_S, HOUR_S, MINUTE_S = 86400, 3600, 60
DATE_AND_TIME = "%Y-%m-%d %H:%M"


def count(value: float) -> str:
    """Formats a number as `1,204`, or as `2.5` if it differs from an integer by 0.05 or more."""
    return f"{value:,.0f}" if abs(value - round(value)) < 0.05 else f"{value:,.1f}"


def counted(number: float, noun: str) -> str:
    """Formats a number with a noun whose plural ends in `s`: `1 worker`, `2 workers`, `0.5 days`."""
    digits = f"{number:g}" if isinstance(number, float) else f"{number}"
    return f"{digits} {noun}" if number == 1 else f"{digits} {noun}s"


def number_ranges(numbers: Iterable[int]) -> str:
    """Formats numbers as ranges: `0-3,6`."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def percent(value: float) -> str:
    """Formats a percentage: `42 %`."""
    return f"{value:.0f} %"


def size(value: float) -> str:
    """Formats a number of bytes: `640 B`, `12.3 MB`, `100 MB`."""
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" or value == int(value) else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def memory(mebibytes: float) -> str:
    """Formats an amount of memory given in MiB, counting 1024 MiB as 1 GB: `80 GB`, `1.5 GB`, `4 MB`."""
    value = mebibytes / 1024
    if value < 0.1:
        return f"{mebibytes:.0f} MB"
    return f"{value:.0f} GB" if value >= 10 else f"{value:.1f} GB"


def temperature(celsius: float) -> str:
    """Formats a temperature: `66 °C`."""
    return f"{celsius:.0f} °C"


def power(watts: float) -> str:
    """Formats electric power: `310 W`, `2.4 kW`."""
    return f"{watts:.0f} W" if watts < 1000 else f"{watts / 1000:.1f} kW"


def format_byte_rate(value: float) -> str:
    """Formats bytes per second: `640 B/s`, `12.3 MB/s`, `118 MB/s`."""
    for unit in ("B/s", "kB/s", "MB/s"):
        if value < 999.5:
            return f"{value:.1f} {unit}" if value < 99.95 and unit != "B/s" else f"{value:.0f} {unit}"
        value /= 1000
    return f"{value:.1f} GB/s"


def bandwidth(bytes_s: float) -> str:
    """Formats bytes per second as the bandwidth of a network in bits per second: `8.8 Gbit/s`, `940 Mbit/s`."""
    gbits = bytes_s * 8 / 1e9
    return f"{gbits:.1f} Gbit/s" if gbits >= 1 else f"{gbits * 1000:.0f} Mbit/s"


def seconds(value: float) -> str:
    """Formats a duration: `250 s`, `1.25 s`, `312 ms`, `4.1 ms`, `0 s`."""
    if value >= 0.9995:
        return f"{value:.2f} s" if value < 9.995 else f"{value:.1f} s" if value < 99.95 else f"{value:.0f} s"
    milliseconds = value * 1000
    if milliseconds < 0.05:
        return "0 s"
    return f"{milliseconds:.1f} ms" if milliseconds < 9.95 else f"{milliseconds:.0f} ms"


def age(seconds: float) -> str:
    """Formats an age: `12 s`, `5 min`, `3 h`, `2 days`."""
    if seconds < MINUTE_S:
        return f"{max(seconds, 0):.0f} s"
    if seconds < HOUR_S:
        return f"{seconds / MINUTE_S:.0f} min"
    return f"{seconds / HOUR_S:.0f} h" if seconds < 2 * DAY_S else f"{seconds / DAY_S:.0f} days"


def since(time: str) -> str:
    """Formats the age of an RFC 3339 time as `5 min ago`. Returns any other text unchanged."""
    try:
        passed = datetime.now(UTC) - datetime.fromisoformat(time)
    except (ValueError, TypeError):  # The subtraction raises TypeError for a time that has no offset from UTC.
        return time
    return f"{age(passed.total_seconds())} ago"


def format_hours(length: timedelta) -> str:
    """Formats the length of a booking: `8 h`, `90 min`, `2 days`."""
    minutes = round(length.total_seconds() / 60)
    if minutes % 60:
        return f"{minutes} min" if minutes < 600 else f"{minutes / 60:.1f} h"
    hours = minutes // 60
    return f"{hours // 24} days" if hours >= 48 and hours % 24 == 0 else f"{hours} h"


def command_length(length: timedelta) -> str:
    """Formats a duration in the syntax of command arguments, rounded to minutes and at least `1m`: `8h`, `90m`."""
    minutes = max(1, round(length.total_seconds() / 60))
    return f"{minutes // 60}h" if minutes % 60 == 0 else f"{minutes}m"


# In the functions below, `zone` is an IANA time zone.


def clock(seconds: float, *, exact: bool = False) -> str:
    """Formats the local time of day of a POSIX timestamp: `14:21`, or `14:21:07` if `exact`."""
    return datetime.fromtimestamp(seconds).strftime("%H:%M:%S" if exact else "%H:%M")


def day_and_clock(seconds: float, now: float, *, exact: bool = False) -> str:
    """Formats a local time on the day of `now` as 14:21, on another day as 3 Mar 14:21; `exact` adds the seconds."""
    then, today = datetime.fromtimestamp(seconds), datetime.fromtimestamp(now)
    time = clock(seconds, exact=exact)
    return time if then.date() == today.date() else f"{then.day} {then.strftime('%b')} {time}"


def wall_clock(moment: datetime, zone: str, pattern: str = "%H:%M") -> str:
    """Formats a moment as local time in a zone.

    In the hour that occurs twice when clocks are set back, the offset from UTC is added: `02:30+02:00`.
    """
    local = moment.astimezone(ZoneInfo(zone))
    is_repeated = local.replace(fold=0).utcoffset() != local.replace(fold=1).utcoffset()
    return f"{local:{pattern}}{local.isoformat(timespec='minutes')[16:] if is_repeated else ''}"


def until(start: datetime, end: datetime, zone: str) -> str:
    """Formats the end of an interval: `18:30`, or `Mon 23 Nov 18:30` if its day differs from the day of `start`."""
    begin, finish = start.astimezone(ZoneInfo(zone)), end.astimezone(ZoneInfo(zone))
    day = "" if begin.date() == finish.date() else f"{_day(finish)} "
    return f"{day}{wall_clock(end, zone)}"


def span(start: datetime, end: datetime, zone: str) -> str:
    """Formats an interval: `from Mon 23 Nov 09:00 to 17:00`. If it ends on another day, the end includes that day."""
    return f"from {_day(start.astimezone(ZoneInfo(zone)))} {wall_clock(start, zone)} to {until(start, end, zone)}"


def full_span(start: datetime, end: datetime, zone: str) -> str:
    """Formats an interval with all details, for a confirmation.

    The format is `from Mon 2026-11-23 09:00 to Mon 2026-11-23 17:00 (Europe/Berlin, 8 h)`.
    """
    begin, finish = (wall_clock(one, zone, f"%a {DATE_AND_TIME}") for one in (start, end))
    return f"from {begin} to {finish} ({zone}, {format_hours(end - start)})"


def command_time(moment: datetime, zone: str) -> str:
    """Formats a time in the syntax of command arguments: `2026-11-23 09:00`.

    The time is rounded up to a full minute, so it is never before `moment`.
    """
    local = moment.astimezone(ZoneInfo(zone))
    if local.second or local.microsecond:
        local += timedelta(seconds=60 - local.second)
    return wall_clock(local, zone, DATE_AND_TIME)


def utc_now() -> str:
    """Returns the current time in UTC as RFC 3339 with milliseconds."""
    return utc_timestamp(datetime.now(UTC).timestamp())


def utc_timestamp(seconds: float) -> str:
    """Formats a POSIX timestamp as an RFC 3339 time in UTC with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _day(local: datetime) -> str:
    return f"{local:%a} {local.day} {local:%b}"
