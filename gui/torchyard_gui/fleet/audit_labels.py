"""Descriptions of an agent's audit records, such as `Agent 0.1.0 installed` and `by kim@laptop`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from PySide6.QtCore import QCoreApplication

from torchyard_agent.protocol.attribution import clean_name, user_of
from torchyard_core.fleet.host_audit import Act
from torchyard_gui.fleet.labels import short_time

translate = QCoreApplication.translate


def audit_rows(acts: Sequence[Act]) -> list[tuple[str, str]]:
    """Returns the audit records as (name, value) rows, the newest record first.

    The first row of a record contains the time and the action. Further rows contain the run or the versions, and the
    user, if these are known.
    """
    pairs: list[tuple[str, str]] = []
    for act in reversed(acts):
        doer = user_of(act)
        by = translate("Fleet", "by {whom}").format(whom=doer) if doer else ""
        pairs.append((_time(act), clean_name(action_text(act))))
        pairs += [("", clean_name(text)) for text in (_of_what(act), by) if text]
    return pairs


def action_text(act: Act) -> str:
    """Returns a description of the action in an audit record.

    If this desktop does not know the action, returns the agent's name for the action.
    """
    what = str(act.get("what", ""))
    texts = {
        "deploy": translate("Fleet", "Agent {version} installed"),
        "upgrade": translate("Fleet", "Agent replaced"),
        "start": translate("Fleet", "Agent {version} restarted"),
        "retire": translate("Fleet", "Agent retired"),
        "undeploy": translate("Fleet", "Undeploy refused"),
        "remove": translate("Fleet", "Run removed"),
        "take_back": translate("Fleet", "Launch undone"),
        "enforcement": _enforced(act),
        "housekeeping": translate("Fleet", "Garbage collected"),
    }
    values = {key: str(act.get(key) or "?") for key in ("version", "user")}
    return texts[what].format(**values) if what in texts else what


def _of_what(act: Act) -> str:
    """Returns the ID of the run, or the versions of the agent, that an audit record concerns."""
    if act.get("before"):
        text = translate("Fleet", "{version} after {before}")
        return text.format(version=act.get("version") or "?", before=act["before"])
    return str(act.get("run_id") or "")


def _enforced(act: Act) -> str:
    did = {
        "observed": translate("Fleet", "Use by {user} noted"),
        "reported": translate("Fleet", "Violation by {user} reported"),
        "warned": translate("Fleet", "{user} warned"),
        "terminated": translate("Fleet", "Process of {user} ended"),
        "killed": translate("Fleet", "Process of {user} killed"),
    }.get(str(act.get("act")), "?")
    return translate("Fleet", "dry run: {what}").format(what=did) if act.get("dry_run") else did


def _time(act: Act) -> str:
    try:
        return short_time(datetime.fromisoformat(str(act.get("time", ""))))
    except ValueError:
        return "?"
