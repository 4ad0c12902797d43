"""Summary of the fleet for the status bar."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QCoreApplication

from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.bridge.host_states import HostState
from torchyard_gui.bridge.host_status import CheckedEntry, count_hosts
from torchyard_gui.fleet.labels import answer_sentence, short_time, state_count_text, state_word
from torchyard_gui.windows.status_bar import StatusText


def fleet_texts(fleet: FleetModel) -> list[StatusText]:
    """Returns how many hosts answer, and which hosts and clusters are not ready.

    If the fleet file is unreadable or the fleet is empty, a single entry says so. All hosts also share a single entry
    before their first check, and during a check as long as no host has answered.
    """
    if fleet.problem is not None:
        return [("failed", _tr("The fleet file cannot be read: see Fleet"))]
    return [*_host_texts(fleet), *_cluster_texts(fleet)]


def _cluster_texts(fleet: FleetModel) -> list[StatusText]:
    """Returns the states of the clusters that have been checked and are not ready or, if the fleet has no hosts, the
    states of all clusters.
    """
    if not fleet.hosts:
        return [_state_text(status.condition, [status]) for status in fleet.clusters.all]
    checked = [status for status in fleet.clusters.all if status.check is not None or status.lost is not None]
    return [_state_text(status.condition, [status]) for status in checked if status.condition not in _PLAIN_STATES]


def _host_texts(fleet: FleetModel) -> list[StatusText]:
    hosts = fleet.hosts
    if not hosts:
        return [] if fleet.clusters.all else [_tr("No hosts in the fleet")]
    count = count_hosts(hosts)
    answers = answer_sentence(hosts, has_looked=fleet.has_looked)
    if not count.answering and any(host.doing is not None for host in hosts):
        return [("checking", answers)]
    if not count.answering and not fleet.has_looked:
        return [("unknown", answers)]
    shown = [(state, found) for state, found in count.by_state.items() if state not in _PLAIN_STATES]
    single = len(hosts) == 1
    others = [_state_text(state, found) for state, found in shown if not (single and state is HostState.UNKNOWN)]
    return [("ok" if count.answering else "unknown", answers), *others]


def gpu_text(fleet: FleetModel) -> str:
    """Returns the number of known GPUs, such as `16 GPUs`, or "" if the fleet is empty."""
    hosts = fleet.facts()
    if not hosts:
        return ""
    count = sum(len(host.gpus) for host in hosts)
    if not all(host.checked for host in hosts):
        return _tr("at least {count} GPUs").format(count=count) if count > 1 else _tr("GPUs unknown")
    if not count:
        return _tr("no GPU")
    return _tr("1 GPU") if count == 1 else _tr("{count} GPUs").format(count=count)


_PLAIN_STATES = (HostState.READY,)
"""States that the summary does not list, because it already shows how many hosts answer."""


def _state_text(state: HostState, hosts: Sequence[CheckedEntry]) -> StatusText:
    """Returns the mark of a state and a text. The text names the host in that state or, if there are several hosts,
    contains their number.
    """
    if len(hosts) > 1:
        return state.mark, state_count_text(state, len(hosts))
    host = hosts[0]
    if state is HostState.NO_AGENT:
        return state.mark, _tr("{host} has no agent").format(host=host.name)
    if state is HostState.UNKNOWN:
        if host.since is None:
            return state.mark, _tr("{host} not checked").format(host=host.name)
        is_unchecked = host.lost is None and host.check is None
        text = _tr("{host} last checked {time}") if is_unchecked else _tr("{host} unknown since {time}")
        return state.mark, text.format(host=host.name, time=short_time(host.since))
    return state.mark, f"{host.name}: {state_word(host)}"


def _tr(text: str) -> str:
    return QCoreApplication.translate("FleetWords", text)
