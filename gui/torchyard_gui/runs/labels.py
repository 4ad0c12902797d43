"""Texts for states, durations, amounts and timeline events."""

from __future__ import annotations

import math
import re
import time
from datetime import datetime

from PySide6.QtCore import QCoreApplication

from torchyard_core import formatting
from torchyard_gui.bridge.run_state import RunState
from torchyard_gui.bridge.run_state_types import TimelineEvent
from torchyard_gui.canvas import labels

translate = QCoreApplication.translate


def state_word(state: str) -> str:
    """Returns the name of the state of a run or replica."""
    return {
        "draft": translate("Runs", "not started"),
        "checking": translate("Runs", "checking"),
        "sending": translate("Runs", "sending"),
        "pending": translate("Runs", "waiting"),
    }.get(state) or labels.state_word(state)


MARKS = {"draft": "planned", "pending": "waiting", "sending": "starting", "lost": "unknown"}


def mark_of(state: str) -> str:
    """Returns the name of the mark that `paint_state` draws for a state."""
    return MARKS.get(state, state or "unknown")


def clock(seconds: float | None, *, exact: bool = False) -> str:
    """Formats seconds since 1970 as local time such as 14:21, or 14:21:07 if `exact`. None becomes "–"."""
    return "–" if seconds is None else formatting.clock(seconds, exact=exact)


def moment_in_full(seconds: float | None) -> str:
    """Formats a time as local date, time and zone, for tool tips. None becomes ""."""
    if seconds is None:
        return ""
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def day_and_clock(seconds: float | None, now: float, *, exact: bool = False) -> str:
    """Formats seconds since 1970 as `formatting.day_and_clock` does. None becomes ""."""
    return "" if seconds is None else formatting.day_and_clock(seconds, now, exact=exact)


_UTC_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def with_local_times(text: str) -> str:
    """Replaces UTC times such as 2026-11-28T14:00:00Z in a text with local times such as 15:00."""

    def local(match: re.Match[str]) -> str:
        return day_and_clock(datetime.fromisoformat(match[0]).timestamp(), time.time())

    return _UTC_TIME.sub(local, text)


def day_or_clock(seconds: float | None, now: float) -> str:
    """Formats a time of today as local time such as 14:21, and any other time as a date such as 3 Mar. None becomes
    "".
    """
    text = day_and_clock(seconds, now)
    return text.rpartition(" ")[0] or text


def ended_at(seconds: float | None, now: float) -> str:
    """Returns when a run ended, as `ended 14:21` or `ended 20 Nov 14:21`. An unknown time is left out."""
    if seconds is None:
        return translate("Runs", "ended")
    return translate("Runs", "ended {time}").format(time=day_and_clock(seconds, now))


duration = labels.duration


def memory(megabytes: float | None) -> str:
    return "–" if megabytes is None else formatting.memory(megabytes)


def rate(samples: float | None) -> str:
    """Formats a number of samples per second, such as 1,184. Numbers below 100 have a decimal, such as 3.2. None
    becomes "–".
    """
    if samples is None:
        return "–"
    return f"{samples:,.0f}" if abs(samples) >= 100 else f"{samples:,.1f}"


def restarts(count: int) -> str:
    """Returns the number of restarts as `1 restart` or `3 restarts`, or "" for none."""
    if count < 2:
        return translate("Runs", "1 restart") if count else ""
    return translate("Runs", "{count} restarts").format(count=count)


def loss(value: float | None) -> str:
    if value is not None and math.isnan(value):
        return translate("Runs", "NaN")
    return "–" if value is None else f"{value:.4g}" if abs(value) >= 1000 else f"{value:.4f}"


def percent(value: float | None) -> str:
    return "–" if value is None else formatting.percent(value)


def restarting_sentence(picture: RunState) -> str:
    """Returns a text about why a run restarts and for which hosts it waits. Unknown parts are left out."""
    waiting = picture.waiting
    cause = waiting.cause if waiting is not None else picture.reason
    text = translate("Runs", "The run restarts: {cause}.") if cause else translate("Runs", "The run restarts.")
    text = text.format(cause=cause.rstrip("."))
    if waiting is None:
        return text
    waits = translate("Runs", "It waits for {hosts} until {time}.")
    return f"{text} {waits.format(hosts=waiting.hosts, time=clock(waiting.until, exact=True))}"


def moment_in_words(moment: TimelineEvent) -> str:
    """Returns the text of a timeline event."""
    values = {
        "replica": moment.replica,
        "host": moment.host,
        "state": state_word(moment.state),
        "reason": with_local_times(moment.reason),
        "by": moment.by or translate("Runs", "another user"),
    }
    waiting = moment.waiting
    if waiting is not None:
        values |= {"hosts": waiting.hosts, "time": clock(waiting.until, exact=True)}
        text = translate("Runs", "{state}: waiting for {hosts} until {time}")
    elif moment.kind == "run":
        text = translate("Runs", "{state}: {reason}") if moment.reason else translate("Runs", "{state}")
        if values["reason"].startswith(values["state"]):  # The reason repeats the state, as in `stopped by kim`.
            text = "{reason}"
    elif moment.kind == "replica":
        text = (
            translate("Runs", "{replica} on {host} {state}: {reason}")
            if moment.reason
            else translate("Runs", "{replica} on {host} {state}")
        )
    elif moment.kind == "restart":
        values["count"] = str(moment.generation)
        text = translate("Runs", "{replica}, restart {count}: {reason}")
    elif moment.kind == "membership":
        values |= {"step": f"{moment.step:,}", "count": str(moment.remaining), "all": str(moment.workers)}
        text = translate("Runs", "step {step}: {count} of {all} workers continue: {reason}")
    elif moment.kind == "asked":
        text = {
            "launch": translate("Runs", "launched by {by}"),
            "stop": translate("Runs", "stop requested by {by}"),
            "force": translate("Runs", "immediate stop requested by {by}"),
            "grow": translate("Runs", "workers added on {host} by {by}"),
        }.get(moment.state, translate("Runs", "{by}: {state}"))
    elif moment.kind == "withdrawal":
        text = translate("Runs", "{replica} was not added: {reason}")
    elif moment.kind == "first_step":
        text = translate("Runs", "first step")
    elif moment.kind in ("checkpoint", "checkpoint_copied"):
        values["step"] = f"{moment.step:,}"
        text = {
            "checkpoint": translate("Runs", "checkpoint at step {step} saved"),
            "checkpoint_copied": translate("Runs", "checkpoint at step {step} copied to {host}"),
        }[moment.kind]
        if moment.reason:
            text = translate("Runs", "checkpoint at step {step} not copied to {host}: {reason}")
    elif moment.kind == "host_lost":
        text = translate("Runs", "{host} does not answer")
    else:
        text = translate("Runs", "{host} answers again")
    return text.format(**values)


def moment_mark(moment: TimelineEvent) -> str:
    """Returns the name of a timeline event's mark."""
    if moment.kind == "run":
        return mark_of(moment.state)
    return {
        "replica": "failed" if moment.state == "failed" else "unknown",
        "restart": "restarting",
        "membership": "restarting",
        "asked": "planned" if moment.state in ("launch", "grow") else "stopping",
        "withdrawal": "failed",
        "first_step": "running",
        "host_lost": "unknown",
        "host_back": "ok",
        "checkpoint": "ok",
        "checkpoint_copied": "warning" if moment.reason else "ok",
    }[moment.kind]
