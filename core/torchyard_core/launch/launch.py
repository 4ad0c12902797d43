"""A launch: connects to hosts, plans, runs the checks, uploads the code, prepares keepers and starts the run.

A launch can be undone until the primary's keeper has received the whole run: after an error or `cancel`, every prepared
host releases its resources. If the desktop fails or is disconnected, it does not renew the launch lease, and the
keepers release everything themselves. After the request to start, only the primary can tell whether the run has begun.
If the primary does not answer, the launch raises StartUnknown and keeps the booking.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from torchyard_agent.protocol.messages import Prepared
from torchyard_core.background_thread import in_background
from torchyard_core.errors import HostError
from torchyard_core.formatting import utc_now, utc_timestamp
from torchyard_core.home import expand_user
from torchyard_core.identity import desktop_identity
from torchyard_core.launch.agent_interface import AgentLink, Hosts
from torchyard_core.launch.calendar_interface import LaunchCalendar, Reservation
from torchyard_core.launch.checks.bandwidth import check_bandwidth, measure
from torchyard_core.launch.checks.check import Check
from torchyard_core.launch.checks.connectivity import check_connectivity
from torchyard_core.launch.checks.host_facts import check_strategy
from torchyard_core.launch.checks.preflight_client import PreflightClient
from torchyard_core.launch.confirmations import Ask, confirm_outside_folder, confirm_size, no_answer, settle
from torchyard_core.launch.lease_renewal import LeaseRenewal
from torchyard_core.launch.planning import LaunchContext, Planner
from torchyard_core.launch.port_assignment import ports_needed
from torchyard_core.launch.progress import LaunchProgress
from torchyard_core.launch.rank_assignment import Plan
from torchyard_core.launch.restart import EndedRun, check_resumed, provide_code
from torchyard_core.launch.runs.history import RunRecord, new_run_id
from torchyard_core.launch.snapshots.program_files import code_root
from torchyard_core.launch.snapshots.snapshot import Listing, Snapshot, take_snapshot
from torchyard_core.launch.snapshots.snapshot_upload import upload_to_all
from torchyard_core.launch.submission import prepare, start, take_back
from torchyard_core.launch.warm_start import early_imports, imports_package, start_early
from torchyard_core.next_steps import ListRuns, StopRun
from torchyard_core.topology.file import TopologyFile, dump, topology_from_text
from torchyard_core.topology.model import Topology


@dataclass
class StartedRun:
    """A run whose start was requested from its primary."""

    run_id: str
    plan: Plan
    primary: AgentLink
    links: dict[str, AgentLink]
    """Links by host, including the primary's."""
    timings: dict[str, float]
    """Times in seconds since the start of the launch: `checked_s`, `sent_s` and `submitted_s`."""
    reserved: Reservation = field(default_factory=Reservation)
    snapshot: str | None = None
    """The root hash of the run's code; None without code."""
    shown_replica: str = ""
    """The replica whose log is shown while the run is followed."""


class StartUnknown(HostError):
    """Raised if the primary stops answering after the request to start. The run may then have begun.

    `started` is the run. The caller records it in the history as unconfirmed.
    """

    def __init__(self, started: StartedRun):
        host, run_id = started.primary.host, started.run_id
        booking = " Its booking stays." if started.reserved.booking_id else ""
        super().__init__(
            host,
            f"{host} was asked to start run {run_id} and does not answer any more: it may have begun.{booking}",
            code="start_unknown",
            hint=(f"It is known once {host} can be reached.", ListRuns(), StopRun(run_id)),
        )
        self.started = started


