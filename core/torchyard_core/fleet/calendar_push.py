"""Exchanges the calendar with agents, which have no access to the database.

Agents receive copies of the calendar, each with the time at which it was current, and return evidence of use. The
copies are JSON from `torchyard_core.booking.store`, which is a higher layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, wait
from typing import Any

from torchyard_core.errors import AgentRefused, AgentTooOld, HostError, TorchyardError
from torchyard_core.fleet.daemon_client import DaemonClient
from torchyard_core.fleet.fleet import Fleet
from torchyard_core.identity import desktop_identity

ANSWER_S = 20.0


def open_links(fleet: Fleet, names: Iterable[str] | None = None) -> dict[str, DaemonClient]:
    """Returns the open links to the named hosts, by default to all hosts. Does not open any links."""
    found = {name: fleet.open_link(name) for name in (fleet.hosts if names is None else names)}
    return {name: link for name, link in found.items() if link is not None}


def push_calendar(
    links: Mapping[str, DaemonClient], revision: str, taken: str, snapshot: Callable[[], Mapping[str, Any]]
) -> dict[str, TorchyardError]:
    """Sends the calendar to hosts concurrently. Hosts whose agent is too old for this request are skipped.

    A host that already has the revision only records that the revision was current at the time `taken`. If any host
    lacks the revision, `snapshot` is called once, and its result is sent to each of these hosts.

    Returns:
        The errors by host name, for the hosts that did not accept the calendar.
    """
    params: dict[str, Any] = {"revision": revision, "by": desktop_identity()}
    asked = {
        name: link.submit("bookings.confirm", {**params, "host": name, "taken": taken}) for name, link in links.items()
    }
    answers, problems = _answers(asked)
    without = [name for name in links if name not in problems and not answers.get(name, {}).get("kept")]
    if without:
        params["snapshot"] = snapshot()
        asked = {name: links[name].submit("bookings.snapshot", {**params, "host": name}) for name in without}
        problems |= _answers(asked)[1]
    return problems


def collect_evidence(links: Mapping[str, DaemonClient], since: str | None = None) -> dict[str, dict[str, Any]]:
    """Returns each host's evidence of use and of idle bookings after `since`. Hosts that do not answer are omitted."""
    pending = {name: link.submit("bookings.evidence", {"since": since}) for name, link in links.items()}
    return _answers(pending)[0]


def _answers(pending: Mapping[str, Future[Any]]) -> tuple[dict[str, Any], dict[str, TorchyardError]]:
    wait(pending.values(), ANSWER_S)
    answers: dict[str, Any] = {}
    problems: dict[str, TorchyardError] = {}
    for name, future in pending.items():
        if not future.done():
            problems[name] = HostError(name, f"{name} did not answer within {ANSWER_S:.0f} s.")
            continue
        try:
            answers[name] = future.result()
        except AgentTooOld:
            continue
        except (AgentRefused, HostError) as problem:
            problems[name] = problem
    return answers, problems
