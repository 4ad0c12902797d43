"""The last part of a launch: keepers prepared on every host and the run handed to them, or all of it taken back."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from concurrent.futures import Future, wait
from typing import Any

from torchyard_agent.protocol.shapes import Join, Member, Policy, Prepare, Prepared, Start
from torchyard_core.background import Answers, in_background
from torchyard_core.errors import AgentRefused, HostError
from torchyard_core.launch.agents import AgentLink
from torchyard_core.launch.checking import Ground
from torchyard_core.launch.environment import Site, blueprint
from torchyard_core.launch.ports import ports_needed
from torchyard_core.launch.preview import host_python
from torchyard_core.launch.reserving import Reserved
from torchyard_core.launch.telling import Telling
from torchyard_core.topology.model import Topology
from torchyard_core.whoami import who_asks

PREPARE_TIMEOUT_S = 150.0
START_TIMEOUT_S = 60.0
TAKE_BACK_S = 15.0
"""How long hosts have to give up a launch that is taken back."""
LOOPBACK = "127.0.0.1"


def prepare(
    run_id: str,
    name: str,
    ground: Ground,
    root: str | None,
    record: dict[str, Any],
    telling: Telling,
    resume_from: str | None = None,
    *,
    later: bool = False,
) -> dict[str, Prepared]:
    """A keeper on every host that holds what the run needs there. `root` names the snapshot; None for no code.

    `resume_from`: the run whose checkpoints on each host the new one begins with. `later`: it takes its GPUs only at
    its start, since others use them until then.

    Raises AgentRefused (a GPU that somebody holds, no port left), a HostError or Cancelled.
    """
    secret = secrets.token_hex(32)
    planned = ground.plan
    towards = primary_address(ground)
    ports = ports_needed(planned)
    asked: Answers = {}
    for host in planned.hosts:
        site, link = ground.hosts[host], ground.links[host]
        share = Prepare(
            run_id=run_id,
            name=name,
            host=host,
            secret=secret,
            snapshot=root,
            gpus=[gpu.uuid for replica in planned.on_host(host) for gpu in replica.gpus],
            ports=ports[host],
            port_range=list(site.port_range) if site.port_range else None,
            data_address=site.data_address or (towards if host == planned.primary else None),
            interface=site.interface,
            towards=None if towards == LOOPBACK else towards,
            resume_from=resume_from,
            later=later,
            record=record,
        )
        asked[host] = in_background(link.call, "run.prepare", {**share, "archive": link.archive}, PREPARE_TIMEOUT_S)
    prepared: dict[str, Prepared] = telling.all(asked, "preparing")
    telling.stop_if_cancelled()
    return prepared


def primary_address(ground: Ground) -> str:
    """Where the primary is on the data network, as far as the desktop can tell."""
    primary, *others = ground.plan.hosts
    if ground.hosts[primary].data_address:
        return str(ground.hosts[primary].data_address)
    if ground.links[primary].ssh_address:
        return ground.links[primary].ssh_address
    remote = next((ground.links[host].ssh_address for host in others if ground.links[host].ssh_address), None)
    if remote is None:
        return LOOPBACK
    return str(ground.links[primary].call("host.route", {"to": remote})["address"])


def start(
    run_id: str,
    lineage: str,
    topology: Topology,
    ground: Ground,
    prepared: Mapping[str, Prepared],
    secret_values: dict[str, str],
    telling: Telling,
    reserved: Reserved,
) -> None:
    """Hands the whole run to the primary's keeper, and tells the others where that is."""
    planned, program = ground.plan, topology.program
    sites = {
        host: Site(
            address=there["address"],
            interface=there["interface"],
            run_dir=there["run_dir"],
            python=host_python(ground.hosts[host], program),
            ports=tuple(there["ports"]),
        )
        for host, there in prepared.items()
    }
    members = [
        Member(host=host, address=prepared[host]["address"], gang_port=prepared[host]["gang_port"])
        for host in planned.hosts
    ]
    cluster, replicas = blueprint(planned, sites, run_id, lineage=lineage)
    begin = Start(
        members=members,
        cluster=cluster,
        replicas=replicas,
        policy=Policy(
            ends_with=topology.ends_with.value,
            stop_grace_s=program.stop_grace_s,
            failure_grace_s=program.failure_grace_s,
            host_wait_s=program.host_wait_s,
            max_restarts=program.max_restarts,
            min_replicas={pool.name: pool.min_replicas for pool in topology.pools if pool.min_replicas is not None},
        ),
        setup=list(program.setup),
        secrets=secret_values,
        notify=program.notify,
        carry=program.checkpoint_dir is None,
        start_at=reserved.start_at.isoformat() if reserved.start_at else None,
        booking=_booking(reserved),
    )
    primary, *others = planned.hosts
    asked: Answers = {}
    for host in others:
        join = {**Join(primary=members[0]), "run_id": run_id}
        asked[host] = in_background(ground.links[host].call, "run.join", join, START_TIMEOUT_S)
    asked[primary] = in_background(
        ground.links[primary].call, "run.start", {**begin, "run_id": run_id}, START_TIMEOUT_S
    )
    telling.all(asked, "starting")
    telling.stop_if_cancelled()  # it has begun by now, and is ended again


def _booking(reserved: Reserved) -> dict[str, Any] | None:
    """The booking that a run stands on, as its keeper is told."""
    if reserved.booking_id is None or reserved.until is None:
        return None
    return {
        "id": reserved.booking_id,
        "owner": reserved.owner,
        "end": reserved.until.isoformat(),
        "stop_at_end": reserved.stop_at_end,
    }


def take_back(run_id: str, links: Mapping[str, AgentLink]) -> None:
    """Every host that may have been prepared gives up what it holds; where the run has begun, it is ended."""
    abort = {"run_id": run_id, "by": who_asks()}
    asked = {host: link.submit("run.abort", abort) for host, link in _still_open(links).items()}
    wait(asked.values(), timeout=TAKE_BACK_S)
    problems = [future.exception() for future in asked.values() if future.done()]
    for problem in problems:
        if problem is not None and not isinstance(problem, (AgentRefused, HostError)):
            raise problem
    if any(isinstance(problem, AgentRefused) and problem.code == "begun" for problem in problems):
        _end_what_has_begun(run_id, links)


def _end_what_has_begun(run_id: str, links: Mapping[str, AgentLink]) -> None:
    """Stops the run everywhere without grace, and removes what it left, since nobody was told of it."""
    by = who_asks()
    stop = {"run_id": run_id, "reason": f"taken back by {by} while it was launched", "force": True, "by": by}
    wait([link.submit("run.stop", stop) for link in _still_open(links).values()], timeout=TAKE_BACK_S)
    deadline = time.monotonic() + TAKE_BACK_S
    left = _still_open(links)
    while left and time.monotonic() < deadline:
        asked = {host: link.submit("run.remove", {"run_id": run_id, "by": by}) for host, link in left.items()}
        wait(asked.values(), timeout=TAKE_BACK_S)
        left = {host: link for host, link in left.items() if _is_alive_there(asked[host])}
        time.sleep(0.05 if left else 0)


def _still_open(links: Mapping[str, AgentLink]) -> dict[str, AgentLink]:
    return {host: link for host, link in links.items() if link.is_open}


def _is_alive_there(removal: Future[Any]) -> bool:
    """Whether a host answered that it cannot remove the run yet."""
    problem = removal.exception() if removal.done() else None
    return isinstance(problem, AgentRefused) and problem.code == "run_alive"
