"""Rows of the table that `hosts audit` prints."""

from __future__ import annotations

from datetime import datetime

from torchyard_agent.protocol.attribution import clean_name, user_of
from torchyard_core.errors import HostError
from torchyard_core.fleet.host_audit import Act, HostAudit
from torchyard_core.fleet.host_check import origin_text

HEADINGS = ("TIME", "HOST", "WHAT", "BY", "DETAILS")

_ACTS = {
    "deploy": "agent installed",
    "upgrade": "agent replaced",
    "start": "agent restarted",
    "retire": "agent retired",
    "undeploy": "undeploy refused",  # A successful undeployment also removes the audit log with this entry.
    "remove": "run removed",
    "take_back": "launch undone",
    "housekeeping": "garbage collected",
}
_ENFORCED = {
    "observed": "use noted",
    "reported": "violation reported",
    "warned": "user warned",
    "terminated": "process ended",
    "killed": "process killed",
}
_REFUSALS = {"run_alive": "a run lives there"}
_OF_ITSELF = ("housekeeping", "enforcement")
_COUNTED = {"runs": "run", "snapshots": "snapshot", "archives": "archive"}


def outcome(found: HostAudit) -> str:
    """Returns the result of reading a host's audit log, as text for the progress display."""
    if found.error is not None:
        return found.error.state if isinstance(found.error, HostError) else "cannot tell"
    return f"{len(found.acts)} acts" if len(found.acts) != 1 else "1 act"


def row(host: str, act: Act) -> list[str]:
    """Returns the cells of a row in the order of HEADINGS.

    Control characters are removed, since agents report the names of other users' programs.
    """
    return [clean_name(cell) or "-" for cell in (_time(act), host, describe(act), actor(act), details(act))]


def describe(act: Act) -> str:
    """Returns a description such as `agent installed`, or the agent's own name for an unknown action."""
    what = str(act.get("what", ""))
    if what != "enforcement":
        return _ACTS.get(what, what)
    did = _ENFORCED.get(str(act.get("act")), str(act.get("act")))
    return f"dry run: {did}" if act.get("dry_run") else did


def actor(act: Act) -> str:
    """Returns the author of an action: `kim@laptop`, or `the agent itself`; empty if the desktop is unknown."""
    return user_of(act) or ("the agent itself" if act.get("what") in _OF_ITSELF else "")


def details(act: Act) -> str:
    """Returns the details that belong to the action: versions, a run, counts or a process."""
    what = act.get("what")
    if what == "enforcement":
        return _of_process(act)
    if what == "housekeeping":
        counts = ((int(act.get(kind) or 0), one) for kind, one in _COUNTED.items())
        return ", ".join(f"{count} {one}{'s' if count > 1 else ''}" for count, one in counts if count)
    if what == "undeploy":
        code = str(act.get("refused", ""))
        return _REFUSALS.get(code, code)
    if act.get("before"):
        return f"{act.get('version')} after {act['before']}"
    return str(act.get("run_id") or act.get("version") or "")


def _of_process(act: Act) -> str:
    gpus = len(act.get("gpus") or ())
    by_owner = f"booked by {act.get('owner')}"
    words = {"others": by_owner, "root": by_owner, "unbooked": "not booked"}
    if act.get("owner"):
        words["unknown"] = f"{by_owner}, a login that the calendar does not name"
    booked = words.get(str(act.get("verdict")))
    process = f"{act.get('program')} ({act.get('pid')}) {origin_text(act)} on {gpus} GPU{'s' if gpus != 1 else ''}"
    text = f"{process}, {booked or 'whose is unknown'}"
    return f"{text}; {act['outcome']}" if act.get("outcome") else text


def _time(act: Act) -> str:
    """Formats the time of an action as local time with seconds. Returns an invalid time unchanged."""
    time = str(act.get("time", ""))
    try:
        return f"{datetime.fromisoformat(time).astimezone():%Y-%m-%d %H:%M:%S}"
    except ValueError:
        return time
