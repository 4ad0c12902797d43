"""The first phase of a launch: connecting to hosts, reading their facts, and planning."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from torchyard_core.background_thread import in_background
from torchyard_core.errors import HostError, RunFailed
from torchyard_core.formatting import counted
from torchyard_core.launch.agent_interface import AgentLink, Hosts
from torchyard_core.launch.calendar_interface import LaunchCalendar
from torchyard_core.launch.checks.check import Check
from torchyard_core.launch.checks.host_facts import check_host, check_machines, check_sharding, check_working_folders
from torchyard_core.launch.checks.versions import check_torch_builds, check_versions
from torchyard_core.launch.progress import LaunchProgress
from torchyard_core.launch.rank_assignment import Plan, plan
from torchyard_core.next_steps import ValidateTopology
from torchyard_core.problems import Problem
from torchyard_core.topology.file import TopologyFile
from torchyard_core.topology.host_facts import HostFacts
from torchyard_core.topology.model import Topology

PLANS = 4
"""Maximum number of times that a launch plans the run.

With fresh facts, replicas may be planned on other hosts, whose facts must then be read, too.
"""


@dataclass(frozen=True)
class LaunchContext:
    """The plan of a launch, and the links and facts of its hosts by name."""

    plan: Plan
    links: dict[str, AgentLink]
    hosts: dict[str, HostFacts]
    facts: dict[str, dict[str, Any]]
    """Fresh answers to `host.facts`."""

    @property
    def primary(self) -> str:
        return self.plan.hosts[0]


@dataclass
class Planner:
    """Plans a run and reads the facts of the planned hosts, until all planned hosts have fresh facts."""

    _source: TopologyFile
    _topology: Topology
    _hosts: Hosts
    _progress: LaunchProgress
    _links: dict[str, AgentLink]
    """The links by host. `run` adds the links of the planned hosts."""
    _reserving: LaunchCalendar | None
    _facts: dict[str, dict[str, Any]] = field(default_factory=dict)

    def run(self) -> LaunchContext:
        """Returns the plan, and the links and facts of its hosts.

        Raises:
            RunFailed: A check failed, or the topology has a problem.
            TorchyardError: A host could not be used, or the calendar refuses the launch.
            Cancelled: The user cancelled the launch.
        """
        for _ in range(PLANS):
            known = self._hosts.known()
            planned = self._planned(known)
            self._refuse_problems(planned.problems)
            unseen = [name for name in planned.hosts if name not in self._links]
            if not unseen:
                break
            self._reach(unseen)
            looking = {name: in_background(self._hosts.look, name, self._topology.program.python) for name in unseen}
            self._facts |= self._progress.wait_for_all(looking, "looking")
        for name in [name for name in self._links if name not in planned.hosts]:
            del self._links[name]
        context = LaunchContext(
            planned,
            self._links,
            {host.name: host for host in known if host.name in planned.hosts},
            {name: self._facts[name] for name in planned.hosts},
        )
        lines = [line for name in planned.hosts for line in check_host(self._topology, name, self._facts[name])]
        lines += check_machines(context.facts)
        self._progress.report_checks(
            [
                *lines,
                *check_versions(context.facts),
                *check_torch_builds(planned, context.facts),
                *(line for run in self._plans_of_runs(planned) for line in check_working_folders(run)),
                *(line for run in self._plans_of_runs(planned)[:1] for line in check_sharding(run)),
            ]
        )
        return context

    def _planned(self, known: Sequence[HostFacts]) -> Plan:
        """Returns a plan on GPUs that the calendar allows. Without a calendar or such a plan, all GPUs may be used.

        A plan that cannot start contains its problems. If only a plan on all GPUs can start, and it uses GPUs that the
        calendar does not allow, the calendar's error is raised.
        """
        if self._reserving is not None:
            for choice in self._reserving.choices(known):
                planned = self._plan(choice)
                if planned.can_start:
                    return planned
        planned = self._plan(known)
        if self._reserving is not None and planned.can_start:
            self._reserving.refuse(planned)
        return planned

    def _plans_of_runs(self, planned: Plan) -> Sequence[Plan]:
        """Returns the plan of each run in `planned`. A sweep has several plans, any other launch one."""
        return [planned]

    def _plan(self, hosts: Sequence[HostFacts]) -> Plan:
        return plan(self._topology, hosts, found=self._source.check(hosts), line=self._source.line)

    def _refuse_problems(self, problems: Sequence[Problem]) -> None:
        errors = [problem for problem in problems if problem.severity == "error"]
        if errors:
            more = f" ({counted(len(errors) - 1, 'more problem')})" if len(errors) > 1 else ""
            hint = ValidateTopology(self._source.source) if more else ""
            error = RunFailed(errors[0].printed(self._source.source) + more, code=errors[0].code, hint=hint)
            error.topology_problem = errors[0].message + more
            raise error

    def _reach(self, names: Sequence[str]) -> None:
        arrivals: SimpleQueue[tuple[str, AgentLink | HostError]] = SimpleQueue()
        reaching = in_background(self._hosts.reach, names, lambda host, link: arrivals.put((host, link)))
        unreachable: list[HostError] = []
        for arrived in range(len(names)):
            self._progress.on_progress("reaching", arrived, len(names))
            name, link = self._next(arrivals, reaching)
            if isinstance(link, HostError):
                unreachable.append(link)
                self._progress.report_check(Check("host", name, False, link.message, link.advice, code=link.code))
            else:
                self._links[name] = link
                self._progress.report_check(
                    Check("host", name, True, f"agent {link.hello['version']} on Python {link.python}")
                )
        self._progress.on_progress("reaching", len(names), len(names))
        for error in unreachable:
            raise error
        self._progress.stop_if_cancelled()

    def _next(self, arrivals: SimpleQueue[Any], reaching: Future[Any]) -> Any:
        """Waits until the connection to another host has succeeded or failed. Returns its name, and the link or error.

        Raises Cancelled within 0.2 s of a cancellation.
        """
        while True:
            self._progress.stop_if_cancelled()
            try:
                return arrivals.get(timeout=0.2)
            except Empty:
                if reaching.done() and arrivals.empty():
                    reaching.result()  # Raises an error of `reach` that does not concern a single host.
