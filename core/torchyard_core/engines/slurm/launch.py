"""The launch of a run on a cluster: plans on slots, sends the code to the shared file system, and submits jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from torchyard_agent.protocol.messages import Prepare
from torchyard_agent.protocol.rank_environment import STOP_PATIENCE_VARIABLE
from torchyard_core.background_thread import in_background
from torchyard_core.engines.slurm.batch_script import (
    FOLDER,
    RESERVATION,
    SUBMISSION,
    dependent,
    in_reservation,
    job_script,
    survives_node_loss,
)
from torchyard_core.engines.slurm.cluster_calendar import node_id
from torchyard_core.engines.slurm.cluster_check import launch_checks
from torchyard_core.engines.slurm.cluster_link import ClusterHosts
from torchyard_core.engines.slurm.description import ClusterDescription, never_starts
from torchyard_core.engines.slurm.planned_nodes import (
    Component,
    have_room,
    request_text,
    with_gpu_types,
    without_placeholders,
)
from torchyard_core.engines.slurm.worker_group_jobs import ClusterJob, jobs_of, renumbered, separated
from torchyard_core.errors import AgentRefused, RunFailed, TorchyardError
from torchyard_core.fleet.daemon_client import DaemonClient
from torchyard_core.formatting import counted, format_hours, span, until
from torchyard_core.launch.agent_interface import AgentLink
from torchyard_core.launch.calendar_interface import ChosenBooking, Reservation
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
SHORTEST_LEFT = timedelta(minutes=10)
"""Minimum time between the start of a run and the end of a booking that the run uses.

