"""Texts for the status, problems and actions of a host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from PySide6.QtCore import QCoreApplication, QDateTime, QLocale

from torchyard_agent.protocol.attribution import clean_name
from torchyard_core import formatting
from torchyard_core.errors import KeyChanged, KeyUnknown, TorchyardError
from torchyard_core.fleet.host_check import DEGRADED, READY
from torchyard_gui.bridge.host_status import UNKNOWN, GpuNow, HostStatus
from torchyard_gui.canvas.racks.content import short_model
from torchyard_gui.widgets.next_steps import as_sentence

translate = QCoreApplication.translate

_MARKS = {READY: "ok", DEGRADED: "warning", "key unknown": "warning", UNKNOWN: "unknown"}


@dataclass(frozen=True)
class SuggestedAction:
    """The suggested action for a host, and the text of the button for it."""

    action: str
    """`check`, `deploy`, `trust` or `cancel`."""
    text: str


def state_word(status: HostStatus) -> str:
    """Returns the name of the host's state."""
    missing = translate("Fleet", "no agent yet") if status.has_no_agent else translate("Fleet", "agent missing")
    words = {
        READY: translate("Fleet", "ready"),
        DEGRADED: translate("Fleet", "degraded"),
        UNKNOWN: translate("Fleet", "unknown"),
        "agent missing": missing,
        "unreachable": translate("Fleet", "unreachable"),
        "key unknown": translate("Fleet", "key unknown"),
        "key changed": translate("Fleet", "key changed"),
        "login refused": translate("Fleet", "login refused"),
        "no python": translate("Fleet", "no Python"),
    }
    return words.get(status.state, status.state)


def state_mark(status: HostStatus) -> str:
    """Returns the mark of the host's state, as defined in `theme.marks`."""
    if status.doing is not None:
        return "checking"
    if status.has_no_agent and status.lost is None:
        return "planned"
    return _MARKS.get(status.state, "failed")


def tint(status: HostStatus) -> str:
    """Returns the colour token of the host's state: "fail", "wait", or "" if there is no problem."""
    return {"warning": "wait", "failed": "fail"}.get(state_mark(_at_rest(status)), "")


def since(status: HostStatus) -> str:
    """Returns the time since when the state holds. For an unchecked host, this is the time of the last check."""
    if status.since is None:
        return translate("Fleet", "never checked")
    time = short_time(status.since)
    if status.state == UNKNOWN and status.lost is None and status.check is None:
        return translate("Fleet", "last checked {time}").format(time=time)
    return translate("Fleet", "since {time}").format(time=time)


def doing_word(status: HostStatus) -> str:
    """Returns the name of the current activity, or ""."""
    if status.doing is None:
        return ""
    words = {
        "waiting": translate("Fleet", "waiting for its turn …"),
        "checking": translate("Fleet", "logging in …"),
        "looking": translate("Fleet", "looking at what it has …"),
        "deploying": translate("Fleet", "logging in …"),
        "sending": translate("Fleet", "sending the agent …"),
    }
    return words[status.doing.kind]


def short_time(time: datetime) -> str:
    """Formats a local time as `14:21`, or as `20 Nov 14:21` on another day."""
    local = time.astimezone()
    clock = local.strftime("%H:%M")
    if local.date() == datetime.now().astimezone().date():
        return clock
    return f"{QLocale().toString(_qt(time).date(), 'd MMM')} {clock}"


def full_time(time: datetime) -> str:
    """Formats a local time with its zone, such as `2026-11-20 14:21:07 KST (UTC+09:00)`."""
    local = time.astimezone()
    zone = local.strftime("%z")
    return f"{local:%Y-%m-%d %H:%M:%S} {local:%Z} (UTC{zone[:3]}:{zone[3:]})"


def _qt(time: datetime) -> QDateTime:
    return QDateTime.fromMSecsSinceEpoch(int(time.timestamp() * 1000))


def sentence(status: HostStatus) -> str:
    """Returns a sentence about the host's problem with the next step, or ""."""
    if status.problems:
        return problem_sentence(status, status.problems[0])
    if status.state == UNKNOWN:
        if status.since is None:
            return translate("Fleet", "{host} has not been checked yet.").format(host=status.name)
        return translate("Fleet", "{host} has not been checked since {time}.").format(
            host=status.name, time=short_time(status.since)
        )
    return ""


def problem_sentence(status: HostStatus, problem: TorchyardError) -> str:
    """Returns a problem as a sentence, without the next steps that have buttons beside the sentence."""
    return as_sentence(problem.message, problem.advice, host=status.name, has_buttons=True)