@dataclass
class Launch:
    """Launches a run. `run` performs the launch. `cancel` undoes it, and may be called on any thread."""

    source: TopologyFile
    topology: Topology
    name: str
    hosts: Hosts
    secret_values: dict[str, str]
    on_event: Callable[[dict[str, Any]], None]
    """Called with the events of `run --json`, on the thread of `run`."""
    on_check: Callable[[Check], None] = lambda check: None
    """Called with each line of the checklist, before the event of the line is reported."""
    on_progress: Callable[[str, int, int], None] = lambda step, done, total: None
    """Called with (step, done, total). The unit is bytes for the step `sending`, and hosts for all other steps."""
    run_id: str = field(default_factory=new_run_id)
    ask: Ask = no_answer
    """Answers questions on the thread of `run`, such as whether to send a large folder. The default answers none."""
    caches: Path | None = None
    """Folder for cached file hashes and bandwidths; None disables caching."""
    again: EndedRun | None = None
    """The ended run to restart with its own code."""
    reserving: LaunchCalendar | None = None
    """The calendar in which GPUs are booked. If this is None, the launch ignores bookings."""
    own: Sequence[RunRecord] = ()
    """The records of this desktop's earlier launches."""
    _links: dict[str, AgentLink] = field(default_factory=dict)
    """The links to all hosts that may hold resources for this launch."""
    _root: str | None = None
    """The root hash of the run's code; None until the code was sent."""
    _code: str | None = None
    """The hash of the program's files in the run's code, as in `RunRecord.code`."""

    def __post_init__(self) -> None:
        self._progress = LaunchProgress(self.on_event, self.on_check, self.on_progress)
        self._over = Event()
        if self.again is not None:
            self._code = self.again.code

    def cancel(self) -> None:
        """Asks `run()` to stop as soon as possible and to undo the launch."""
        self._progress.cancelled.set()

    def run(self) -> StartedRun:
        """Launches the run.

        Raises:
            RunFailed: A check failed. The error has the message of the first failed check.
            Cancelled: `cancel` was called.
            StartUnknown: The run may have begun. After any other error, the launch was undone.
            TorchyardError: A host could not be used, or an agent or the calendar refused a request.
        """
        progress = self._progress
        started: StartedRun | None = None
        lease = LeaseRenewal(self.run_id)
        try:
            progress.emit("run_state", state="checking")
            imports = in_background(self._early_imports)
            context = self._plan()
            reserved = self._reserve(context.plan)
            early = progress.wait_for_all({"": imports})[""]
            if early and reserved.start_at is None:
                start_early(context, self.run_id, early)
                lease.begin(context.plan.hosts, context.links)
            snapshot = self._check_further(context, reserved)
            timings = {"checked_s": progress.elapsed_s()}
            progress.emit("run_state", state="sending")
            if snapshot is not None:
                upload_to_all(snapshot, context.links, self.hosts, progress)
            timings["sent_s"] = progress.elapsed_s()
            root = snapshot.root if snapshot else None
            if self.again is not None:
                root = self.again.snapshot
                provide_code(self.again.run_id, root, self.again.links, context.links, self.hosts, progress)
            resume_from = self._resume_from()
            self._root = root
            record = self._record(context.plan, reserved, early)
            lease.begin(context.plan.hosts, context.links)
            prepared = prepare(
                *(self.run_id, self.name, context, root, record, progress, self._ports(context.plan), resume_from),
                later=reserved.start_at is not None,
            )
            if self.again is not None:
                progress.report_checks([check_resumed(self.again, context.plan, prepared)])
            progress.report_checks(check_connectivity(context, prepared, progress))
            primary = context.links[context.primary]
            started = StartedRun(
                *(self.run_id, context.plan, primary, dict(context.links), timings, reserved, root),
                shown_replica=self._shown_replica(context.plan),
            )
            self._submit(context, prepared, reserved, early)
            lease.end()
            timings["submitted_s"] = progress.elapsed_s()
        except BaseException:  # BaseException includes KeyboardInterrupt, after which the hosts must also be released.
            self._over.set()
            lease.end()
            self.undo(started)
            raise
        progress.emit("run_submitted", run_id=self.run_id)
        if self.reserving is not None:
            self.reserving.begun()
        return started

    def _plan(self) -> LaunchContext:
        """Connects to hosts and plans the run. Raises the errors of `Planner.run`."""
        return Planner(self.source, self.topology, self.hosts, self._progress, self._links, self.reserving).run()

    def _ports(self, planned: Plan) -> Mapping[str, int]:
        """Returns the number of ports to reserve on each host."""
        return ports_needed(planned)

    def _submit(
        self, context: LaunchContext, prepared: Mapping[str, Prepared], reserved: Reservation, early: Sequence[str]
    ) -> None:
        """Sends the run to its prepared hosts."""
        start(
            *(self.run_id, self._lineage, self.topology, context, prepared),
            *(self.secret_values, self._progress, reserved),
            spare_imports=early if self.topology.program.warm_spares else (),
        )

    def _shown_replica(self, planned: Plan) -> str:
        return planned.worlds[0].master if planned.worlds else planned.replicas[0].name

    def _planned(self, planned: Plan) -> list[dict[str, Any]]:
        """Returns the replicas of the run for its records."""
        return planned_replicas(planned)

    def undo(self, started: StartedRun | None) -> None:
        """Undoes the launch. `started` is the run, if its primary was asked to start it, otherwise None.

        Raises StartUnknown if that primary does not answer. The other hosts need not answer, because their keepers
        follow the primary.
        """
        silent = take_back(self.run_id, self._links, self.hosts if started is not None else None)
        if started is not None and started.primary.host in silent:
            raise StartUnknown(started)
        if self.reserving is not None:
            self.reserving.take_back()

    def _reserve(self, planned: Plan) -> Reservation:
        """Reserves the GPUs of the plan in the calendar, and reports the calendar's checklist lines."""
        if self.reserving is None:
            return Reservation()
        self._progress.stop_if_cancelled()
        reserved = self.reserving.settle(planned, self.run_id, self.name, self.ask)
        self._progress.report_checks(reserved.checks)
        self._progress.stop_if_cancelled()
        return reserved

    @property
    def was_launched_here(self) -> bool:
        """Whether this desktop has launched the identical topology text before."""
        text = self._text()
        return any(record.topology == text for record in self.own)

    @property
    def _lineage(self) -> str:
        """The ID of the first run in the chain of runs that this run continues. By default, the ID of this run."""
        return self.run_id if self.again is None or self.again.from_beginning else self.again.lineage

    def _resume_from(self) -> str | None:
        """Returns the ID of the run from which checkpoints are copied.

        Returns None if the run is not a restart, begins at the first step, or has a shared checkpoint folder, in which
        the program finds the checkpoints.
        """
        if self.again is None or self.again.from_beginning or self.topology.program.checkpoint_dir:
            return None
        return self.again.run_id

    def record(self, started: StartedRun, file: str, *, is_confirmed: bool = True) -> RunRecord:
        """Returns the history record of a run.

        Args:
            started: The run whose start was requested.
            file: The topology file, as shown in the history.
            is_confirmed: Whether the primary has confirmed the start.
        """
        now = utc_now()
        return RunRecord(
            started.run_id,
            self.name,
            file,
            started.primary.host,
            started.plan.hosts,
            submitted=now,
            state="starting",
            as_of=now,
            topology=self._text(),
            snapshot=started.snapshot,
            code=self._code,
            workdir=str(self._folder or ""),
            lineage=self._lineage,
            planned=self._planned(started.plan),
            restarted_from=self.again.run_id if self.again is not None else "",
            booking=started.reserved.booking_id or "",
            reason="" if is_confirmed else f"{started.primary.host} has not said whether it has begun",
            is_confirmed=is_confirmed,
        )

    def _check_further(self, context: LaunchContext, reserved: Reservation) -> Snapshot | None:
        """Runs the checks that measure hosts and network. Takes the snapshot of the working folder at the same time.

        Returns the snapshot, or None if the run has no working folder on this computer.
        """
        # A scheduled run acquires its GPUs later, so the current use of the GPUs does not matter.
        preflight = PreflightClient(context, with_gpus=reserved.start_at is None)
        file = self.caches / "bandwidth.json" if self.caches is not None else None
        measuring = in_background(measure, context, file, self._over)
        joins = in_background(self._joins)
        snapshot = self._snapshot(context)
        scheduled = reserved.start_at is not None
        self._progress.report_checks(
            preflight.checks(self.topology.program.launcher, self._progress, scheduled=scheduled)
        )
        figures = self._progress.wait_for_all({"": measuring})[""]
        self._progress.report_checks(check_bandwidth(figures, time.time()))
        self._progress.report_checks(check_strategy(self.topology, self._progress.wait_for_all({"": joins})[""]))
        return snapshot

    def _early_imports(self) -> tuple[str, ...]:
        """Returns the modules that the ranks' interpreters may import before the program's code has arrived."""
        if self.again is not None:
            return self.again.early_imports
        return early_imports(self.topology.program, self._folder)

    def _joins(self) -> bool | None:
        """Returns whether the program imports `torchyard_roles`, or None if this is unknown."""
        return (
            None if self.again is not None else imports_package(self.topology.program, self._folder, "torchyard_roles")
        )

    @property
    def _folder(self) -> Path | None:
        """The working folder on this computer, if the run has a working folder."""
        workdir = self.topology.program.workdir
        if workdir is None or self.source.folder is None:
            return None
        return (self.source.folder / expand_user(workdir)).resolve()

    def _snapshot(self, context: LaunchContext) -> Snapshot | None:
        """Returns a snapshot of the working folder, or None if there is none.

        The user must confirm a large upload, and a working folder that is outside the topology file's folder.
        """
        program, folder, home = self.topology.program, self._folder, self.source.folder
        if folder is None or home is None:
            return None
        as_written = topology_from_text(self.source.document.text).topology
        # A working folder that the user has set with --set needs no confirmation.
        is_from_file = as_written is not None and as_written.program.workdir == program.workdir
        if is_from_file and not self.was_launched_here:
            settle(confirm_outside_folder(folder, home), self.ask)

        def ask_about_size(listing: Listing) -> None:
            self._progress.stop_if_cancelled()
            settle(confirm_size(folder, listing.unseen, len(context.plan.hosts)), self.ask)

        hashes = self.caches / "files" if self.caches is not None else None
        snapshot = take_snapshot(folder, program.exclude, self._progress.cancelled, hashes, ask_about_size)
        self._progress.stop_if_cancelled()
        self._code = code_root(snapshot, self.topology)
        return snapshot

    def _record(self, planned: Plan, reserved: Reservation, early: tuple[str, ...]) -> dict[str, Any]:
        return {
            "primary": planned.primary,
            "hosts": list(planned.hosts),
            "submitted": utc_now(),
            "launched_from": desktop_identity(),
            "topology_file": self.source.source,
            "topology": self._text(),
            "strategy": self.topology.strategy.kind.value,
            "replicas": self._planned(planned),
            "lineage": self._lineage,
            "early_imports": list(early),
            **({"restarted_from": self.again.run_id} if self.again is not None else {}),
            **({"booking": reserved.booking_id} if reserved.booking_id else {}),
            **({"person": reserved.owner} if reserved.owner else {}),
            **({"start_at": utc_timestamp(reserved.start_at.timestamp())} if reserved.start_at is not None else {}),
        }

    def _text(self) -> str:
        """Returns the topology file's text, or the text of `topology` if settings were changed for this run."""
        text = self.source.document.text
        as_written = topology_from_text(text).topology
        return text if as_written == self.topology else dump(self.topology)


def planned_replicas(planned: Plan) -> list[dict[str, Any]]:
    """Returns the name, host and GPUs of each replica for a run's record."""
    return [
        {"name": replica.name, "host": replica.host, "gpus": [gpu.uuid for gpu in replica.gpus]}
        for replica in planned.replicas
    ]