At the end of the booking's reservation, Slurm ends the job.
"""
MOST_NAMED = 3
"""Maximum number of reservations and nodes that a line of the checklist names."""
STOP_PATIENCE_S = 5
"""Time in seconds that ranks wait for their keeper to stop them after Slurm has sent SIGTERM to the whole job."""


@dataclass
class SlurmLaunch(Launch):
    """A launch that ends when the job is submitted. The job's batch program then starts the run."""

    cluster: ClusterHosts | None = None
    description: ClusterDescription | None = None
    start_at: datetime | None = None
    """The earliest start of the job; None for now."""
    booking: ChosenBooking | None = None
    """The booking of nodes that the job uses. If None, `run` uses the user's booking at the start, if there is one."""
    zone: str = "UTC"
    """The time zone for times in messages."""
    _is_reserved: bool = False
    """Whether Slurm has a reservation for `booking`."""

    def run(self) -> StartedRun:
        progress = self._progress
        submitted = False
        hosts = self._cluster
        try:
            progress.emit("run_state", state="checking")
            login = hosts.login()
            description = self._described()
            for check in launch_checks(description, hosts.cluster):
                progress.report_check(check)
            planned = self._plan_on(description)
            jobs = self._jobs_of(planned)
            if self.booking is None:
                self.booking = self._own_booking(description, jobs)
            if self.booking is not None:
                progress.report_check(self._look_for_reservation(login, self.booking))
            planned = renumbered(planned, hosts.cluster, jobs)
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
                own: dict[str, AgentLink] = {primary: links[primary]}
                provide_code(self.again.run_id, root, self.again.links, own, self.hosts, progress)
            params = self._submission(planned, jobs, root)
            submitted = True
            answer = self._submit_job(links[primary], params)
            progress.report_check(Check("starting", hosts.cluster.name, True, self._submitted_text(answer)))
            if answer.get("waits"):
                progress.report_check(self._waiting_check(answer["waits"]))
            timings["submitted_s"] = progress.elapsed_s()
            progress.stop_if_cancelled()
            started = StartedRun(
                *(self.run_id, planned, links[primary], context.links, timings, self._reserved, root),
                shown_replica=self._shown_replica(planned),
            )
        except BaseException:  # The job must leave the queue, even after KeyboardInterrupt.
            self._over.set()
            if submitted:
                self._take_back()
            raise
        progress.emit("run_submitted", run_id=self.run_id)
        if self.reserving is not None and self.booking is not None:
            self.reserving.use_nodes(self.booking)
            self.reserving.begun()
        return started

    def script(self) -> str:
        """Returns the script that `run` would submit, with placeholders for the run's ID and for paths on the cluster.

        The scripts of group jobs follow it. Nothing is submitted. Raises the errors of `run` that concern the topology
        or the cluster.
        """
        texts = []
        jobs = self._jobs_of(self._plan_on(self._described()))
        for job in jobs:
            command = f"PYTHON -I -S AGENT/torchyard_agent/__main__.py {self._batch_program(job)}"
            text = self._script("RUN-ID", job, is_only=len(jobs) == 1).replace(SUBMISSION, command)
            texts.append(text.replace(FOLDER, "JOB-FOLDER"))
        return "\n".join([texts[0], *(dependent(text) for text in texts[1:])])

    def _described(self) -> ClusterDescription:
        if self.description is None:
            self.description = ClusterDescription.read(self._cluster.login(), self._cluster.cluster)
        return self.description

    def _own_booking(self, description: ClusterDescription, jobs: Sequence[ClusterJob]) -> ChosenBooking | None:
        """Returns the user's booking at the start of the run with enough nodes for the jobs, or None."""
        if self.reserving is None:
            return None
        start, prefix = max(self.start_at or datetime.now(UTC), datetime.now(UTC)), self._node_prefix
        for booking in self.reserving.node_bookings(prefix):
            nodes = {slot.removeprefix(prefix) for slot in booking.slots}
            is_then = booking.start <= start and booking.end - start >= SHORTEST_LEFT
            if is_then and have_room(description.shapes, nodes, [one for job in jobs for one in job.components]):
                return booking
        return None

    @property
    def _node_prefix(self) -> str:
        """The prefix of the IDs that the cluster's nodes have in the calendar."""
        return node_id(self._cluster.cluster.name, "")

    @property
    def _reserved(self) -> Reservation:
        """The booking that the run uses, in the form for the run's records."""
        booking = self.booking
        return Reservation() if booking is None else Reservation((), booking.id, booking.owner, booking.end)

    def _waiting_check(self, waits: Mapping[str, Any]) -> Check:
        """Returns the checklist line about a job that must wait until reservations have ended.

        `waits` is the part of the agent's answer that describes these reservations.
        """
        own = {} if self.reserving is None else {one.id: one for one in self.reserving.node_bookings(self._node_prefix)}
        found, now = waits["reservations"], datetime.now(UTC)
        texts = [_reserved_text(one, own, self.zone) for one in found[:MOST_NAMED]]
        if len(found) > MOST_NAMED:
            texts.append(counted(len(found) - MOST_NAMED, "more reservation"))
        end = until(now, datetime.fromtimestamp(waits["until"], UTC), self.zone)
        hints = []
        if waits["limit_s"]:
            length = format_hours(timedelta(seconds=waits["limit_s"]))
            hints.append(f"With a `time_limit` of at most {length} in the fleet file, it can run before.")
        for one in found:
            booking = own.get(str(one["name"]).removeprefix(RESERVATION))
            if booking is not None and booking.start > now:
                hints.append(f"A launch planned for the start of your booking {booking.title!r} runs in it.")
                break
        message = f"the job waits for reserved nodes, until {end}: {'; '.join(texts)}"
        return Check("starting", self._cluster.cluster.name, True, message, " ".join(hints), warning=True)

    def _look_for_reservation(self, login: DaemonClient, booking: ChosenBooking) -> Check:
        """Returns the checklist line about a booking: whether Slurm has a reservation for it."""
        cluster, named = self._cluster.cluster.name, f"booking {booking.id} ({booking.title!r})"
        self._is_reserved = booking.id in login.call("reservations.read", {})["reservations"]
        if self._is_reserved:
            return Check("booking", cluster, True, f"runs in the reservation of the {named}")
        text = f"the {named} is not exclusive, because Slurm has no reservation for it: the job starts in its time"
        return Check("booking", cluster, True, text, warning=True)

    def _script(self, run_id: str, job: ClusterJob, *, is_only: bool) -> str:
        cluster, booking = self._cluster.cluster, self.booking if self._is_reserved else None
        text = job_script(
            *(run_id, self.topology, cluster, job.components, self._delay_s, job.group),
            is_only=is_only,
            array=self._array(job),
        )
        if booking is None:
            return text
        now = datetime.now(UTC)
        left = booking.end - max(booking.start, self.start_at or now, now)
        return in_reservation(text, f"{RESERVATION}{booking.id}", cluster.time_limit, left.total_seconds())

    def _batch_program(self, job: ClusterJob) -> str:
        """Returns the batch program of a job and its arguments, in the form for `script`."""
        return f"slurm-batch JOB-FOLDER {job.group}".rstrip()

    def _array(self, job: ClusterJob) -> str:
        """Returns the value of sbatch's option `--array`, or "" if the job is not an array."""
        return ""

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
        """Returns the plan on slots. Raises RunFailed for a problem of the topology, or if there are too few nodes."""
        description.require_nodes(self._cluster.cluster)
        slots, topology = description.plan_input(self._cluster.cluster, self.topology)
        found = replace(self.source, topology=topology).check(slots)
        planned = plan(topology, slots, found=found, line=self.source.line)
        errors = [problem for problem in planned.problems if problem.severity == "error"]
        if errors:
            more = f" ({counted(len(errors) - 1, 'more problem')})" if len(errors) > 1 else ""
            hint = ValidateTopology(self.source.source) if more else ""
            message = errors[0].printed(self.source.source) + more
            error: TorchyardError = RunFailed(message, code=errors[0].code, hint=hint)
            if errors[0].code == "no-room":
                error = never_starts(self._cluster.cluster.name, message)
            error.topology_problem = errors[0].message + more
            raise error
        return self._separated(replace(planned, topology=self.topology))

    def _separated(self, planned: Plan) -> Plan:
        return separated(planned)

    def _jobs_of(self, planned: Plan) -> list[ClusterJob]:
        return jobs_of(planned)

    def _submitted_text(self, answer: dict[str, Any]) -> str:
        jobs = [answer["job_id"], *answer.get("group_jobs", {}).values()]
        return f"{'job' if len(jobs) == 1 else 'jobs'} {', '.join(jobs)} submitted"

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
        """Returns the parameters of the agent's request `run.submit`."""
        record = self._record(planned, self._reserved, ())
        return {
            "run_id": self.run_id,
            "script": self._script(self.run_id, jobs[0], is_only=len(jobs) == 1),
            "groups": {job.group: self._script(self.run_id, job, is_only=False) for job in jobs[1:]},
            "secrets": self.secret_values,
            "job": self._job(planned, jobs, root, (self.run_id, self.name, self._lineage), record),
        }

    def _job(
        self,
        planned: Plan,
        jobs: list[ClusterJob],
        root: str | None,
        names: tuple[str, str, str],
        record: dict[str, Any],
    ) -> dict[str, Any]:
        """Returns the data for the batch program.

        Args:
            planned: The plan on slots.
            jobs: The jobs of the run.
            root: The root hash of the run's code; None without code.
            names: The ID of the run, its name, and its lineage.
            record: The run's record.
        """
        cluster, (run_id, name, lineage) = self._cluster.cluster, names
        ports = ports_needed(planned)
        prepare = {
            slot: {
                **Prepare(
                    run_id=run_id,
                    name=name,
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
        plans = cluster_plan(planned, sites, run_id, lineage=lineage)
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
            "cluster": cluster.name,
            "components": _described(jobs[0]),
            "groups": {job.group: {"components": _described(job)} for job in jobs[1:]},
            "prepare": prepare,
            "start": start,
            "gpus": {slot: [gpu.uuid for one in planned.on_host(slot) for gpu in one.gpus] for slot in planned.hosts},
            "srun_options": ["--no-kill"] if survives_node_loss(self.topology) and len(jobs) == 1 else [],
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
        """Cancels the job, and ends the run if it has begun. Returns whether the cluster has confirmed that."""
        slot = self._cluster.cluster.slot(1)
        return not take_back(self.run_id, {slot: self._cluster.link(slot, install=False)}, self.hosts)


def _reserved_text(found: Mapping[str, Any], own: Mapping[str, ChosenBooking], zone: str) -> str:
    """Describes a reservation of Slurm: `n1, n2 for your booking 'x' from Mon 23 Nov 09:00 to 17:00`."""
    booking = own.get(str(found["name"]).removeprefix(RESERVATION))
    name = f"as {found['name']}" if booking is None else f"for your booking {booking.title!r}"
    start, end = (datetime.fromtimestamp(found[key], UTC) for key in ("start", "end"))
    nodes = [*map(str, found["nodes"][:MOST_NAMED]), *(["…"] if len(found["nodes"]) > MOST_NAMED else [])]
    return f"{', '.join(nodes)} {name} {span(start, end, zone)}"


def _described(job: ClusterJob) -> list[dict[str, Any]]:
    """Returns the components of a job in the form that the batch program reads."""
    return [{"slots": list(one.slots), "options": one.options} for one in job.components]


def _renamed(jobs: list[ClusterJob], planned: Plan) -> list[ClusterJob]:
    """Returns the jobs with the slot names that `renumbered` has assigned."""
    names = iter(sorted(planned.hosts, key=lambda slot: int(slot.rpartition(".")[2])))

    def with_names(one: Component) -> Component:
        return replace(one, slots=tuple(next(names) for _ in one.slots))

    return [replace(job, components=tuple(with_names(one) for one in job.components)) for job in jobs]
