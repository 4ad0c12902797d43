"""Whether the hosts of a run reach each other on the data network, both ways, at the ports that it holds."""

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
from torchyard_core.launch.planning import Ground
from torchyard_core.launch.progress import Telling

ALL_PAIRS_UP_TO = 8
"""Hosts. Beyond, a ring of pairs stands for all."""
MAX_PORTS = 8
"""Of a host, that are tried: a firewall lets a range through, or does not."""
ANSWER_S = 30.0


def neighbours(hosts: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of hosts, each once: all of them where hosts are few, else a ring."""
    if len(hosts) <= ALL_PAIRS_UP_TO:
        return list(combinations(hosts, 2))
    return list(zip(hosts, [*hosts[1:], hosts[0]], strict=True))


def directions(hosts: Sequence[str]) -> list[tuple[str, str]]:
    """(from, to) of every way that is tried: both ways of each pair, and of each host with the primary, the first."""
    if len(hosts) <= ALL_PAIRS_UP_TO:
        return list(permutations(hosts, 2))
    pairs = [*neighbours(hosts), *((hosts[0], host) for host in hosts[1:])]
    return list(dict.fromkeys(way for a, b in pairs for way in ((a, b), (b, a))))


def check_ways(context: Ground, prepared: Mapping[str, Prepared], progress: Telling) -> list[Check]:
    """Tries all ways, and tells; no lines where the run has one host. Nobody listens any more when this returns."""
    hosts = context.plan.hosts
    if len(hosts) < 2:
        return []
    token = secrets.token_hex(16)
    links = {host: context.links[host] for host in hosts}
    try:
        asked: Answers = {}
        for host, link in links.items():
            ports = [prepared[host]["gang_port"], *prepared[host]["ports"]][:MAX_PORTS]
            listen = {"token": token, "address": prepared[host]["address"], "ports": ports}
            asked[host] = in_background(_listen, link, listen)
        listening: dict[str, Any] = progress.wait_for_all(asked)
        return _verdicts(listening, _try_all(token, links, listening, progress))
    finally:
        # The answers are not waited for: on each host this comes before what starts the run there.
        for link in links.values():
            link.submit("network.close", {"token": token})


def _listen(link: AgentLink, listen: dict[str, Any]) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = link.call("network.listen", listen, ANSWER_S)
        return answer
    except AgentRefused as refusal:
        return {"error": refusal.message, "address": listen["address"], "ports": []}


def _try_all(
    token: str, links: Mapping[str, AgentLink], listening: Mapping[str, Any], progress: Telling
) -> dict[str, list[dict[str, Any]]]:
    """By host, which targets it did not reach."""
    ways: dict[str, list[dict[str, Any]]] = {host: [] for host in links}
    for source, target in directions(list(links)):
        there = listening[target]
        ways[source] += [{"host": target, "address": there["address"], "port": port} for port in there["ports"]]
    asked: Answers = {
        host: in_background(
            links[host].call,
            "network.reach",
            {"token": token, "source": listening[host]["address"], "targets": targets},
            ANSWER_S,
        )
        for host, targets in ways.items()
    }
    return progress.wait_for_all(asked)


def _verdicts(listening: Mapping[str, Any], missed: Mapping[str, list[dict[str, Any]]]) -> list[Check]:
    lines = []
    for host, there in listening.items():
        if "error" in there:
            message = f"whether others reach {host} on the data network could not be tried: {there['error']}."
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
                f"Let the firewall of {target} pass what `ports` of the fleet file names, or set `data_address` of "
                f"{target} to an address that {source} reaches."
            )
            lines.append(Check("network", source, False, f"{source} does not reach {target} at {at}: {error}.", hint))
    if not lines:
        return [Check("network", "", True, f"{len(listening)} hosts reach each other on the data network, both ways")]
    return lines
