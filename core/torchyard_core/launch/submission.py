"""The last phase of a launch: prepares a keeper on every host and submits the run, or undoes both steps."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any

from torchyard_agent.protocol.messages import (
    Cluster,
    Join,
    Member,
    OwnJobs,
    Policy,
    Prepare,
    Prepared,
    ReplicaPlan,
    Start,
)
from torchyard_agent.protocol.sweep_messages import Sweep
from torchyard_core.background_thread import Answers, in_background
from torchyard_core.errors import AgentRefused, HostError
from torchyard_core.identity import desktop_identity
from torchyard_core.launch.agent_interface import AgentLink, Hosts
from torchyard_core.launch.calendar_interface import Reservation
from torchyard_core.launch.plan_preview import host_python
from torchyard_core.launch.planning import LaunchContext
from torchyard_core.launch.progress import LaunchProgress
from torchyard_core.launch.replica_plans import PreparedHost, cluster_plan
from torchyard_core.topology.model import Topology

PREPARE_TIMEOUT_S = 150.0
START_TIMEOUT_S = 60.0
TAKE_BACK_S = 15.0
"""Maximum time in seconds to wait for the answers of hosts while a launch is undone."""
LOOPBACK = "127.0.0.1"


def prepare(
    run_id: str,
    name: str,
    context: LaunchContext,
    root: str | None,
    record: dict[str, Any],
    progress: LaunchProgress,
    ports: Mapping[str, int],
    resume_from: str | None = None,
    *,
    later: bool = False,
) -> dict[str, Prepared]:
    """Starts a keeper on every host. Each keeper reserves the resources of the run on its host.

    Args:
        run_id: The ID of the run.
        name: The name of the run.
        context: The plan, and the links of its hosts.
        root: The root hash of the code's snapshot; None without code.
        record: The run's record, which hosts store.
        progress: The callbacks of the launch.
        ports: The number of ports to reserve on each host.
        resume_from: The ID of the run whose checkpoints each host copies for the new run.
        later: Whether the keepers acquire the GPUs only at the scheduled start of the run.

    Raises:
        AgentRefused: A host refused, for example because a GPU is held by another process, or no port is free.
        HostError: A host could not be reached.
        Cancelled: The user cancelled the launch.
    """
    secret = secrets.token_hex(32)
    planned = context.plan
    towards = primary_address(context)
    pending: Answers = {}
    for host in planned.hosts:
        site, link = context.hosts[host], context.links[host]
        request = Prepare(
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
        pending[host] = in_background(link.call, "run.prepare", {**request, "archive": link.archive}, PREPARE_TIMEOUT_S)
    prepared: dict[str, Prepared] = progress.wait_for_all(pending, "preparing")
    progress.stop_if_cancelled()
    return prepared


def primary_address(context: LaunchContext) -> str:
    """Returns the address at which the other hosts reach the primary.

    This is the primary's data address or, if it has none, its SSH address. If the primary is this computer, it is the
    address from which this computer reaches another host of the run, or LOOPBACK if there is no other host.
    """
    primary, *others = context.plan.hosts
    if context.hosts[primary].data_address:
        return str(context.hosts[primary].data_address)
    if context.links[primary].ssh_address:
        return context.links[primary].ssh_address
    remote = next((context.links[host].ssh_address for host in others if context.links[host].ssh_address), None)
    if remote is None:
        return LOOPBACK
    return str(context.links[primary].call("host.route", {"to": remote})["address"])


def start(
    run_id: str,
    lineage: str,
    topology: Topology,
    context: LaunchContext,
    prepared: Mapping[str, Prepared],
    secret_values: dict[str, str],
    progress: LaunchProgress,
    reserved: Reservation,
    spare_imports: Sequence[str] = (),
) -> None:
    """Sends the run to the primary's keeper, and the primary's address to the other keepers.

    If `spare_imports` is not empty, each rank gets a spare interpreter that imports these modules.
    """
    planned, program = context.plan, topology.program
    sites = {
        host: PreparedHost(
            address=there["address"],
            interface=there["interface"],
            run_dir=there["run_dir"],
            python=host_python(context.hosts[host], program),
            ports=tuple(there["ports"]),
        )
        for host, there in prepared.items()
    }
    members = [
        Member(host=host, address=prepared[host]["address"], gang_port=prepared[host]["gang_port"])
        for host in planned.hosts
    ]
    cluster, replicas = cluster_plan(planned, sites, run_id, lineage=lineage)
    submit(
        *(
            run_id,
            context,
            members,
            cluster,
            replicas,
            policy_of(topology),
            topology,
            secret_values,
            progress,
            reserved,
        ),
        carry=program.checkpoint_dir is None,
        spare_imports=spare_imports,
    )


def policy_of(topology: Topology) -> Policy:
    """Returns the rules by which the primary ends and restarts the run."""
    program = topology.program
    return Policy(
        ends_with=topology.ends_with.value,
        stop_grace_s=program.stop_grace_s,
        failure_grace_s=program.failure_grace_s,
        host_wait_s=program.host_wait_s,
        max_restarts=program.max_restarts,
        min_replicas={pool.name: pool.min_replicas for pool in topology.pools if pool.min_replicas is not None},
        on_worker_loss=topology.strategy.on_worker_loss.value,
    )


def submit(
    run_id: str,
    context: LaunchContext,
    members: list[Member],
    cluster: Cluster,
    replicas: list[ReplicaPlan],
    policy: Policy,
    topology: Topology,
    secret_values: dict[str, str],
    progress: LaunchProgress,
    reserved: Reservation,
    *,
    carry: bool,
    spare_imports: Sequence[str] = (),
    sweep: Sweep | None = None,
) -> None:
    """Sends the run to the primary's keeper, and the primary's address to the other keepers."""
    begin = run_start(
        *(topology, members, cluster, replicas, policy, secret_values, reserved),
        carry=carry,
        spare_imports=spare_imports,
        sweep=sweep,
    )
    primary, *others = context.plan.hosts
    pending: Answers = {}
    for host in others:
        join = {**Join(primary=members[0]), "run_id": run_id}
        pending[host] = in_background(context.links[host].call, "run.join", join, START_TIMEOUT_S)
    pending[primary] = in_background(
        context.links[primary].call, "run.start", {**begin, "run_id": run_id}, START_TIMEOUT_S
    )
    progress.wait_for_all(pending, "starting")
    progress.stop_if_cancelled()  # The run has begun, so the caller must end it when it handles Cancelled.


def run_start(
    topology: Topology,
    members: list[Member],
    cluster: Cluster,
    replicas: list[ReplicaPlan],
    policy: Policy,
    secret_values: dict[str, str],
    reserved: Reservation,
    *,
    carry: bool,
    spare_imports: Sequence[str] = (),
    sweep: Sweep | None = None,
) -> Start:
    """Returns the parameters of the request `run.start`, which starts a run on its primary."""
    program = topology.program
    return Start(
        members=members,
        cluster=cluster,
        replicas=replicas,
        policy=policy,
        setup=list(program.setup),
        secrets=secret_values,
        notify=program.notify,
        carry=carry,
        spare_imports=list(spare_imports),
        start_at=reserved.start_at.isoformat() if reserved.start_at else None,
        booking=_booking(reserved),
        sweep=sweep,
        own_jobs=OwnJobs(replicas=[], masters={}),
    )


def _booking(reserved: Reservation) -> dict[str, Any] | None:
    """Returns the run's booking as the keeper expects it, or None if there is no booking."""
    if reserved.booking_id is None or reserved.until is None:
        return None
    return {
        "id": reserved.booking_id,
        "owner": reserved.owner,
        "end": reserved.until.isoformat(),
        "stop_at_end": reserved.stop_at_end,
    }


