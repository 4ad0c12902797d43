"""The launch of a sweep: a run on all hosts of the trials. Its only process is the coordinator, on the primary.

Until the sweep ends, the run's keepers lock the GPUs and reserve the ports of all slots, so that trials start without
further checks. The coordinator starts the trials (`torchyard_agent.sweeps.coordinator`).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from torchyard_agent.protocol.messages import Cluster, Master, Member, Policy, Prepared, ReplicaPlan
from torchyard_agent.protocol.sweep_messages import Sweep
from torchyard_core.errors import RunFailed
from torchyard_core.formatting import counted
from torchyard_core.launch.calendar_interface import Reservation
from torchyard_core.launch.checks.check import Check
from torchyard_core.launch.launch import Launch, StartedRun, planned_replicas
from torchyard_core.launch.plan_preview import host_python
from torchyard_core.launch.planning import LaunchContext, Planner
from torchyard_core.launch.rank_assignment import Plan
from torchyard_core.launch.replica_plans import PreparedHost
from torchyard_core.launch.runs.history import RunRecord
from torchyard_core.launch.snapshots.snapshot import Snapshot
from torchyard_core.launch.submission import policy_of, submit
from torchyard_core.launch.sweeps.slots import SlotPlans, plan_slots
from torchyard_core.sweeps.model import SamplerKind, Search
from torchyard_core.sweeps.search_file import dump_search
from torchyard_core.topology.host_facts import HostFacts
from torchyard_core.topology.model import Launcher

COORDINATOR = "coordinator-0"
"""The name of the only replica of a sweep's own run."""
MODULE = "torchyard_agent.sweeps.coordinator"
COORDINATOR_RESTARTS = 5
STOP_GRACE_S = 15.0
"""Time in seconds for the coordinator to stop the trials, in addition to the `stop_grace_s` of the trials."""


@dataclass
class SweepPlanner(Planner):
    """Plans the slots of a sweep."""

    parallel: int = 1
    slots: SlotPlans | None = None

    def _plan(self, hosts: Sequence[HostFacts]) -> Plan:
        self.slots = plan_slots(super()._plan, hosts, self.parallel)
        return self.slots.whole

    def _plans_of_runs(self, planned: Plan) -> Sequence[Plan]:
        assert self.slots is not None
        return self.slots.slots


@dataclass(frozen=True)
class EndedSweep:
    """An ended sweep that another sweep continues."""

    run_id: str
    study: str
    """The sweep's study, as in `Sweep.study`."""
    counted: int
    """The number of trials of the ended sweep that count as done and are not repeated."""
    same_code_as: str | None
    """Hash that the program's files must still have; None if they may have changed."""


@dataclass(frozen=True)
class SweepRequest:
    """The arguments of a launch that concern a sweep. `search` must be valid."""

    search: Search
    ended: EndedSweep | None = None
    """The ended sweep to continue; None for a new sweep."""

    @property
    def study(self) -> str:
        return "" if self.ended is None else self.ended.study


@dataclass
class SweepRecords(Launch):
    """Base class for launches of sweeps. Creates a sweep's records, and checks that its code has not changed."""

    sweep: SweepRequest | None = None

    @property
    def _sweep(self) -> SweepRequest:
        assert self.sweep is not None
        return self.sweep

    @property
    def _settings(self) -> Search:
        return self._sweep.search

    @property
    def _continues(self) -> str:
        """The ID of the ended sweep that this sweep continues, or ""."""
        return "" if self._sweep.ended is None else self._sweep.ended.run_id

    def _snapshot(self, context: LaunchContext) -> Snapshot | None:
        snapshot = super()._snapshot(context)
        # Records of older versions contain the hash of all files of the working folder instead.
        known = (self._code, snapshot.root if snapshot is not None else None)
        ended = self._sweep.ended
        if ended is not None and ended.same_code_as is not None and ended.same_code_as not in known:
            message = f"the files of the working folder {self._folder} have changed since the sweep began."
            hint = "Restore them, or accept with --new-code that later trials run other code than earlier ones."
            raise RunFailed(message, code="code_changed", hint=hint)
        return snapshot

    def record(self, started: StartedRun, file: str, *, is_confirmed: bool = True) -> RunRecord:
        record = super().record(started, file, is_confirmed=is_confirmed)
        return replace(record, sweep=dump_search(self._settings), restarted_from=self._continues)

    def _record(self, planned: Plan, reserved: Reservation, early: tuple[str, ...]) -> dict[str, Any]:
        continues = {"restarted_from": self._continues} if self._continues else {}
        return {**super()._record(planned, reserved, early), "sweep": dump_search(self._settings), **continues}

    def _planned(self, planned: Plan) -> list[dict[str, Any]]:
        """Returns the coordinator as the only replica of the run. It has the GPUs of all trials."""
        return [{"name": COORDINATOR, "host": planned.primary, "gpus": gpus_of(planned)}]

    def _shown_replica(self, planned: Plan) -> str:
        return COORDINATOR


