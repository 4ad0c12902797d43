"""One launch: hosts reached and looked at, the plan made, code sent, keepers prepared, and the run started.

Until the primary's keeper has the whole run, everything can be taken back: on any error, and on `cancel`, every host
that was prepared gives up what it held. A desktop that dies or is cut off meanwhile no longer renews the lease of the
launch, and the keepers give up by themselves. Once the primary was asked to start, only it can say whether it has:
where it does not answer any more, that is an error of its own, and the booking stays.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from torchyard_core.background_thread import in_background
from torchyard_core.errors import HostError
from torchyard_core.formatting import as_utc, utc_now
from torchyard_core.identity import who_asks
from torchyard_core.launch.agent_interface import AgentLink, Hosts
from torchyard_core.launch.calendar_port import Reserved, Reserving
from torchyard_core.launch.checks.bandwidth import check_bandwidth, measure
from torchyard_core.launch.checks.connectivity import check_ways
from torchyard_core.launch.checks.host_facts import Check, check_strategy
from torchyard_core.launch.checks.preflight_client import Looking
from torchyard_core.launch.confirmations import Ask, about_outside, about_size, no_answer, settle
from torchyard_core.launch.lease_renewal import LeaseRenewal
from torchyard_core.launch.planning import Checking, Ground
from torchyard_core.launch.progress import Telling
from torchyard_core.launch.rank_assignment import Plan
from torchyard_core.launch.restart import EndedRun, check_resumed, provide_code
from torchyard_core.launch.runs.history import RunRecord, new_run_id
from torchyard_core.launch.snapshot import Listing, Snapshot, take_snapshot
from torchyard_core.launch.snapshot_upload import send_everywhere
from torchyard_core.launch.submission import prepare, start, take_back
from torchyard_core.launch.warm_start import early_imports, imports_package, start_early
from torchyard_core.topology.file import TopologyFile, dump, topology_from_text
from torchyard_core.topology.model import Topology
from torchyard_core.topology.paths import expanded


@dataclass
class Started:
    """A run that is under way."""

    run_id: str
    plan: Plan
    primary: AgentLink
    links: dict[str, AgentLink]
    """By host, the primary's included."""
    timings: dict[str, float]
    """Seconds from the launch's begin: checked_s, sent_s, submitted_s."""
    reserved: Reserved = field(default_factory=Reserved)
    """What the calendar says of it."""
    snapshot: str | None = None
    """Root hash of its code; None where it has none."""


class StartUnknown(HostError):
    """Raised where the primary was asked to start the run, and could not be asked any more whether it has.

    `started` is the run as it is under way if it is; whoever launched notes it as one that is not confirmed.
    """

    def __init__(self, started: Started):
        host, run_id = started.primary.host, started.run_id
        booking = " Its booking stays." if started.reserved.booking_id else ""
        super().__init__(
            host,
            f"{host} was asked to start run {run_id} and does not answer any more: it may have begun.{booking}",
            code="start_unknown",
            hint=f"`torchyard runs list` tells once {host} can be reached, and `torchyard runs stop {run_id}` ends it.",
        )
        self.started = started


