"""Texts about the status and problems of a host."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from PySide6.QtCore import QCoreApplication, QDateTime, QLocale

from torchyard_agent.protocol.attribution import clean_name
from torchyard_core import formatting
from torchyard_core.app.undeploy_hosts import Removed
from torchyard_core.errors import KeyChanged, KeyUnknown, TorchyardError
from torchyard_core.gpu_names import short_model
from torchyard_gui.bridge.host_states import HostState, state_name
from torchyard_gui.bridge.host_status import UNKNOWN, CheckedEntry, GpuNow, HostStatus, count_hosts
from torchyard_gui.theme.marks import trouble_token
from torchyard_gui.widgets.next_steps import as_sentence

translate = QCoreApplication.translate


def state_word(status: CheckedEntry) -> str:
    """Returns the name of a host's state in one or two words."""
    return state_name(status.condition)


def state_count_text(state: HostState, count: int) -> str:
    """Returns the number of hosts in a state with a short description, such as `2 with a changed key`."""
    texts = {
        HostState.READY: translate("Fleet", "{count} ready"),
        HostState.DEGRADED: translate("Fleet", "{count} degraded"),
        HostState.NO_AGENT: translate("Fleet", "{count} without agent"),
        HostState.AGENT_FAILED: translate("Fleet", "{count} with a failed agent"),
        HostState.NO_PYTHON: translate("Fleet", "{count} without Python"),
        HostState.KEY_UNKNOWN: translate("Fleet", "{count} with an unknown key"),
        HostState.KEY_CHANGED: translate("Fleet", "{count} with a changed key"),
        HostState.LOGIN_REFUSED: translate("Fleet", "{count} with a refused login"),
        HostState.UNREACHABLE: translate("Fleet", "{count} unreachable"),
        HostState.UNKNOWN: translate("Fleet", "{count} unknown"),
    }
    return texts[state].format(count=count)


def state_mark(status: CheckedEntry) -> str:
    """Returns the name of the mark (in `theme.marks`) of a host's state. While an activity is in progress, returns
    "checking".
    """
    return "checking" if status.doing is not None else status.condition.mark


def tint(status: CheckedEntry) -> str:
    """Returns the colour token for a host's state: "fail", "wait", or "" if there is no problem."""
    return trouble_token(status.condition.mark)


def since(status: CheckedEntry) -> str:
    """Returns a text such as `since 14:21`, or `last checked 14:21` if the host was not checked in this session."""
    return since_forms(status)[0]


def since_forms(status: CheckedEntry) -> list[str]:
    """Returns the text of `since` and shorter forms of it, the longest first, so that the caller can choose one that
    fits.
    """
    if status.since is None:
        return [translate("Fleet", "never checked")]
    time, day = short_time(status.since), short_day(status.since)
    if status.state == UNKNOWN and status.lost is None and status.check is None:
        forms = [translate("Fleet", "last checked {time}"), translate("Fleet", "checked {time}")]
        return [form.format(time=shown) for shown in dict.fromkeys((time, day)) for form in forms]
    form = translate("Fleet", "since {time}")
    return list(dict.fromkeys([form.format(time=time), form.format(time=day), day]))


def doing_word(status: CheckedEntry) -> str:
    """Returns the name of the current activity on a host or cluster, or "" if there is none."""
    if status.doing is None:
        return ""
    words = {
        "waiting": translate("Fleet", "waiting …"),
        "checking": translate("Fleet", "logging in …"),
        "looking": translate("Fleet", "reading hardware and software …"),
        "deploying": translate("Fleet", "logging in …"),
        "sending": translate("Fleet", "sending the agent …"),
        "undeploying": translate("Fleet", "removing the agent …"),
    }
    return words[status.doing.kind]


def short_time(time: datetime) -> str:
    """Formats a time in the local zone as `14:21`, or as `20 Nov 14:21` on another day."""
    day, clock = short_day(time), time.astimezone().strftime("%H:%M")
    return clock if day == clock else f"{day} {clock}"


def short_day(time: datetime) -> str:
    """Formats a time in the local zone as `14:21`, or as `20 Nov` on another day."""
    local = time.astimezone()
    if local.date() == datetime.now().astimezone().date():
        return local.strftime("%H:%M")
    return QLocale().toString(_qt(time).date(), "d MMM")


def full_time(time: datetime) -> str:
    """Formats a time in the local zone, such as `2026-11-20 14:21:07 KST (UTC+09:00)`."""
    local = time.astimezone()
    zone = local.strftime("%z")
    return f"{local:%Y-%m-%d %H:%M:%S} {local:%Z} (UTC{zone[:3]}:{zone[3:]})"


def _qt(time: datetime) -> QDateTime:
    return QDateTime.fromMSecsSinceEpoch(int(time.timestamp() * 1000))


