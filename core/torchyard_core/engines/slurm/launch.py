"""The launch of a run on a cluster: it plans on slots, sends the code to the shared file system, and submits a job."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from torchyard_agent.protocol.messages import Prepare
from torchyard_agent.protocol.rank_environment import STOP_PATIENCE_VARIABLE
from torchyard_core.background_thread import in_background
from torchyard_core.engines.slurm.cluster_link import ClusterHosts
from torchyard_core.engines.slurm.description import ClusterDescription, never_starts
from torchyard_core.engines.slurm.planned_nodes import (
    ClusterJob,
    Component,
    jobs_of,
    renumbered,
    request_text,
    separated,
    with_gpu_types,
    without_placeholders,
)
from torchyard_core.engines.slurm.script import (
    FOLDER,
    RESERVATION,
    SUBMISSION,
    dependent,
    in_reservation,
    job_script,
    survives_node_loss,
)
from torchyard_core.errors import AgentRefused, RunFailed
from torchyard_core.fleet.daemon_client import DaemonClient
from torchyard_core.formatting import counted
from torchyard_core.launch.calendar_port import ChosenBooking, Reservation
from torchyard_core.launch.checks.check import Check
from torchyard_core.launch.launch import Launch, StartedRun, StartUnknown, planned_replicas
from torchyard_core.launch.planning import LaunchContext
from torchyard_core.launch.port_assignment import ports_needed
from torchyard_core.launch.rank_assignment import Plan, plan
from torchyard_core.launch.replica_plans import PreparedHost, cluster_plan
from torchyard_core.launch.restart import provide_code
from torchyard_core.launch.runs.history import RunRecord
from torchyard_core.launch.snapshots.snapshot_upload import upload_to_all
from torchyard_core.launch.submission import policy_of, run_start, take_back
from torchyard_core.next_steps import ValidateTopology

SUBMIT_TIMEOUT_S = 120.0
HOST_WAIT_S = 60.0
"""Default of `host_wait_s` on a cluster. While a run waits for a lost node, the GPUs of its other nodes are idle."""
STOP_PATIENCE_S = 5
"""Time in seconds that ranks wait for their keeper to request a stop after Slurm sends SIGTERM to the whole job."""


@dataclass
class SlurmLaunch(Launch):
    """A launch that ends with the submission of a job. The job's batch program then starts the run."""

    cluster: ClusterHosts | None = None
    description: ClusterDescription | None = None
    start_at: datetime | None = None
    """The earliest start of the job; None for now."""
    booking: ChosenBooking | None = None
    """The booking of nodes in whose time the job runs."""
    _is_reserved: bool = False
    """Whether Slurm has a reservation for the booking."""

    def run(self) -> StartedRun:
        progress = self._progress
        submitted = False
        hosts = self._cluster
        try:
            progress.emit("run_state", state="checking")
            login = hosts.login()
            description = self.description or ClusterDescription.read(login, hosts.cluster)
            for check in description.checks(hosts.cluster):
                progress.report_check(check)
            if self.booking is not None:
                progress.report_check(self._look_for_reservation(login, self.booking))
            planned = self._plan_on(description)
            jobs = jobs_of(planned)
            planned = renumbered(planned, hosts.cluster)
            jobs = _renamed(jobs, planned)
            for job in jobs:
                progress.report_check(self._request_check(job))
            progress.stop_if_cancelled()
            links = {slot: hosts.link(slot, install=True) for slot in planned.hosts}
            primary = planned.hosts[0]
            context = LaunchContext(planned, dict(links), {}, {})
            snapshot = self._snapshot(context)
            timings = {"checked_s": progress.elapsed_s()}
            progress.emit("run_state", state="sending")
            if snapshot is not None:
                upload_to_all(snapshot, {primary: links[primary]}, self.hosts, progress)
            timings["sent_s"] = progress.elapsed_s()
            root = snapshot.root if snapshot else None
            if self.again is not None:
                root = self.again.snapshot
                own = {primary: links[primary]}
                provide_code(self.again.run_id, root, self.again.links, own, self.hosts, progress)  # type: ignore[arg-type]
            params = self._submission(planned, jobs, root)
            submitted = True
            answer = self._submit_job(links[primary], params)
            submitted_jobs = [answer["job_id"], *answer.get("group_jobs", {}).values()]
            text = f"{'job' if len(submitted_jobs) == 1 else 'jobs'} {', '.join(submitted_jobs)} submitted"
            progress.report_check(Check("starting", hosts.cluster.name, True, text))
            timings["submitted_s"] = progress.elapsed_s()
            progress.stop_if_cancelled()
            started = StartedRun(
                *(self.run_id, planned, links[primary], context.links, timings, Reservation(), root),
                shown_replica=self._shown_replica(planned),
            )
        except BaseException:  # BaseException includes KeyboardInterrupt: the job must not stay in the queue.
            self._over.set()
            if submitted:
                self._take_back()
            raise
        progress.emit("run_submitted", run_id=self.run_id)
        return started

    def script(self) -> str:
        """Returns the script that `run` submits, with placeholders for the run's ID and for paths on the cluster.

        If worker groups have jobs of their own, their scripts follow. Nothing is submitted. Raises the errors of `run`
        about the topology and the cluster.
        """
        cluster = self._cluster.cluster
        description = self.description or ClusterDescription.read(self._cluster.login(), cluster)
        command = "PYTHON -I -S AGENT/torchyard_agent/__main__.py slurm-batch JOB-FOLDER"
        texts = []
        jobs = jobs_of(self._plan_on(description))
        for job in jobs:
            text = self._script("RUN-ID", job, is_only=len(jobs) == 1).replace(
                SUBMISSION, f"{command} {job.group}".rstrip()
            )
            texts.append(text.replace(FOLDER, "JOB-FOLDER"))
        return "\n".join([texts[0], *(dependent(text) for text in texts[1:])])

    def _look_for_reservation(self, login: DaemonClient, booking: ChosenBooking) -> Check:
        """Returns the line about the booking: whether its nodes are reserved for the job, or not exclusive."""
        cluster = self._cluster.cluster.name
        self._is_reserved = booking.id in login.call("reservations.read", {})["reservations"]
        if self._is_reserved:
            return Check("booking", cluster, True, f"runs in the reservation of the booking {booking.id}")
        text = f"the booking {booking.id} is not exclusive, because Slurm has no reservation for it: its start is the "
        return Check("booking", cluster, True, f"{text}job's earliest start", warning=True)

    def _script(self, run_id: str, job: ClusterJob, *, is_only: bool) -> str:
        cluster, booking = self._cluster.cluster, self.booking if self._is_reserved else None
        text = job_script(run_id, self.topology, cluster, job.components, self._delay_s, job.group, is_only=is_only)
        if booking is None:
            return text
        left = booking.end - max(booking.start, datetime.now(UTC))
        return in_reservation(text, f"{RESERVATION}{booking.id}", cluster.time_limit, left.total_seconds())

    @property
    def _delay_s(self) -> float | None:
        """The time in seconds until the earliest start of the job; None for now."""
        return None if self.start_at is None else (self.start_at - datetime.now(UTC)).total_seconds()

    def undo(self, started: StartedRun | None) -> None:
        if started is not None and not self._take_back():
            raise StartUnknown(started)

    def record(self, started: StartedRun, file: str, *, is_confirmed: bool = True) -> RunRecord:
        record = super().record(started, file, is_confirmed=is_confirmed)
        return replace(record, state="waiting")

    def _planned(self, planned: Plan) -> list[dict[str, Any]]:
        return with_gpu_types(without_placeholders(planned_replicas(planned)), planned)

    @property
    def _cluster(self) -> ClusterHosts:
        assert self.cluster is not None
        return self.cluster

    def _plan_on(self, description: ClusterDescription) -> Plan:
        """Returns the plan on slots. Raises RunFailed if the topology has a problem, or if there are too few nodes."""
        description.require_nodes(self._cluster.cluster)
        slots, topology = description.plan_input(self._cluster.cluster, self.topology)
        found = replace(self.source, topology=topology).check(slots)
        planned = plan(topology, slots, found=found, line=self.source.line)
        errors = [problem for problem in planned.problems if problem.severity == "error"]
        if errors:
            more = f" ({counted(len(errors) - 1, 'more problem')})" if len(errors) > 1 else ""
            hint = ValidateTopology(self.source.source) if more else ""
            message = errors[0].printed(self.source.source) + more
            if errors[0].code == "no-room":
                raise never_starts(self._cluster.cluster.name, message)
            raise RunFailed(message, code=errors[0].code, hint=hint)
        return separated(replace(planned, topology=self.topology))

    def _request_check(self, job: ClusterJob) -> Check:
        text = request_text(job.components) + (f" in a job of {job.group}, which starts by itself" if job.group else "")
        if len(job.components) == 1:
            return Check("looking", self._cluster.cluster.name, True, f"asks for {text}")
        return Check(
            "looking",
            self._cluster.cluster.name,
            True,
            f"asks for {text} as a heterogeneous job, which starts by backfill and is requeued as a whole",
            warning=True,
        )

    def _submission(self, planned: Plan, jobs: list[ClusterJob], root: str | None) -> dict[str, Any]:
        """Returns the parameters of the agent's `run.submit`."""
        cluster = self._cluster.cluster
        record = self._record(planned, Reservation(), ())
        ports = ports_needed(planned)
        prepare = {
            slot: {
                **Prepare(
                    run_id=self.run_id,
                    name=self.name,
                    host=slot,
                    secret="",
                    snapshot=root,
                    gpus=[],
                    ports=ports[slot],
                    port_range=None,
                    data_address=None,
                    interface=None,
                    towards=None,
                    resume_from=self._resume_from(),
                    later=False,
                    record=record,
                ),
                "continues": True,
            }
            for slot in planned.hosts
        }
        sites = {
            slot: PreparedHost(
                address=f"@address:{slot}@",
                interface=f"@interface:{slot}@",
                run_dir=f"@run_dir:{slot}@",
                python=cluster.python or "python3",
                ports=tuple(f"@port:{slot}:{number}@" for number in range(ports[slot])),
            )
            for slot in planned.hosts
        }
        plans = cluster_plan(planned, sites, self.run_id, lineage=self._lineage)
        carry = self.topology.program.checkpoint_dir is None
        start = run_start(self.topology, [], *plans, policy_of(self.topology), {}, Reservation(), carry=carry)
        start["setup"] = [*cluster.setup, *start["setup"]]
        if "host_wait_s" not in self.topology.program.model_fields_set:
            start["policy"]["host_wait_s"] = HOST_WAIT_S
        if len(jobs) > 1:
            start["cluster"]["options"]["start_wait_s"] = HOST_WAIT_S
        for replica in start["replicas"]:
            replica["env"][STOP_PATIENCE_VARIABLE] = str(STOP_PATIENCE_S)
        return {
            "run_id": self.run_id,
            "script": self._script(self.run_id, jobs[0], is_only=len(jobs) == 1),
            "groups": {job.group: self._script(self.run_id, job, is_only=False) for job in jobs[1:]},
            "secrets": self.secret_values,
            "job": {
                "cluster": cluster.name,
                "components": _described(jobs[0]),
                "groups": {job.group: {"components": _described(job)} for job in jobs[1:]},
                "prepare": prepare,
                "start": start,
                "gpus": {
                    slot: [gpu.uuid for one in planned.on_host(slot) for gpu in one.gpus] for slot in planned.hosts
                },
                "srun_options": ["--no-kill"] if survives_node_loss(self.topology) and len(jobs) == 1 else [],
            },
        }

    def _submit_job(self, link: Any, params: dict[str, Any]) -> dict[str, Any]:
        pending = in_background(link.call, "run.submit", params, SUBMIT_TIMEOUT_S)
        try:
            answer: dict[str, Any] = self._progress.wait_for_all({link.host: pending}, "starting")[link.host]
        except AgentRefused as refusal:
            if refusal.code == "never_starts":
                raise never_starts(self._cluster.cluster.name, refusal.message, refusal.advice) from refusal
            raise
        return answer

    def _take_back(self) -> bool:
        """Cancels the job, and ends the run if it has begun. Returns whether nothing is left."""
        slot = self._cluster.cluster.slot(1)
        return not take_back(self.run_id, {slot: self._cluster.link(slot, install=False)}, self.hosts)


def _described(job: ClusterJob) -> list[dict[str, Any]]:
    """Returns the components of a job as the batch program reads them."""
    return [{"slots": list(one.slots), "options": one.options} for one in job.components]


def _renamed(jobs: list[ClusterJob], planned: Plan) -> list[ClusterJob]:
    """Returns the jobs with the new slot numbers that `renumbered` assigned."""
    names = iter(sorted(planned.hosts, key=lambda slot: int(slot.rpartition(".")[2])))

    def with_names(one: Component) -> Component:
        return replace(one, slots=tuple(next(names) for _ in one.slots))

    return [replace(job, components=tuple(with_names(one) for one in job.components)) for job in jobs]