@dataclass
class Launch:
    """A launch in the making. `run` does it all; `cancel`, from any thread, takes it back."""

    source: TopologyFile
    topology: Topology
    name: str
    hosts: Hosts
    secret_values: dict[str, str]
    on_event: Callable[[dict[str, Any]], None]
    """Called with the events of `run --json`, on the thread of `run`."""
    on_check: Callable[[Check], None] = lambda check: None
    """Called with each line of the checklist, before its event."""
    on_progress: Callable[[str, int, int], None] = lambda step, done, total: None
    """Called with (`reaching`, `looking`, `sending`, `preparing` or `starting`; how far; of how much): hosts, but for
    `sending`, which counts bytes."""
    run_id: str = field(default_factory=new_run_id)
    ask: Ask = no_answer
    """Answers questions (is so much to be sent?), on the thread of `run`; by default none is answered."""
    caches: Path | None = None
    """This computer's folder for hashes of files and measured bandwidths; without one all is found out anew."""
    again: EndedRun | None = None
    """The run that is launched again: with the code that it ran, from its newest checkpoint."""
    reserving: Reserving | None = None
    """The team's calendar; without one, bookings are not looked at."""
    own: Sequence[RunRecord] = ()
    """What this desktop launched before."""
    _links: dict[str, AgentLink] = field(default_factory=dict)
    """Every host that may hold something of this launch."""

    def __post_init__(self) -> None:
        self._telling = Telling(self.on_event, self.on_check, self.on_progress)
        self._over = Event()

    def cancel(self) -> None:
        """Takes the launch back, as soon as what is under way lets go."""
        self._telling.cancelled.set()

    def run(self) -> Started:
        """Launches. Raises RunFailed with the first red line, a HostError, or Cancelled; nothing is left then.

        Raises StartUnknown where something may be left, whatever it was that ended the launch.
        """
        telling = self._telling
        started: Started | None = None
        lease = LeaseRenewal(self.run_id)
        try:
            telling.say("run_state", state="checking")
            imports = in_background(self._early_imports)
            ground = Checking(self.source, self.topology, self.hosts, telling, self._links, self.reserving).run()
            reserved = self._reserve(ground.plan)
            early = telling.all({"": imports})[""]
            if early and reserved.start_at is None:
                start_early(ground, self.run_id, early)
                lease.begin(ground.plan.hosts, ground.links)
            snapshot = self._check_further(ground, reserved)
            timings = {"checked_s": telling.since()}
            telling.say("run_state", state="sending")
            if snapshot is not None:
                send_everywhere(snapshot, ground.links, self.hosts, telling)
            timings["sent_s"] = telling.since()
            root = snapshot.root if snapshot else None
            if self.again is not None:
                root = self.again.snapshot
                provide_code(self.again, ground.links, self.hosts, telling)
            resume_from = self._resume_from()
            record = self._record(ground.plan, reserved, early)
            lease.begin(ground.plan.hosts, ground.links)
            prepared = prepare(
                *(self.run_id, self.name, ground, root, record, telling, resume_from),
                later=reserved.start_at is not None,
            )
            if self.again is not None:
                telling.checks([check_resumed(self.again, ground.plan, prepared)])
            telling.checks(check_ways(ground, prepared, telling))
            primary = ground.links[ground.primary]
            started = Started(self.run_id, ground.plan, primary, dict(ground.links), timings, reserved, root)
            start(
                *(self.run_id, self._lineage, self.topology, ground, prepared, self.secret_values, telling, reserved),
                spare_imports=early if self.topology.program.warm_spares else (),
            )
            lease.end()
            timings["submitted_s"] = telling.since()
        except BaseException:  # Ctrl-C too: no host keeps what it was asked to prepare
            self._over.set()
            lease.end()
            self.undo(started)
            raise
        telling.say("run_submitted", run_id=self.run_id)
        if self.reserving is not None:
            self.reserving.begun()
        return started

    def undo(self, started: Started | None) -> None:
        """Takes back what was launched, `started` where its primary was asked to start. Raises StartUnknown.

        The primary's word decides: without it, the keepers of the other hosts give up by themselves.
        """
        silent = take_back(self.run_id, self._links, self.hosts if started is not None else None)
        if started is not None and started.primary.host in silent:
            raise StartUnknown(started)
        if self.reserving is not None:
            self.reserving.take_back()

    def _reserve(self, planned: Plan) -> Reserved:
        """What the calendar says of the plan, told as lines of the checklist."""
        if self.reserving is None:
            return Reserved()
        self._telling.stop_if_cancelled()
        reserved = self.reserving.settle(planned, self.run_id, self.name, self.ask)
        self._telling.checks(reserved.checks)
        self._telling.stop_if_cancelled()
        return reserved

    @property
    def was_launched_here(self) -> bool:
        """Whether this desktop has launched the same topology, word for word, before."""
        text = self._text()
        return any(record.topology == text for record in self.own)

    @property
    def _lineage(self) -> str:
        """The run whose checkpoints are this one's too."""
        return self.again.lineage if self.again is not None else self.run_id

    def _resume_from(self) -> str | None:
        """Where a folder is shared for checkpoints, programs find them there by themselves."""
        return None if self.again is None or self.topology.program.checkpoint_dir else self.again.run_id

    def record(self, started: Started, file: str, *, is_confirmed: bool = True) -> RunRecord:
        """What this desktop notes of the run that was started from `file`. `is_confirmed`: its primary said so."""
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
            lineage=self._lineage,
            planned=planned_replicas(started.plan),
            restarted_from=self.again.run_id if self.again is not None else "",
            booking=started.reserved.booking_id or "",
            reason="" if is_confirmed else f"{started.primary.host} has not said whether it has begun",
            is_confirmed=is_confirmed,
        )

    def _check_further(self, ground: Ground, reserved: Reserved) -> Snapshot | None:
        """What the hosts and the links between them tell of themselves, while this computer reads its own folder."""
        # Who is on GPUs that it takes later says nothing of then.
        looking = Looking(ground, with_gpus=reserved.start_at is None)
        file = self.caches / "bandwidth.json" if self.caches is not None else None
        measuring = in_background(measure, ground, file, self._over)
        joins = in_background(self._joins)
        snapshot = self._snapshot(ground)
        scheduled = reserved.start_at is not None
        self._telling.checks(looking.lines(self.topology.program.launcher, self._telling, scheduled=scheduled))
        figures = self._telling.all({"": measuring})[""]
        self._telling.checks(check_bandwidth(figures, time.time()))
        self._telling.checks(check_strategy(self.topology, self._telling.all({"": joins})[""]))
        return snapshot

    def _early_imports(self) -> tuple[str, ...]:
        """What the ranks' interpreters may import before the program is there."""
        if self.again is not None:
            return self.again.early_imports
        return early_imports(self.topology.program, self._folder)

    def _joins(self) -> bool | None:
        """Whether the program imports what takes part in a strategy; None where that cannot be known."""
        return (
            None if self.again is not None else imports_package(self.topology.program, self._folder, "torchyard_roles")
        )

    @property
    def _folder(self) -> Path | None:
        """The working folder on this computer; None where the run has none."""
        workdir = self.topology.program.workdir
        if workdir is None or self.source.folder is None:
            return None
        return (self.source.folder / expanded(workdir)).resolve()

    def _snapshot(self, ground: Ground) -> Snapshot | None:
        """The working folder as it is now; None where the run has none."""
        program, folder, home = self.topology.program, self._folder, self.source.folder
        if folder is None or home is None:
            return None
        as_written = topology_from_text(self.source.document.text).topology
        is_of_file = as_written is not None and as_written.program.workdir == program.workdir  # not of --set
        if is_of_file and not self.was_launched_here:
            settle(about_outside(folder, home), self.ask)

        def ask_about_size(listing: Listing) -> None:
            self._telling.stop_if_cancelled()
            settle(about_size(folder, listing.unseen, len(ground.plan.hosts)), self.ask)

        hashes = self.caches / "files" if self.caches is not None else None
        snapshot = take_snapshot(folder, program.exclude, self._telling.cancelled, hashes, ask_about_size)
        self._telling.stop_if_cancelled()
        return snapshot

    def _record(self, planned: Plan, reserved: Reserved, early: tuple[str, ...]) -> dict[str, Any]:
        return {
            "primary": planned.primary,
            "hosts": list(planned.hosts),
            "submitted": utc_now(),
            "launched_from": who_asks(),
            "topology_file": self.source.source,
            "topology": self._text(),
            "strategy": self.topology.strategy.kind.value,
            "replicas": planned_replicas(planned),
            "lineage": self._lineage,
            "early_imports": list(early),
            **({"restarted_from": self.again.run_id} if self.again is not None else {}),
            **({"booking": reserved.booking_id} if reserved.booking_id else {}),
            **({"person": reserved.owner} if reserved.owner else {}),
            **({"start_at": as_utc(reserved.start_at.timestamp())} if reserved.start_at is not None else {}),
        }

    def _text(self) -> str:
        """The topology as it is run: the file's text, unless settings were changed for this run."""
        text = self.source.document.text
        as_written = topology_from_text(text).topology
        return text if as_written == self.topology else dump(self.topology)


def planned_replicas(planned: Plan) -> list[dict[str, Any]]:
    """Who runs where, as a run's record has it."""
    return [
        {"name": replica.name, "host": replica.host, "gpus": [gpu.uuid for gpu in replica.gpus]}
        for replica in planned.replicas
    ]