def suggested_action(status: HostStatus) -> SuggestedAction | None:
    """Returns the action for the button on a host's card, or None."""
    if status.doing is not None:
        return SuggestedAction("cancel", translate("Fleet", "Cancel"))
    if status.lost is None and isinstance(status.error, (KeyUnknown, KeyChanged)):
        return SuggestedAction("trust", translate("Fleet", "Trust …"))
    if status.state == "agent missing":
        return SuggestedAction(
            "deploy", translate("Fleet", "Deploy") if status.has_no_agent else translate("Fleet", "Deploy again")
        )
    if status.state == UNKNOWN and status.check is None:
        return SuggestedAction("check", translate("Fleet", "Check"))
    return None if status.state == READY else SuggestedAction("check", translate("Fleet", "Check again"))


def place(status: HostStatus) -> str:
    """Returns the address of a host."""
    return translate("Fleet", "this computer") if status.host.local else status.host.place


def answer_sentence(hosts: Sequence[HostStatus], *, has_looked: bool) -> str:
    """Returns a sentence with the number of hosts that answer."""
    answering = sum(status.answers or status.has_no_agent for status in hosts)
    if not answering and any(status.doing is not None for status in hosts):
        return translate("Fleet", "Asking {hosts} …").format(hosts=names_of(hosts))
    # A host without an agent has accepted a login, so that it counts as answering.
    if not answering and not has_looked:
        return translate("Fleet", "Hosts not asked yet")
    if len(hosts) == 1:
        return translate("Fleet", "The host answers") if answering else translate("Fleet", "The host does not answer")
    return translate("Fleet", "{answering} of {hosts} hosts answer").format(answering=answering, hosts=len(hosts))


def names_of(hosts: Sequence[HostStatus]) -> str:
    """Returns the names of a few hosts, or the number of hosts if there are more."""
    if len(hosts) > 3:
        return translate("Fleet", "{count} hosts").format(count=len(hosts))
    return ", ".join(status.name for status in hosts)


def enforcement_lines(status: HostStatus) -> list[str]:
    """Returns the lines that describe how the agent enforces bookings. There are none if that is unknown.

    The agent of root enforces bookings for the processes of all users, other agents only for those of their own user.
    """
    enforced = status.check.enforcement if status.check is not None else None
    if enforced is None:
        return []
    level = {
        "off": translate("Fleet", "not enforced"),
        "observe": translate("Fleet", "observed"),
        "warn": translate("Fleet", "warns"),
        "stop": translate("Fleet", "warns and stops"),
    }.get(enforced.level, enforced.level)
    if enforced.level == "off":
        return [level]
    reported = [clean_name(one) for one in enforced.violations]
    if not enforced.is_fresh:
        return [level, translate("Fleet", "once it knows today's"), *reported]
    whose = (
        translate("Fleet", "everybody's processes") if enforced.of_all else translate("Fleet", "its user's processes")
    )
    return [translate("Fleet", "{level}, dry run").format(level=level) if enforced.dry_run else level, whose, *reported]


def gpu_kinds(gpus: list[GpuNow]) -> str:
    """Returns each kind of GPU with its number, such as `8 × H100 80 GB`. Without GPUs it returns ""."""
    kinds: dict[str, int] = {}
    for gpu in gpus:
        kind = gpu_kind(gpu)
        kinds[kind] = kinds.get(kind, 0) + 1
    return ", ".join(f"{number} × {kind}" for kind, number in kinds.items())


def gpu_kind(gpu: GpuNow) -> str:
    """Returns the short name of a GPU model, such as `H100 80 GB` for `NVIDIA H100 80GB HBM3`."""
    model = short_model(gpu.name) or translate("Fleet", "GPU")
    return f"{model} {formatting.memory(gpu.memory_mb)}" if gpu.memory_mb else model


def used_of(used_mb: float | None, total_mb: float | None) -> str:
    """Returns used and total memory, such as `61 of 80 GB`. Unknown parts are shown as "?"."""
    if total_mb is None:
        return "?"
    if used_mb is None:
        return translate("Fleet", "? of {total}").format(total=formatting.memory(total_mb))
    used = formatting.memory(used_mb).removesuffix(" GB")
    return translate("Fleet", "{used} of {total}").format(used=used, total=formatting.memory(total_mb))


def percent(value: float | None) -> str:
    return "?" if value is None else formatting.percent(value)


def version(text: str | None) -> str:
    """Returns the version in the description of an interpreter: `3.11.9` for `3.11.9 at /usr/bin/python3`."""
    return (text or "").split(" at ")[0]


def accessible_text(status: HostStatus) -> str:
    """Returns a one-line description of a host for screen readers."""
    gpus = gpu_kinds(status.gpus) or translate("Fleet", "no GPU")
    parts = [status.name, doing_word(status) or f"{state_word(status)} {since(status)}"]
    if status.facts.checked or status.sample is not None:
        parts.append(gpus)
    parts.append(sentence(status))
    return ", ".join(part for part in parts if part)


def _at_rest(status: HostStatus) -> HostStatus:
    return replace(status, doing=None)
