"""Dates in words, English or Korean, and without a year: `fri`, `next monday`, `25.11.`, `Nov 25`, `금요일`.

dateparser knows the names; it reads almost any text as some date. So only the shapes below reach it, and what it
answers is checked against the text. This module is imported only for dates that are not ISO 8601, as the import takes
about 0.2 s.
"""

from __future__ import annotations

import re
from datetime import date, datetime, time, timedelta

from dateparser.date import DateDataParser

RECENT = timedelta(days=90)
"""A date without a year that passed less than this ago is that one, not next year's."""
_WEEKDAY = (
    r"(?:mon(?:day)?|tue(?:s|sday)?|wed(?:nesday)?|thu(?:r|rs|rsday)?|fri(?:day)?|sat(?:urday)?|sun(?:day)?"
    r"|[월화수목금토일]요일)"
)
_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?)\.?"
)
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?P<year>\d{4})"
_RELATIVE = re.compile(r"day after tomorrow|오늘|내일")
_OF_A_WEEK = re.compile(rf"(?:(?P<which>next|this|다음\s?주|이번\s?주)\s*)?(?P<weekday>{_WEEKDAY})")
_OF_A_YEAR = [
    re.compile(shape)
    for shape in (
        rf"{_MONTH}\s*{_DAY}(?:,?\s+{_YEAR})?",
        rf"{_DAY}\.?\s+(?:of\s+)?{_MONTH}(?:,?\s+{_YEAR})?",
        rf"(?:{_YEAR}년\s*)?\d{{1,2}}월\s*(?P<day>\d{{1,2}})일",
    )
]
_NUMBERS = re.compile(rf"(?P<day>\d{{1,2}})\.\s?(?P<month>\d{{1,2}})\.(?:\s?{_YEAR})?")
_WITH_WEEKDAY = re.compile(rf"(?P<weekday>{_WEEKDAY}),?\s+(?P<date>.+)")


def read_date(text: str, now: datetime, clock: time | None) -> date:
    """The date that lower-case words name, where `now` is the wall clock. Raises ValueError.

    A weekday is the first whose `clock` (None: its beginning) is after `now`; `next` before it means a day after today,
    `다음 주` a day of the next week (from Monday). A date without a year is the next one, unless it passed recently.
    """
    today = now.date()
    if text == "모레":
        return today + timedelta(days=2)
    if _RELATIVE.fullmatch(text):
        return _parsed(text, today)
    if match := _OF_A_WEEK.fullmatch(text):
        return _of_a_week(match["which"] or "", _parsed(match["weekday"], today).weekday(), now, clock)
    for shape in _OF_A_YEAR:
        if match := shape.fullmatch(text):
            # Without a year it is the first such day after RECENT before today.
            found = _parsed(text, today if match["year"] else today - RECENT)
            if found.day != int(match["day"]) or found.year != int(match["year"] or found.year):
                raise ValueError(f"{text} was read as {found}")
            return found
    if match := _NUMBERS.fullmatch(text):  # dateparser takes 1.11. for a time of day
        return _of_numbers(int(match["day"]), int(match["month"]), match["year"], today)
    if match := _WITH_WEEKDAY.fullmatch(text):
        found = _dated(match["date"], now, clock)
        if found.weekday() != _parsed(match["weekday"], today).weekday():
            raise ValueError(f"{found} is a {found:%A}")
        return found
    raise ValueError(f"no date: {text}")


def _dated(text: str, now: datetime, clock: time | None) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return read_date(text, now, clock)


def _of_a_week(which: str, weekday: int, now: datetime, clock: time | None) -> date:
    today = now.date()
    monday = today - timedelta(days=today.weekday())
    if which.startswith("다음"):
        return monday + timedelta(days=7 + weekday)
    if which.startswith("이번") or which == "this":
        return monday + timedelta(days=weekday)
    ahead = (weekday - today.weekday()) % 7
    if ahead == 0 and (which == "next" or (clock or time()) <= now.time()):
        ahead = 7
    return today + timedelta(days=ahead)


def _of_numbers(day: int, month: int, year: str | None, today: date) -> date:
    if year is not None:
        return date(int(year), month, day)
    first = today - RECENT
    found = date(first.year, month, day)
    return found if found >= first else date(first.year + 1, month, day)


def _parsed(text: str, today: date) -> date:
    parser = DateDataParser(
        languages=["en", "ko"],
        settings={
            "RELATIVE_BASE": datetime.combine(today, time()),
            "PREFER_DATES_FROM": "future",
            "DATE_ORDER": "DMY",
            "TIMEZONE": "UTC",
            "PARSERS": ["relative-time", "absolute-time"],
        },
    )
    found: datetime | None = parser.get_date_data(text).date_obj
    if found is None:
        raise ValueError(f"no date: {text}")
    return found.date()