def take_back(run_id: str, links: Mapping[str, AgentLink], hosts: Hosts | None = None) -> tuple[str, ...]:
    """Makes every host release what it holds for the launch. Ends the run if it has begun.

    `hosts` opens new links in place of closed ones, which is necessary only after the request to start. Each request is
    answered within TAKE_BACK_S, or its answer is ignored.

    Returns:
        The hosts that have not confirmed the release.
    """
    abort = {"run_id": run_id, "by": desktop_identity()}
    answers = _answers(links, "run.abort", abort)
    if hosts is not None:
        reconnected = _reconnect([host for host, link in links.items() if not link.is_open], hosts)
        links = {**links, **reconnected}
        answers |= _answers(reconnected, "run.abort", abort)
    codes = {host: _refusal(future) for host, future in answers.items()}
    released = {host for host, code in codes.items() if code in ("", *_KEEPER_LEFT)}
    # If a connection was lost after the request to start, a short run may already have begun and ended.
    if any(code == "begun" or (hosts is not None and code in _KEEPER_LEFT) for code in codes.values()):
        released |= _end_run(run_id, links)
    return tuple(host for host in links if host not in released)


def _end_run(run_id: str, links: Mapping[str, AgentLink]) -> set[str]:
    """Stops the run on all hosts immediately. Removes its folders as soon as its keepers have exited.

    Tries to remove the folders for up to TAKE_BACK_S. Returns the hosts that no longer have a folder of the run.
    """
    by = desktop_identity()
    stop = {"run_id": run_id, "reason": f"cancelled by {by} during the launch", "force": True, "by": by}
    _answers(links, "run.stop", stop)
    deadline = time.monotonic() + TAKE_BACK_S
    left, cleared = dict(links), set[str]()
    while left and time.monotonic() < deadline:
        answers = _answers(left, "run.remove", {"run_id": run_id, "by": by})
        codes = {host: _refusal(future) for host, future in answers.items()}
        cleared |= {host for host, code in codes.items() if code in ("", "no_run")}
        left = {host: link for host, link in left.items() if codes[host] == "run_alive"}
        time.sleep(0.05 if left else 0)
    return cleared


_KEEPER_LEFT = ("run_over", "disconnected")
"""Codes of refusals by an agent whose keeper has exited or is exiting."""


def _answers(links: Mapping[str, AgentLink], method: str, params: dict[str, Any]) -> Answers:
    """Sends a request to all hosts, and waits up to TAKE_BACK_S for the answers.

    Returns the future of each host. Some futures may still be pending.
    """
    answers = {host: link.submit(method, params) for host, link in links.items()}
    wait(answers.values(), timeout=TAKE_BACK_S)
    return answers


def _refusal(answer: Future[Any]) -> str | None:
    """Returns the code of a refusal; "" for success, and None if the outcome is unknown. Raises other errors."""
    if not answer.done():
        return None
    problem = answer.exception()
    if problem is None:
        return ""
    if isinstance(problem, AgentRefused):
        return problem.code
    if isinstance(problem, HostError):
        return None
    raise problem


def _reconnect(names: Sequence[str], hosts: Hosts) -> dict[str, AgentLink]:
    """Returns new links to the hosts that can be reached within TAKE_BACK_S."""
    pending = {name: in_background(hosts.reach, [name], lambda host, link: None) for name in names}
    wait(pending.values(), timeout=TAKE_BACK_S)
    found = {name: future.result()[name] for name, future in pending.items() if future.done()}
    return {name: link for name, link in found.items() if not isinstance(link, HostError)}
