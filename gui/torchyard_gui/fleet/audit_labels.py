"""What was done to a host in words, as its agent noted it: `agent 0.1.0 put there`, `by kim@laptop`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from PySide6.QtCore import QCoreApplication

from torchyard_agent.protocol.attribution import cleaned, who
from torchyard_core.fleet.host_audit import Act
from torchyard_gui.fleet.labels import short_time

translate = QCoreApplication.translate


def act_pairs(acts: Sequence[Act]) -> list[tuple[str, str]]:
    """Names and values for the details, the newest act first: when and what, and below it of what and by whom."""
    pairs: list[tuple[str, str]] = []
    for act in reversed(acts):
        doer = who(act)
        by = translate("Fleet", "by {whom}").format(whom=doer) if doer else ""
        pairs.append((_time(act), cleaned(deed(act))))
        pairs += [("", cleaned(text)) for text in (_of_what(act), by) if text]
    return pairs


def deed(act: Act) -> str:
    """What was done. The agent's own word for what this version does not know."""
    what = str(act.get("what", ""))
    texts = {
        "deploy": translate("Fleet", "agent {version} put there"),
        "upgrade": translate("Fleet", "agent replaced"),
        "start": translate("Fleet", "agent {version} started again"),
        "retire": translate("Fleet", "agent sent away"),
        "undeploy": translate("Fleet", "undeploy refused"),
        "remove": translate("Fleet", "run removed"),
        "take_back": translate("Fleet", "launch taken back"),
        "enforcement": _enforced(act),
        "housekeeping": translate("Fleet", "tidied up by itself"),
    }
    told = {key: str(act.get(key) or "?") for key in ("version", "user")}
    return texts[what].format(**told) if what in texts else what


def _of_what(act: Act) -> str:
    """The run, or the agents' versions."""
    if act.get("before"):
        text = translate("Fleet", "{version} after {before}")
        return text.format(version=act.get("version") or "?", before=act["before"])
    return str(act.get("run_id") or "")


def _enforced(act: Act) -> str:
    did = {
        "observed": translate("Fleet", "use of {user} noted"),
        "reported": translate("Fleet", "violation by {user} reported"),
        "warned": translate("Fleet", "{user} warned"),
        "terminated": translate("Fleet", "process of {user} ended"),
        "killed": translate("Fleet", "process of {user} killed"),
    }.get(str(act.get("act")), "?")
    return translate("Fleet", "dry run: {what}").format(what=did) if act.get("dry_run") else did


def _time(act: Act) -> str:
    try:
        return short_time(datetime.fromisoformat(str(act.get("time", ""))))
    except ValueError:
        return "?"