@dataclass
class SweepLaunch(SweepRecords):
    """Launches a sweep on hosts of the fleet file."""

    _slots: SlotPlans = field(default_factory=lambda: SlotPlans(()))
    _python: str = ""

    def _plan(self) -> LaunchContext:
        search = self._settings
        planner = SweepPlanner(
            self.source,
            self.topology,
            self.hosts,
            self._progress,
            self._links,
            self.reserving,
            parallel=search.parallel,
        )
        context = planner.run()
        assert planner.slots is not None
        self._slots = planner.slots
        count = len(self._slots.slots)
        self._python = self.topology.program.python or host_python(
            context.hosts[context.primary], self.topology.program
        )
        checks = [check_packages(search, self.topology.program.setup, context)]
        if count < search.parallel:
            message = (
                f"the hosts have room for {counted(count, 'trial')} side by side, not for {search.parallel}; the "
                "others follow."
            )
            checks.append(Check("host", "", True, message, warning=True))
        self._progress.report_checks(checks)
        return context

    def _early_imports(self) -> tuple[str, ...]:
        return ()  # The run of a sweep has no ranks that train. The ranks of trials start later, under other keepers.

    def _ports(self, planned: Plan) -> Mapping[str, int]:
        return self._slots.ports()

    def _submit(
        self, context: LaunchContext, prepared: Mapping[str, Prepared], reserved: Reservation, early: Sequence[str]
    ) -> None:
        program, search = self.topology.program, self._settings
        token = f"trial-run-{secrets.token_hex(8)}"
        sites = {
            host: PreparedHost(
                address=there["address"],
                interface=there["interface"],
                run_dir=str(PurePosixPath(there["run_dir"]).parent / token),
                python=host_python(context.hosts[host], program),
                ports=tuple(there["ports"]),
            )
            for host, there in prepared.items()
        }
        root = self._root

        def prepare(slot: Plan, host: str) -> dict[str, Any]:
            port_range = context.hosts[host].port_range
            record = {
                **Launch._record(self, slot, reserved, ()),
                "lineage": token,
                "replicas": planned_replicas(slot),
                "sweep_run": self.run_id,
            }
            record.pop("booking", None)  # Trials have no booking of their own.
            return {
                "name": f"{self.name} trial",
                "host": host,
                "snapshot": root,
                "gpus": [],
                "ports": 0,
                "port_range": list(port_range) if port_range else None,
                "data_address": prepared[host]["address"],
                "interface": prepared[host]["interface"] or None,
                "towards": None,
                "resume_from": None,
                "later": False,
                "record": record,
            }

        sweep = Sweep(
            run_id=self.run_id,
            name=self.name,
            run_token=token,
            search=search.as_message(),
            slots=self._slots.described(sites, token, prepare),
            policy=policy_of(self.topology),
            carry=program.checkpoint_dir is None,
            host_wait_s=program.host_wait_s,
            study=self._sweep.study,
        )
        primary = context.primary
        members = [
            Member(host=host, address=prepared[host]["address"], gang_port=prepared[host]["gang_port"])
            for host in context.plan.hosts
        ]
        policy = Policy(
            ends_with="all",
            stop_grace_s=program.stop_grace_s + STOP_GRACE_S,
            failure_grace_s=program.failure_grace_s,
            host_wait_s=program.host_wait_s,
            max_restarts=COORDINATOR_RESTARTS,
            min_replicas={},
            on_worker_loss="restart",
        )
        submit(
            *(self.run_id, context, members, self._cluster(), [self._coordinator(context.plan, prepared[primary])]),
            *(policy, self.topology, self.secret_values, self._progress, reserved),
            sweep=sweep,
            carry=False,
        )

    def _cluster(self) -> Cluster:
        masters: dict[str, Master] = {}
        return Cluster(
            run_id=self.run_id,
            launcher=Launcher.COMMAND.value,
            max_restarts=COORDINATOR_RESTARTS,
            tf_master_name="chief",
            trial=None,
            params={},
            several=False,
            job={},
            masters=masters,
            options={},
        )

    def _coordinator(self, planned: Plan, prepared: Prepared) -> ReplicaPlan:
        folder = f"{prepared['run_dir']}/outputs/{COORDINATOR}"
        env = {
            **self.topology.program.env,
            "PYTHONUNBUFFERED": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "TORCHYARD_RUN_ID": self.run_id,
            "TORCHYARD_REPLICA": COORDINATOR,
            "TORCHYARD_ROLE": "coordinator",
            "TORCHYARD_RUN_DIR": folder,
        }
        return ReplicaPlan(
            name=COORDINATOR,
            role="coordinator",
            index=0,
            pool="coordinator",
            gang=COORDINATOR,
            host=planned.hosts[0],
            trainer=False,
            gpus=gpus_of(planned),  # If another user books one of the listed GPUs, the sweep ends.
            processes=1,
            address=f"{prepared['address']}:{prepared['gang_port']}",
            run_dir=prepared["run_dir"],
            argv=[self._python, "-m", MODULE],
            env=env,
        )


def gpus_of(planned: Plan) -> list[str]:
    """Returns the UUIDs of the GPUs of all slots."""
    return [gpu.uuid for replica in planned.replicas for gpu in replica.gpus]


def check_packages(search: Search, setup: Sequence[str], context: LaunchContext) -> Check:
    """Returns the checklist line about Optuna, which the coordinator imports on the primary."""
    primary = context.primary
    python = context.facts[primary].get("python") or {}
    path = context.plan.topology.program.python or python.get("path") or "python3"
    packages = context.facts[primary].get("packages") or {}
    wanted = ["optuna", *(["cmaes"] if search.sampler.kind is SamplerKind.CMA_ES else [])]
    missing = [name for name in wanted if not packages.get(name)]
    if not missing:
        return Check("optuna", primary, True, f"Optuna {packages['optuna']}")
    what = " and ".join({"optuna": "Optuna", "cmaes": "the package cmaes"}[name] for name in missing)
    verb = "is" if len(missing) == 1 else "are"
    message = f"{what} {verb} not installed for {path} on {primary}, where the sweep chooses its trials"
    if setup:
        # `setup` may activate a virtual environment with another interpreter.
        return Check("optuna", primary, True, f"{message}; `setup` may activate an environment with it.", warning=True)
    hint = f"Install it there with `{path} -m pip install 'optuna>=4.2,<5'{' cmaes' if 'cmaes' in missing else ''}`."
    return Check("optuna", primary, False, f"{message}.", hint)
