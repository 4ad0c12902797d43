"""Adds workers to a live run with `on_worker_loss: continue` (`torchyard runs grow`).

On a host that is already a member of the run, only one port is reserved for each worker. Any other host is checked and
prepared as in a launch, with the run's secret, and its keeper connects to the primary's. The request `run.grow` to the
primary then adds the workers. An error or a cancellation before this request releases the host and does not affect the
run. After the request, the primary starts the workers, which copy the state of another worker at a step boundary. A
worker that cannot do so is withdrawn, by the primary or by `run.withdraw`, and the run continues as before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchyard_agent.protocol.growth_messages import Grow, Hold, Invitation
from torchyard_agent.protocol.messages import Join, Member, Prepare, Prepared, ReplicaPlan
from torchyard_core.errors import AgentRefused, HostError, RunFailed, UsageError
from torchyard_core.formatting import counted
from torchyard_core.identity import desktop_identity
from torchyard_core.launch.agent_interface import AgentLink, Hosts
from torchyard_core.launch.checks.check import Check
from torchyard_core.launch.checks.connectivity import check_added_host
from torchyard_core.launch.checks.host_facts import check_host
from torchyard_core.launch.checks.preflight_client import PreflightClient
from torchyard_core.launch.checks.versions import check_versions
from torchyard_core.launch.plan_preview import host_python
from torchyard_core.launch.planning import LaunchContext
from torchyard_core.launch.progress import Cancelled, LaunchProgress
from torchyard_core.launch.rank_assignment import TRAINERS_GANG, Plan, PlannedReplica
from torchyard_core.launch.replica_plans import PreparedHost, cluster_plan
from torchyard_core.launch.restart import provide_code
from torchyard_core.launch.runs.follower import Follower
from torchyard_core.launch.runs.history import RunRecord
from torchyard_core.launch.submission import PREPARE_TIMEOUT_S, START_TIMEOUT_S, take_back
from torchyard_core.next_steps import ShowLogs
from torchyard_core.topology.file import topology_from_text
from torchyard_core.topology.host_facts import HostFacts
from torchyard_core.topology.model import Launcher, OnWorkerLoss, Pool, Role, StrategyKind, Topology
from torchyard_core.topology.placement.capacity import HostCapacity
from torchyard_core.topology.replicas import Replica, replicas_of

NEEDS = "`runs grow` is for runs with `strategy: {kind: all_reduce, on_worker_loss: continue}`"


@dataclass(frozen=True)
class AddedWorkers:
    """Workers that have joined a run."""

    names: tuple[str, ...]
    step: int
    workers: int
    """The number of workers that now take part in the run."""
    planned: int
    """The number of members plus the number of workers that were lost."""


def choose_pool(topology: Topology, named: str | None) -> tuple[int, Pool]:
    """Chooses the pool to which workers are added: the named pool, by default the only pool of workers.

    Returns the position and the pool. Raises RunFailed if the run's strategy or the pool does not allow
    additions, and UsageError if the name is unknown or there are several pools to choose from.
    """
    strategy = topology.strategy
    if strategy.kind is not StrategyKind.ALL_REDUCE or strategy.on_worker_loss is not OnWorkerLoss.CONTINUE:
        loss = f", on_worker_loss: {strategy.on_worker_loss}" if strategy.kind is StrategyKind.ALL_REDUCE else ""
        message = f"no worker can be added: its strategy is {strategy.kind}{loss}."
        raise RunFailed(message, code="cannot_grow", hint=f"{NEEDS}.")
    pools = {pool.name: (number, pool) for number, pool in enumerate(topology.pools) if pool.role is Role.WORKER}
    if not pools:
        raise RunFailed("no worker can be added: the run has no pool of workers.", code="cannot_grow")
    if named is None and len(pools) > 1:
        message = f"the run has the worker pools {', '.join(pools)}."
        raise UsageError(message, code="several_pools", hint="Name one of them with --pool.")
    if named is not None and named not in pools:
        message = f"the run has no worker pool `{named}`."
        raise UsageError(message, code="unknown_pool", hint=f"It has: {', '.join(pools)}.")
    position, pool = pools[named if named is not None else next(iter(pools))]
    if pool.gpus:
        message = (
            f"no worker can be added: the pool `{pool.name}` trains on GPUs, which this version cannot add to a run."
        )
        raise RunFailed(message, code="cannot_grow", hint="Stop the run, and restart it with more replicas.")
    return position, pool


def plan_added(topology: Topology, pool_index: int, names: Sequence[str], host: str, count: int) -> Plan:
    """Returns the plan of `count` further workers on a host, numbered after those in `names`."""
    numbers = [int(name.rpartition("-")[2]) for name in names if name.startswith(f"{Role.WORKER}-")]
    first, pool = 1 + max(numbers, default=-1), topology.pools[pool_index]
    planned = tuple(
        PlannedReplica(
            *(Replica(Role.WORKER, number, pool, pool_index), TRAINERS_GANG, host, (), 1),
            first_rank=None,
            first_world_rank=None,
            node_rank=None,
        )
        for number in range(first, first + count)
    )
    return Plan(topology, planned, (), 0, (host,), ())


def check_capacity(topology: Topology, pool: Pool, facts: HostFacts, there: Sequence[str], count: int) -> Check:
    """Returns the checklist line about the CPUs and memory of a host.

    Args:
        topology: The topology of the run.
        pool: The pool of the added workers.
        facts: The host's facts.
        there: The names of the run's replicas on the host.
        count: The number of workers to add.
    """
    capacity, pools = HostCapacity(facts, 0), {one.name: one.pool for one in replicas_of(topology)}
    for name in there:
        capacity.take_these(pools.get(name, pool), ())
    for _ in range(count):
        if not capacity.fits(pool):
            cpus = [f"{pool.cpus:g} CPU{'s' * (pool.cpus != 1)}"] if pool.cpus else []
            memory = [f"{pool.memory_gb:g} GB of memory"] if pool.memory_gb else []
            message = (
                f"{facts.name} has no room for {counted(count, 'more worker')} of the pool `{pool.name}`, each with "
                f"{' and '.join([*cpus, *memory])}."
            )
            return Check("host", facts.name, False, message, "Name another host, or add fewer workers.", code="no_room")
        capacity.take_these(pool, ())
    return Check("host", facts.name, True, f"has room for {counted(count, 'more worker')}")


@dataclass
class Growth:
    """Adds workers to a live run. `run` performs the addition. `cancel` undoes it, and may be called on any thread."""

    own: RunRecord
    """This desktop's record of the run."""
    shown: Mapping[str, Any]
    """The primary's answer to `run.show`."""
    host: str
    count: int
    pool: str | None
    hosts: Hosts
    links: Mapping[str, AgentLink]
    """The links to the run's hosts that answer, including the primary's."""
    on_event: Callable[[dict[str, Any]], None] = lambda event: None
    on_check: Callable[[Check], None] = lambda check: None
    on_progress: Callable[[str, int, int], None] = lambda step, done, total: None
    changes: dict[str, Any] = field(default_factory=dict)
    """The changed fields of this desktop's record. Empty until workers have joined the run."""
    _new: dict[str, AgentLink] = field(default_factory=dict)
    """The link to `host`, by its name, if `host` may hold resources only for this addition; otherwise empty."""
    _asked: bool = False
    """Whether the primary was asked to add the workers."""

    def __post_init__(self) -> None:
        self._progress = LaunchProgress(self.on_event, self.on_check, self.on_progress)

    def cancel(self) -> None:
        """Asks `run()` to stop and to leave the run unchanged. No effect once the workers have joined the run."""
        self._progress.cancelled.set()

    @property
    def _primary(self) -> AgentLink:
        return self.links[self.own.primary]

    def run(self) -> AddedWorkers:
        """Adds the workers, and waits until they have joined the run.

        Raises:
            RunFailed: A check failed, or the workers did not join; the run continues as before.
            Cancelled: `cancel` was called; the run continues as before.
            TorchyardError: A host could not be used, or an agent refused a request.
        """
        try:
            names = self._add()
        except BaseException as error:  # New hosts must also be released after KeyboardInterrupt.
            if self._new and not (self._asked and not isinstance(error, AgentRefused)):
                take_back(self.own.run_id, self._new, self.hosts)
            raise
        return self._wait(names)

    def _add(self) -> tuple[str, ...]:
        progress, run_id = self._progress, self.own.run_id
        topology = self._topology()
        pool_index, pool = choose_pool(topology, self.pool)
        link = self._reach()
        invited: Invitation = self._primary.call("run.invite", {"run_id": run_id, "host": self.host})
        there = [one["name"] for one in invited["replicas"] if one["host"] == self.host]
        is_member = bool(there)
        planned = plan_added(topology, pool_index, [one["name"] for one in invited["replicas"]], self.host, self.count)
        facts = self._check(planned, pool, there, link, is_member=is_member)
        links = {self.host: link}
        prepared: Prepared
        if is_member:
            prepared = link.call("run.hold", {**Hold(ports=self.count), "run_id": run_id})
        else:
            self._check_address(invited)
            self._remove_remains(link)
            provide_code(run_id, self.own.snapshot, self.links, links, self.hosts, progress)
            self._new = links
            request = {
                **self._prepare(facts, invited, self._record(planned)),
                "archive": links[self.host].archive,
                "anew": True,
            }
            prepared = links[self.host].call("run.prepare", request, PREPARE_TIMEOUT_S)
            progress.stop_if_cancelled()
            known = {host.name: host.port_range for host in self.hosts.known()}
            ranges = {name: (ports[0], ports[1]) if ports else None for name, ports in known.items()}
            progress.report_checks(check_added_host(self.host, prepared, {**self.links, **links}, ranges, progress))
        replicas = self._replica_plans(planned, facts, prepared, several=len(there) + self.count > 1)
        member = Member(host=self.host, address=prepared["address"], gang_port=prepared["gang_port"])
        progress.stop_if_cancelled()
        if not is_member:
            links[self.host].call("run.join", {**Join(primary=invited["primary"]), "run_id": run_id}, START_TIMEOUT_S)
        begin = Grow(
            member=None if is_member else member,
            replicas=replicas,
            by=desktop_identity(),
        )
        self._asked = True
        self._primary.call("run.grow", {**begin, "run_id": run_id}, START_TIMEOUT_S)
        return tuple(replica["name"] for replica in replicas)

    def _topology(self) -> Topology:
        """Returns the topology of the run. Raises RunFailed if the primary's record differs from this desktop's."""
        record = self.shown["record"]
        if (record.get("record", {}).get("topology"), record.get("snapshot")) != (self.own.topology, self.own.snapshot):
            message = f"the record of run {self.own.run_id} on {self.own.primary} is not what this computer launched."
            raise RunFailed(message, code="record_differs", hint=f"Find out who changed it on {self.own.primary}.")
        topology = topology_from_text(self.own.topology, self.own.name).topology
        if topology is None:
            message = f"this version cannot read the topology that run {self.own.run_id} was launched with."
            raise RunFailed(message, code="run_forgotten")
        return topology

    def _reach(self) -> AgentLink:
        link = self.links.get(self.host) or self.hosts.reach([self.host], lambda host, link: None)[self.host]
        if isinstance(link, HostError):
            raise link
        self._progress.stop_if_cancelled()
        return link

    def _check(self, planned: Plan, pool: Pool, there: Sequence[str], link: AgentLink, *, is_member: bool) -> HostFacts:
        """Checks the host of the added workers as in a launch. Returns the host's facts."""
        topology, progress = planned.topology, self._progress
        found = {name: self.hosts.look(name, topology.program.python) for name in {self.own.primary, self.host}}
        facts = next(host for host in self.hosts.known() if host.name == self.host)
        lines = [] if is_member else [*check_host(topology, self.host, found[self.host]), *check_versions(found)]
        progress.report_checks([check_capacity(topology, pool, facts, there, self.count), *lines])
        if not is_member:
            context = LaunchContext(planned, {self.host: link}, {self.host: facts}, {self.host: found[self.host]})
            progress.report_checks(PreflightClient(context).checks(topology.program.launcher, progress))
        progress.stop_if_cancelled()
        return facts

    def _remove_remains(self, link: AgentLink) -> None:
        """Removes the files that an earlier, failed attempt to add the host left there."""
        try:
            link.call("run.remove", {"run_id": self.own.run_id, "by": desktop_identity()})
        except AgentRefused as refusal:
            if refusal.code != "no_run":
                raise

    def _check_address(self, invited: Invitation) -> None:
        address = invited["primary"]["address"]
        if address == "::1" or address.startswith("127."):
            raise RunFailed(
                f"the keeper of {self.own.primary} takes connections at {address} only, since run {self.own.run_id} "
                f"was launched on one computer: {self.host} cannot reach it.",
                code="cannot_grow",
                hint=f"Add workers on {self.own.primary}, or launch the run on both hosts.",
            )

    def _record(self, planned: Plan) -> dict[str, Any]:
        """Returns the run's record with the added workers."""
        before = self.shown["record"]["record"]
        added = [{"name": one.name, "host": self.host, "gpus": []} for one in planned.replicas]
        hosts = list(dict.fromkeys([*before.get("hosts", self.own.hosts), self.host]))
        return {**before, "hosts": hosts, "replicas": [*before.get("replicas", self.own.planned), *added]}

    def _prepare(self, facts: HostFacts, invited: Invitation, record: dict[str, Any]) -> Prepare:
        return Prepare(
            run_id=self.own.run_id,
            name=self.own.name,
            host=self.host,
            secret=invited["secret"],
            snapshot=self.own.snapshot,
            gpus=[],
            ports=self.count,
            port_range=list(facts.port_range) if facts.port_range else None,
            data_address=facts.data_address,
            interface=facts.interface,
            towards=invited["primary"]["address"],
            resume_from=None,
            later=False,
            record=record,
        )

    def _replica_plans(
        self, planned: Plan, facts: HostFacts, prepared: Prepared, *, several: bool
    ) -> list[ReplicaPlan]:
        program = planned.topology.program
        site = PreparedHost(
            address=prepared["address"],
            interface=prepared["interface"],
            run_dir=prepared["run_dir"],
            python=host_python(facts, program),
            ports=tuple(prepared["ports"]),
        )
        _, replicas = cluster_plan(planned, {self.host: site}, self.own.run_id, lineage=self.own.lineage or None)
        for replica in replicas:
            # A launch also sets this default if several processes share a host.
            if several and program.launcher is Launcher.TORCH:
                replica["env"].setdefault("OMP_NUM_THREADS", "1")
        return replicas

    def _wait(self, names: tuple[str, ...]) -> AddedWorkers:
        """Waits until each worker has joined the run or was withdrawn. Withdraws the workers if `cancel` was called."""
        left = dict.fromkeys(names)
        withdrawn: dict[str, str] = {}
        last: dict[str, Any] = {}
        asked = False
        for event in self._events():
            if self._progress.cancelled.is_set() and not asked:
                asked = True
                by = desktop_identity()
                self._primary.call("run.withdraw", {"run_id": self.own.run_id, "replicas": list(left), "by": by})
            if event is None:
                continue
            if event["event"] == "membership":
                last = event
                for name in event["members"]:
                    left.pop(name, None)
            elif event["event"] == "withdrawal" and event["replica"] in left:
                withdrawn[event["replica"]] = event["reason"]
                left.pop(event["replica"])
            elif event["event"] == "run_ended":
                break
            if not left:
                break
        joined = tuple(name for name in names if name not in left and name not in withdrawn)
        if joined:
            self._note(joined)
        if left or withdrawn:
            self._raise_failure(joined, left, withdrawn, interrupted=asked)
        members = len(last["members"])
        return AddedWorkers(joined, int(last["step"]), members, members + len(last["lost"]))

    def _events(self) -> Iterator[dict[str, Any] | None]:
        def reattach(host: str) -> AgentLink:
            link = self.hosts.reach([host], lambda name, link: None)[host]
            if isinstance(link, HostError):
                raise link
            return link

        return Follower(self.own.run_id, self._primary, reattach, with_telemetry=False).events()

    def _raise_failure(
        self, joined: Sequence[str], left: Mapping[str, Any], withdrawn: Mapping[str, str], *, interrupted: bool
    ) -> None:
        there = f" {' and '.join(joined)} joined it before." if joined else ""
        if interrupted and not joined:
            raise Cancelled
        if left:
            message = f"run {self.own.run_id} ended before {' and '.join(left)} could join it.{there}"
            raise RunFailed(message, code="run_over")
        reasons = Counter(withdrawn.values())
        why = "; ".join(reasons)
        message = (
            f"{' and '.join(withdrawn)} did not join run {self.own.run_id}, which continues as before: {why}.{there}"
        )
        raise RunFailed(message, code="not_added", hint=ShowLogs(self.own.run_id))

    def _note(self, joined: Sequence[str]) -> None:
        added = [{"name": name, "host": self.host, "gpus": []} for name in joined]
        self.changes = {
            "hosts": tuple(dict.fromkeys([*self.own.hosts, self.host])),
            "planned": [*self.own.planned, *added],
        }