def sentence(status: CheckedEntry) -> str:
    """Returns a sentence about the first problem of a host and the next step, or a note that the host has not been
    checked. Returns "" for a checked host without problems.
    """
    if status.problems:
        return problem_sentence(status, status.problems[0])
    if status.state == UNKNOWN:
        if status.since is None:
            return translate("Fleet", "Not checked yet.")
        return translate("Fleet", "Not checked since the window was opened.")
    return ""


def problem_sentence(status: CheckedEntry, problem: TorchyardError) -> str:
    """Returns a problem as a sentence. Fingerprints and next steps that have buttons are left out."""
    message = problem.message
    if isinstance(problem, KeyUnknown):
        message = translate("Fleet", "The host key of {host} is not known.").format(host=problem.host)
    elif isinstance(problem, KeyChanged) and problem.on_record:
        message = translate("Fleet", "The host key of {host} has changed.").format(host=problem.host)
    return as_sentence(message, problem.advice, host=status.name, has_buttons=True)


def fingerprints(status: CheckedEntry) -> list[tuple[str, str]]:
    """Returns the fingerprints of an unknown or changed host key, each as (label, fingerprint)."""
    error = None if status.lost is not None else status.error
    if not isinstance(error, KeyUnknown | KeyChanged) or not error.fingerprint:
        return []
    shown = [(translate("Fleet", "Shown"), error.fingerprint)]
    on_record = error.on_record if isinstance(error, KeyChanged) else ""
    return [*shown, (translate("Fleet", "On record"), on_record)] if on_record else shown


def place(status: CheckedEntry) -> str:
    """Returns the address of a host or login node, or `this computer`."""
    return translate("Fleet", "this computer") if status.login.local else status.login.place


def answer_sentence(hosts: Sequence[HostStatus], *, has_looked: bool) -> str:
    """Returns a note on how many hosts answer, or that the hosts are being checked or have not been checked yet."""
    answering = count_hosts(hosts).answering
    if not answering and any(status.doing is not None for status in hosts):
        return translate("Fleet", "Checking {hosts} …").format(hosts=names_of(hosts))
    if not answering and not has_looked:
        return translate("Fleet", "Hosts not checked yet")
    if len(hosts) == 1:
        return translate("Fleet", "The host answers") if answering else translate("Fleet", "The host does not answer")
    return translate("Fleet", "{answering} of {hosts} hosts answer").format(answering=answering, hosts=len(hosts))


def cpu_count(count: int) -> str:
    one, several = translate("Fleet", "1 CPU"), translate("Fleet", "{count} CPUs")
    return (one if count == 1 else several).format(count=count)


def names_of(hosts: Sequence[HostStatus]) -> str:
    """Returns the names of at most three hosts; for more hosts, returns only their number."""
    if len(hosts) > 3:
        return translate("Fleet", "{count} hosts").format(count=len(hosts))
    return ", ".join(status.name for status in hosts)


def enforcement_lines(status: HostStatus) -> list[str]:
    """Returns the lines that describe how the agent enforces bookings, or no lines if this is unknown.

    An agent that runs as root enforces bookings for the processes of all users. Any other agent does so only for the
    processes of its own user.
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
        return [level, translate("Fleet", "waiting for the current calendar"), *reported]
    whose = (
        translate("Fleet", "processes of all users") if enforced.of_all else translate("Fleet", "its user's processes")
    )
    return [translate("Fleet", "{level}, dry run").format(level=level) if enforced.dry_run else level, whose, *reported]


def removed_text(removed: Sequence[Removed]) -> str:
    """Returns a text about the hosts from which the agent was removed, hosts without an agent, and remaining stores."""
    gone = {one.node for one in removed if one.answer}
    with_agent = ", ".join(one.name for one in removed if one.answer)
    without = ", ".join(one.name for one in removed if not one.answer)
    texts = [translate("Fleet", "Agent removed from {hosts}.").format(hosts=with_agent)] if with_agent else []
    if without:
        texts.append(translate("Fleet", "There was no agent on {hosts}.").format(hosts=without))
    for name, answer in ((one.name, one.answer) for one in removed if one.answer):
        sharing = [node for node in answer["shared_with"] if node not in gone]
        if sharing:
            stays = translate("Fleet", "The store in {folder} of {host} stays, because it is shared with {others}.")
            texts.append(stays.format(folder=answer["removed"], host=name, others=", ".join(sharing)))
    return " ".join(texts)


def gpu_kinds(gpus: list[GpuNow]) -> str:
    """Returns the number of GPUs of each model, such as `8 × H100 80 GB`, or "" if there are no GPUs."""
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


def heat_text(gpus: Sequence[GpuNow]) -> str:
    """Returns the highest temperature and the total power of GPUs, such as `71 °C · 2.4 kW`. Omits unknown values."""
    temperatures = [gpu.temperature_c for gpu in gpus if gpu.temperature_c is not None]
    powers = [gpu.power_w for gpu in gpus if gpu.power_w is not None]
    texts = [formatting.temperature(max(temperatures))] if temperatures else []
    return " · ".join([*texts, formatting.power(sum(powers))] if powers else texts)


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
