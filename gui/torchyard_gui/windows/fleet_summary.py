"""Texts about the fleet for the status bar."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from PySide6.QtCore import QCoreApplication

from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.bridge.host_status import HostStatus
from torchyard_gui.fleet.labels import answer_sentence
from torchyard_gui.windows.status_bar import StatusText


def fleet_texts(fleet: FleetModel) -> list[StatusText]:
    """Returns texts with the number of hosts that answer, and about hosts that do not answer or have no agent."""
    if fleet.problem is not None:
        return [("failed", _tr("The fleet file cannot be read: see Fleet"))]
    hosts = fleet.hosts
    if not hosts:
        return [_tr("No hosts in the fleet")]
    answering = any(host.answers or host.has_no_agent for host in hosts)
    if not answering and any(host.doing is not None for host in hosts):
        return [("checking", answer_sentence(hosts, has_looked=fleet.has_looked))]
    answers: StatusText = ("ok" if answering else "unknown", answer_sentence(hosts, has_looked=fleet.has_looked))
    return [answers, *_without_agent(hosts), *(_silent(hosts) if answering or fleet.has_looked else [])]


def gpu_text(fleet: FleetModel) -> str:
    """Returns the number of known GPUs as text, or "" if the fleet is empty."""
    hosts = fleet.facts()
    if not hosts:
        return ""
    count = sum(len(host.gpus) for host in hosts)
    if not all(host.checked for host in hosts):
        return _tr("at least {count} GPUs").format(count=count) if count > 1 else _tr("GPUs unknown")
    if not count:
        return _tr("no GPU")
    return _tr("1 GPU") if count == 1 else _tr("{count} GPUs").format(count=count)


def _without_agent(hosts: Sequence[HostStatus]) -> list[StatusText]:
    without = [host.name for host in hosts if host.has_no_agent]
    if not without:
        return []
    if len(without) > 1:
        return [("planned", _tr("{count} without agent yet").format(count=len(without)))]
    return [("planned", _tr("{host} has no agent yet").format(host=without[0]))]


def _silent(hosts: Sequence[HostStatus]) -> list[StatusText]:
    silent = [host for host in hosts if not host.answers and not host.has_no_agent and host.doing is None]
    if len(hosts) == 1 or not silent:
        return []
    if len(silent) > 1:
        return [("unknown", _tr("{count} unknown").format(count=len(silent)))]
    host = silent[0]
    if host.since is None:
        return [("unknown", _tr("{host} unknown").format(host=host.name))]
    since = _local(host.since)
    return [("unknown", _tr("{host} unknown since {time}").format(host=host.name, time=since))]


def _local(time: datetime) -> str:
    """Formats a local time, with the date unless it is today."""
    here = time.astimezone()
    return here.strftime("%H:%M" if here.date() == datetime.now().astimezone().date() else "%d %b %H:%M")


def _tr(text: str) -> str:
    return QCoreApplication.translate("FleetWords", text)
