"""Tests whether the hosts of a run can connect to each other in both directions, on the ports of the run."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from itertools import combinations, permutations
from typing import Any

from torchyard_agent.protocol.messages import Prepared
from torchyard_core.background_thread import Answers, in_background
from torchyard_core.errors import AgentRefused
from torchyard_core.launch.agent_interface import AgentLink
from torchyard_core.launch.checks.check import Check
from torchyard_core.launch.planning import LaunchContext
from torchyard_core.launch.progress import LaunchProgress
from torchyard_core.next_steps import SetHostField

ALL_PAIRS_UP_TO = 8
"""Maximum number of hosts for which all pairs are tested. More hosts form a ring, in which neighbours are tested."""
MAX_PORTS = 8
"""Maximum number of tested ports per host. A few suffice, because firewalls allow or block whole ranges."""
ANSWER_S = 30.0


def neighbours(hosts: Sequence[str]) -> list[tuple[str, str]]:
    """Returns the pairs of hosts to test: all pairs of up to ALL_PAIRS_UP_TO hosts, and a ring for more hosts."""
    if len(hosts) <= ALL_PAIRS_UP_TO:
        return list(combinations(hosts, 2))
    return list(zip(hosts, [*hosts[1:], hosts[0]], strict=True))


def directions(hosts: Sequence[str]) -> list[tuple[str, str]]:
    """Returns the connections to test, as pairs of (source, target).

    Both directions are tested between the hosts of each pair, and between each host and the primary, which is the first
    host.
    """
    if len(hosts) <= ALL_PAIRS_UP_TO:
        return list(permutations(hosts, 2))
    pairs = [*neighbours(hosts), *((hosts[0], host) for host in hosts[1:])]
    return list(dict.fromkeys(direction for a, b in pairs for direction in ((a, b), (b, a))))


def check_connectivity(
    context: LaunchContext, prepared: Mapping[str, Prepared], progress: LaunchProgress
) -> list[Check]:
    """Tests the connections of `directions`, and closes the listeners. Returns no lines for a run on one host."""
    hosts = context.plan.hosts
    if len(hosts) < 2:
        return []
    token = secrets.token_hex(16)
    links = {host: context.links[host] for host in hosts}
    try:
        pending: Answers = {}
        for host, link in links.items():
            ports = [prepared[host]["gang_port"], *prepared[host]["ports"]][:MAX_PORTS]
            listen = {"token": token, "address": prepared[host]["address"], "ports": ports}
            pending[host] = in_background(_listen, link, listen)
        listening: dict[str, Any] = progress.wait_for_all(pending)
        return _verdicts(listening, _try_all(token, links, listening, directions(list(links)), progress))
    finally:
        # The answers are not awaited, because each host handles `network.close` before the request to start the run.
        for link in links.values():
            link.submit("network.close", {"token": token})


def check_added_host(
    host: str,
    prepared: Prepared,
    links: Mapping[str, AgentLink],
    port_ranges: Mapping[str, tuple[int, int] | None],
    progress: LaunchProgress,
) -> list[Check]:
    """Tests the connections between a host that is added to a live run and the hosts of the run, in both directions.

    Args:
        host: The added host.
        prepared: The answer of the added host to `run.prepare`.
        links: The links to the added host, and to those hosts of the run that answer.
        port_ranges: The ports that the firewall of each host admits; None for all ports.
        progress: The callbacks of the launch.
    """
    token = secrets.token_hex(16)
    members = [member for member in links if member != host]
    try:
        pending: Answers = {}
        ports = [prepared["gang_port"], *prepared["ports"]][:MAX_PORTS]
        pending[host] = in_background(
            _listen, links[host], {"token": token, "address": prepared["address"], "ports": ports}
        )
        for member in members:  # The run already uses the ports reserved on its hosts, so the test uses other ports.
            allowed = port_ranges.get(member)
            there = {"towards": prepared["address"], "port_range": list(allowed) if allowed else None}
            pending[member] = in_background(_listen, links[member], {"token": token, **there})
        listening: dict[str, Any] = progress.wait_for_all(pending)
        tested = [pair for member in members for pair in ((host, member), (member, host))]
        return _verdicts(listening, _try_all(token, links, listening, tested, progress))
    finally:
        for link in links.values():
            link.submit("network.close", {"token": token})


def _listen(link: AgentLink, listen: dict[str, Any]) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = link.call("network.listen", listen, ANSWER_S)
        return answer
    except AgentRefused as refusal:
        return {"error": refusal.message, "address": listen.get("address"), "ports": []}


def _try_all(
    token: str,
    links: Mapping[str, AgentLink],
    listening: Mapping[str, Any],
    tested: Sequence[tuple[str, str]],
    progress: LaunchProgress,
) -> dict[str, list[dict[str, Any]]]:
    """Tests connections, given as (source, target). Returns the failed targets of each source host."""
    targets_of: dict[str, list[dict[str, Any]]] = {host: [] for host in links}
    for source, target in tested:
        there = listening[target]
        targets_of[source] += [{"host": target, "address": there["address"], "port": port} for port in there["ports"]]
    pending: Answers = {
        host: in_background(
            links[host].call,
            "network.reach",
            {"token": token, "source": listening[host]["address"], "targets": targets},
            ANSWER_S,
        )
        for host, targets in targets_of.items()
    }
    return progress.wait_for_all(pending)


def _verdicts(listening: Mapping[str, Any], missed: Mapping[str, list[dict[str, Any]]]) -> list[Check]:
    lines = []
    for host, there in listening.items():
        if "error" in there:
            message = f"connections to {host} on the data network could not be tried: {there['error']}."
            lines.append(Check("network", host, True, message, warning=True))
    for source, failures in missed.items():
        by_target: dict[str, list[dict[str, Any]]] = {}
        for failure in failures:
            by_target.setdefault(failure["host"], []).append(failure)
        for target, failed in by_target.items():
            ports = ", ".join(str(failure["port"]) for failure in failed)
            address, error = failed[0]["address"], failed[0]["error"]
            at = f"{address} port {ports}" if len(failed) == 1 else f"{address} ports {ports}"
            hint = (
                f"Let the firewall of {target} pass what `ports` of the fleet file names, or name an address that "
                f"{source} reaches.",
                SetHostField(target, "data_address"),
            )
            lines.append(Check("network", source, False, f"{source} does not reach {target} at {at}: {error}.", hint))
    if not lines:
        return [Check("network", "", True, f"{len(listening)} hosts reach each other on the data network, both ways")]
    return lines
