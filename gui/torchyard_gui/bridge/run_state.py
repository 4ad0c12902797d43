"""The state of one run, merged from its record, its journal and the hosts' samples. Does not depend on Qt or threads.

States are never guessed: if a host does not answer, its replicas keep their last known state, with the time of the
host's last answer.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torchyard_agent.protocol.attribution import user_of
from torchyard_agent.protocol.metrics_report import custom_metrics_of_event, metrics_of_event
from torchyard_core.launch.rank_assignment import Plan
from torchyard_core.launch.runs.known_runs import is_over
from torchyard_core.launch.runs.recorded_plan import recorded_plan
from torchyard_core.replica_metrics import (
    Sample,
    TimeSeries,
    capacity_for,
    replica_values,
    reported_values,
)
from torchyard_core.slow_replicas import slow_replicas
from torchyard_core.throughput import is_trainer, run_throughput
from torchyard_core.topology.host_facts import HostFacts
from torchyard_gui.bridge.run_state_types import (
    ReplicaStatus,
    RunChanges,
    TimelineEvent,
    WaitingForHosts,
    waiting_for,
    when,
)

SILENT_S = 6.0
"""If a host has not reported for this many seconds, its state counts as unknown. Hosts report once a second."""
TOTALS_EVERY_S = 0.9


class RunState:
    """The known state of one run."""

    def __init__(
        self,
        run_id: str,
        name: str,
        primary: str,
        hosts: Sequence[str],
        cluster: str = "",
        cpus_of: Callable[[str], int | None] = lambda node: None,
    ):
        self.run_id = run_id
        self.name = name
        self.primary = primary
        self.hosts = tuple(hosts)
        self.cluster = cluster
        """The cluster that chooses the nodes of the run; "" if the run is on hosts of the fleet file."""
        self._cpus_of = cpus_of
        """Returns the number of cores of a node of the cluster, or None if it is unknown."""
        self._nodes: Mapping[str, str] = {}
        """The node of each slot at the current or last start of the run's job."""
        self.state = ""
        self.reason = ""
        self._waiting: WaitingForHosts | None = None
        self.as_of: float | None = None
        """The time of the last report by the primary host."""
        self.submitted: float | None = None
        self.started: float | None = None
        self.ended: float | None = None
        self.topology_text = ""
        self.topology_file = ""
        self.plan: Plan | None = None
        self.plan_hosts: tuple[HostFacts, ...] = ()
        self.tracks: dict[str, ReplicaStatus] = {}
        self.moments: list[TimelineEvent] = []
        self.totals = TimeSeries(fields=TOTALS)
        self.lost: dict[str, float | None] = {}
        """The hosts that do not answer, with the time of the last report of each."""
        self.is_followed = True
        """Whether the run is followed. If it is not, its state may be outdated."""
        self.known_from = ""
        """The host that reported the run in place of its primary, or "". Such a host's report of the run's end may be
        wrong.
        """
        self.slow: dict[str, float] = {}
        self.telemetry_problem = ""
        """The reason why there is no live telemetry of a run on a cluster, or ""."""
        self._silent: set[str] = set()
        """Hosts in `lost` whose connection is open but silent."""
        self._heard: dict[str, float] = {}
        self._reported_at: dict[str, float] = {}
        self._by_host: dict[str, dict[str, tuple[str, ...]]] = {}
        self._seen: dict[str, int] = {}
        self._ranks: dict[str, int] = {}
        self._shown_at = 0.0
        self._restarts = 0
        self._sampled_at = 0.0
        self._is_noted = False
        """Whether metrics and events come only from this computer's record of the ended run."""

    @property
    def is_over(self) -> bool:
        return is_over(self.state) and not self.known_from

    @property
    def is_stale(self) -> bool:
        """Whether the state may be outdated, because the primary's host does not answer or the run is not followed."""
        return not self.is_over and (bool(self.known_from) or not self.is_followed or self.primary in self.lost)

    @property
    def waiting(self) -> WaitingForHosts | None:
        """The hosts that the run waits for before it restarts, or None if the run does not wait."""
        return self._waiting if self.state == "restarting" else None

    @property
    def restarts(self) -> int:
        """The number of restarts of the run's gangs."""
        return max(self._restarts, max((track.restarts for track in self.tracks.values()), default=0))

    def take_record(self, about: Mapping[str, Any], known: Sequence[HostFacts]) -> None:
        """Applies the run's record: the topology, the planned replicas and the time of the launch."""
        self.topology_text = str(about.get("topology", ""))
        self.topology_file = str(about.get("topology_file", ""))
        self.submitted = when(about.get("submitted")) or self.submitted
        planned = list(about.get("replicas", []))
        read = recorded_plan(self.topology_text, planned, known)
        if read is not None:
            self.plan, self.plan_hosts = read
            self._name_nodes()
            self._ranks = {replica.name: max(1, replica.ranks) for replica in self.plan.replicas}
        capacity = capacity_for(len(planned))
        for replica in planned:
            name, host, gpus = str(replica["name"]), str(replica["host"]), tuple(map(str, replica.get("gpus", ())))
            if name not in self.tracks:
                self.tracks[name] = ReplicaStatus(name, host, gpus, TimeSeries(capacity))
                self._by_host.setdefault(host, {})[name] = gpus

    def take_nodes(self, nodes: Mapping[str, str], changes: RunChanges) -> None:
        """Applies the nodes that the scheduler has chosen, by slot."""
        self._nodes = dict(nodes)
        changes.shown |= self._name_nodes()

    def node_of(self, host: str) -> str:
        """Returns the node of a slot such as `hpc.2`. Returns "" while the run has no nodes, and for a host that is not
        a slot.
        """
        return "" if self.state == "waiting" else self._nodes.get(host, "")

    def place_of(self, host: str) -> str:
        """Returns the node of a slot if the node is known; otherwise returns `host` itself."""
        return self.node_of(host) or host

    def with_node(self, host: str) -> str:
        """Returns the name of a host for a sentence. For a slot, adds the node, as in `hpc.2 (gpu018)`."""
        node = self.node_of(host)
        return f"{host} ({node})" if node else host

    def _name_nodes(self) -> bool:
        """Sets the cluster and the nodes in `plan_hosts`. A waiting run has no nodes.

        Returns whether `plan_hosts` has changed.
        """
        if not self.cluster:
            return False
        named = tuple(
            replace(host, cluster=self.cluster, node=node, cpus=self._cpus_of(node), checked=True)
            for host in self.plan_hosts
            for node in [self.node_of(host.name)]
        )
        before, self.plan_hosts = self.plan_hosts, named
        return before != named

    def take_shown(
        self, state: str, reason: str, as_of: str, replicas: Iterable[Mapping[str, Any]], known_from: str = ""
    ) -> None:
        """Applies the last known state of the run, before its journal is read.

        Args:
            known_from: The host that reported the state, if it is not the primary's host.
        """
        self.state, self.reason, self.as_of = state, reason, when(as_of) or self.as_of
        self.known_from = known_from
        self._shown_at = when(as_of) or 0.0
        for replica in replicas:
            track = self._track(str(replica["name"]), str(replica.get("host", "")))
            track.state = str(replica.get("state", track.state))
            track.reason = str(replica.get("reason", "") or "")
            track.exit_code = replica.get("exit_code")
            track.restarts = int(replica.get("restarts") or 0)

    def take_noted(self, metrics: Mapping[str, Mapping[str, float | None]], ended: float | None) -> None:
        """Applies this computer's record of an ended run: its last metrics, launch and end."""
        self._is_noted = True
        self.ended = ended
        self._take_metrics(metrics, ended or self.as_of or 0.0)
        if self.submitted is not None:
            self.moments.append(TimelineEvent(self.submitted, "run", "starting"))
        if ended is not None:
            self.moments.append(TimelineEvent(ended, "run", self.state, reason=self.reason))

    def forget_noted(self) -> None:
        """Deletes the metrics and events that come from this computer's record, before the journal replays them."""
        if self._is_noted:
            self._is_noted = False
            self.moments.clear()
            self.totals = TimeSeries(fields=TOTALS)
            for track in self.tracks.values():
                track.ring = TimeSeries(capacity_for(len(self.tracks)))

    def take_event(self, event: Mapping[str, Any], changes: RunChanges) -> None:
        """Applies an event of the journal, or a `connection` or `telemetry` event. Events must be passed in order."""
        kind = event["event"]
        if kind == "connection":
            self._connection(event, changes)
            return
        if kind == "telemetry":
            self.telemetry_problem = str(event.get("reason", ""))
            changes.run = True
            return
        if event["seq"] <= self._seen.get(event["epoch"], 0):
            return  # The event is already known, because the journal is replayed after a lost connection.
        self._seen[event["epoch"]] = event["seq"]
        at = when(event.get("time")) or 0.0
        self.as_of = max(at, self.as_of or 0.0)
        if kind == "run_state":
            self._run_state(event, at, changes)
        elif kind == "replica_state":
            self._replica_state(event, at, changes)
        elif kind == "report":
            self._report(event, at, changes)
        elif kind == "gang_restart":
            gang, cause = str(event.get("gang", "")), str(event.get("cause", ""))
            self._restarts += 1
            self._note(
                TimelineEvent(at, "restart", replica=gang, reason=cause, generation=event["generation"]), changes
            )
            changes.run = True
        elif kind == "membership":
            left, lost = len(event["members"]), len(event["lost"])
            counts = {"step": event["step"], "remaining": left, "workers": left + lost}
            self._note(TimelineEvent(at, "membership", reason=str(event["cause"]), **counts), changes)
            changes.run = True
        elif kind == "withdrawal":
            moment = TimelineEvent(at, "withdrawal", replica=str(event["replica"]), reason=str(event["reason"]))
            self._note(moment, changes)
            changes.run = True
        elif kind == "asked":
            self._asked(event, at, changes)
        elif kind in ("checkpoint_saved", "checkpoint_carried"):
            self._checkpoint(event, at, changes)
        elif kind == "interrupted":
            self._take_metrics(event.get("metrics") or {}, at)
            changes.replicas.update(self.tracks)
            changes.run = changes.samples = True
        elif kind == "run_ended":
            self._ended(event, at, changes)

    def take_sample(self, host: str, sample: Sample, now: float, changes: RunChanges) -> None:
        """Applies a telemetry sample of a host. Call `sum_up` after the samples of all hosts.

        Args:
            now: Local monotonic time in seconds.
        """
        # If the primary's host was disconnected, it does not count as connected again until its journal arrives.
        if host != self.primary or host in self._silent:
            self.mark_found(host, changes)
        self._heard[host] = now
        self._reported_at[host] = float(sample["time"])
        at = float(sample["time"])
        if host == self.primary:
            self.as_of = max(at, self.as_of or 0.0)
        for name, values in replica_values(sample, self.run_id, self._by_host.get(host, {})).items():
            track = self.tracks[name]
            if not track.is_over and track.ring.append(at, values):
                changes.replicas.add(name)
        changes.samples = True
        self._sampled_at = max(at, self._sampled_at)

    def sum_up(self) -> None:
        """Computes the run's totals from the latest samples."""
        self._add_totals(self._sampled_at)

    def look_for_silence(self, now: float, wall: float, changes: RunChanges) -> None:
        """Marks hosts as lost if they no longer report although their connections are open."""
        if self.is_over:
            return
        for host, heard in self._heard.items():
            if now - heard > SILENT_S and host not in self.lost and self._is_busy(host):
                self._silent.add(host)
                self._lose(host, self._reported_at.get(host) or wall - (now - heard), changes)

    def mark_lost(self, host: str, changes: RunChanges) -> None:
        self._silent.discard(host)
        if host not in self.lost:
            self._lose(host, self._reported_at.get(host) or self.as_of, changes)

    def mark_found(self, host: str, changes: RunChanges) -> None:
        """Marks a lost host as connected again."""
        if host in self.lost:
            del self.lost[host]
            self._silent.discard(host)
            self._heard.pop(host, None)
            changes.run = True
            changes.replicas.update(self._by_host.get(host, {}))

    def mark_unfollowed(self, changes: RunChanges) -> None:
        """Marks the run as not followed. Its state then counts as possibly outdated."""
        self.is_followed = False
        self.lost = {host: self._reported_at.get(host) or self.as_of for host in self.hosts} | self.lost
        changes.run = True
        changes.replicas.update(self.tracks)

    def mark_followed(self, changes: RunChanges) -> None:
        """Marks the run as followed.

        Hosts that were lost count as connected until they are reported as lost again.
        """
        if not self.is_followed:
            self.is_followed = True
            for host in list(self.lost):
                self.mark_found(host, changes)

    def stale_since(self, track: ReplicaStatus) -> float | None:
        """Returns the time of a replica's last known values if its host is lost, or None if the values are current."""
        if self.is_over or track.is_over or track.host not in self.lost:
            return None
        return track.ring.last_time or self.lost[track.host] or self.as_of or 0.0

    def meter(self, track: ReplicaStatus) -> float | None:
        """Returns the load of a replica's GPUs, or of its CPUs if it has no GPUs, from 0 to 1. Returns None if the load
        is unknown.
        """
        percent = track.ring.last("gpu") if track.gpus else track.ring.last("cpu")
        if percent is None or track.state not in ("running", "stopping"):
            return None
        return min(1.0, max(0.0, percent / 100))

    def total(self, name: str) -> float | None:
        """Returns the latest total in `TOTALS`: the highest `step`, the `loss` of the first trainer, or the median or
        sum of a metric.

        A sum is None if one of its parts is unknown. For an ended run, the last report of each replica is used, because
        replicas end one after the other and the sum over the remaining replicas would be meaningless.
        """
        if self.is_over:
            return add_up(list(self.tracks.values()))[name]
        return None if name in SUMS and self._is_partial else self.totals.last(name)

    def reported_by(self, name: str) -> tuple[int, int]:
        """Returns how many replicas have reported a finite value of a metric, and how many can report it."""
        asked = matching_tracks(self.tracks.values(), name)
        return len(finite_values(asked, name)), len(asked)

    def elapsed(self, wall: float) -> float | None:
        """Returns the run's duration in seconds, or None if its start is unknown."""
        begin = self.started or self.submitted
        if begin is None:
            return None
        end = self.ended or (self.as_of if self.is_over or self.is_stale else wall)
        return max(0.0, (end or wall) - begin)

    @property
    def chief(self) -> str | None:
        """The replica of rank 0, or None if it is unknown."""
        return next(iter(self.tracks), None)

    def ranks_of(self, replica: str) -> int:
        """Returns the number of processes of a replica, each of which has a log."""
        return self._ranks.get(replica, 1)

    def failures(self) -> list[ReplicaStatus]:
        """Returns the failed and lost replicas.

        The earliest failure is first, because later failures may be consequences of it.
        """
        failed = [track for track in self.tracks.values() if track.state in ("failed", "lost")]
        return sorted(failed, key=lambda track: (not self._names(track), track.since or 0.0))

    def cause_of(self, track: ReplicaStatus) -> str:
        """Returns why a replica ended: its own reason or else the run's reason if that names the replica."""
        if not track.reason and self._names(track):
            return self.reason[len(track.name) :].lstrip(": ")
        return track.reason

    def _names(self, track: ReplicaStatus) -> bool:
        """Returns whether the reason for the run's state begins with the replica's name."""
        return self.reason.startswith((f"{track.name}:", f"{track.name} "))

    def _take_metrics(self, metrics: Mapping[str, Mapping[str, float | None]], at: float) -> None:
        for name, values in metrics.items():
            track = self.tracks.get(name)
            known = {field: value for field, value in reported_values(values, values).items() if value is not None}
            if track is not None and any(not _same(track.ring.last(field), value) for field, value in known.items()):
                track.ring.append(at, known)

    @property
    def _is_partial(self) -> bool:
        """Returns whether a sum would be incomplete, because the host of a live replica is lost or a running replica
        has reported no values.
        """
        return any(
            track.host in self.lost or (track.state == "running" and not len(track.ring))
            for track in self.tracks.values()
            if not track.is_over
        )

    def _track(self, name: str, host: str) -> ReplicaStatus:
        if name not in self.tracks:
            self.tracks[name] = ReplicaStatus(name, host, (), TimeSeries(capacity_for(len(self.tracks) + 1)))
            self._by_host.setdefault(host, {})[name] = ()
        return self.tracks[name]

    def _is_busy(self, host: str) -> bool:
        return any(not self.tracks[name].is_over for name in self._by_host.get(host, {}))

    def _lose(self, host: str, since: float | None, changes: RunChanges) -> None:
        self.lost[host] = since
        changes.run = True
        changes.replicas.update(self._by_host.get(host, {}))
        if not self.is_over:
            self._note(TimelineEvent(since or 0.0, "host_lost", host=host), changes)

    def _connection(self, event: Mapping[str, Any], changes: RunChanges) -> None:
        host = str(event["host"])
        if event["state"] == "lost":
            self.mark_lost(host, changes)
            return
        was_lost = host in self.lost
        self.mark_found(host, changes)
        at = when(event.get("time"))
        if was_lost and at is not None:
            self._note(TimelineEvent(at, "host_back", host=host), changes)

    def _run_state(self, event: Mapping[str, Any], at: float, changes: RunChanges) -> None:
        state, reason = str(event["state"]), str(event.get("reason", "") or "")
        waiting = waiting_for(event.get("waiting_for"))
        if at >= self._shown_at:  # A replayed event is older than the current state and must not change it.
            self._waiting = waiting
            # The reason for a restart is obsolete when the run is running again.
            self.state, self.reason = state, reason or ("" if state == "running" else self.reason)
        if state == "running" and self.started is None:
            self.started = at
        changes.shown |= self._name_nodes()
        self._note(TimelineEvent(at, "run", state, reason=reason, waiting=waiting), changes)
        changes.run = True

    def _replica_state(self, event: Mapping[str, Any], at: float, changes: RunChanges) -> None:
        track = self._track(str(event["replica"]), str(event["host"]))
        state, reason = str(event["state"]), str(event.get("reason", "") or "")
        track.since = at
        if state != "running":
            self.slow.pop(track.name, None)  # A replica that is not running cannot slow down the run.
        if at >= self._shown_at:
            track.state, track.reason, track.exit_code = state, reason, event.get("exit_code")
            track.restarts = int(event.get("restarts") or 0)
        changes.replicas.add(track.name)
        if state in ("failed", "lost"):
            moment = TimelineEvent(at, "replica", state, track.name, track.host, reason)
            self._note(moment, changes)
            changes.run = True

    def _report(self, event: Mapping[str, Any], at: float, changes: RunChanges) -> None:
        track = self.tracks.get(str(event["replica"]))
        if track is None:
            return
        if event.get("first") and not any(moment.kind == "first_step" for moment in self.moments):
            self._note(TimelineEvent(at, "first_step", replica=track.name, host=track.host), changes)
        # A host with telemetry sends the same values in its samples, so its reports in the journal are ignored.
        values = reported_values(metrics_of_event(event), custom_metrics_of_event(event))
        if track.host not in self._heard and track.ring.append(at, values):
            changes.replicas.add(track.name)
            changes.samples = True
            self._add_totals(at)

    def _asked(self, event: Mapping[str, Any], at: float, changes: RunChanges) -> None:
        """Adds a user's request to launch, stop or grow the run to the timeline."""
        what = "force" if event.get("force") else str(event.get("what", ""))
        host = str(event.get("host", ""))
        self._note(TimelineEvent(at, "asked", what, host=host, by=user_of(dict(event))), changes)

    def _checkpoint(self, event: Mapping[str, Any], at: float, changes: RunChanges) -> None:
        """Adds a saved or copied checkpoint to the timeline.

        Checkpoints have names such as `step-000000001200` and `step-000000001200-final`.
        """
        step = re.match(r"step-(\d+)", str(event.get("checkpoint", "")))
        if step is None:
            return
        kind = "checkpoint" if event["event"] == "checkpoint_saved" else "checkpoint_copied"
        host, problem = str(event.get("host", "")), str(event.get("problem", "") or "")
        self._note(TimelineEvent(at, kind, host=host, reason=problem, step=int(step[1])), changes)

    def _ended(self, event: Mapping[str, Any], at: float, changes: RunChanges) -> None:
        self.state, self.reason, self.ended = str(event["state"]), str(event["reason"] or ""), at
        for replica in event.get("replicas", []):
            track = self._track(str(replica["name"]), str(replica["host"]))
            track.state, track.exit_code = str(replica["state"]), replica.get("exit_code")
            track.reason = str(replica.get("reason", "") or track.reason)
            track.restarts = int(replica.get("restarts") or 0)
        self._take_metrics(event.get("metrics") or {}, at)
        self.lost.clear()
        self.slow = {}
        self._note(TimelineEvent(at, "run", self.state, reason=self.reason), changes)
        changes.run = changes.samples = True
        changes.replicas.update(self.tracks)

    def _note(self, moment: TimelineEvent, changes: RunChanges) -> None:
        last = self.moments[-1] if self.moments else None
        if last is not None and moment.repeats(last):
            return
        if last is not None and moment.continues_wait(last):
            moment = replace(moment, time=last.time)
            self.moments.pop()
        self.moments.append(moment)
        changes.moments.append(moment)

    def _add_totals(self, at: float) -> None:
        if self.totals.last_time is not None and at - self.totals.last_time < TOTALS_EVERY_S:
            return
        # While the journal is replayed, replicas already have their final states, which do not apply to earlier events.
        is_past = at < self._shown_at
        alive = [
            track for track in self.tracks.values() if is_past or (not track.is_over and track.host not in self.lost)
        ]
        is_whole = is_past or not self._is_partial
        self.totals.append(at, add_up(alive, is_whole=is_whole))
        trainers = [track for track in alive if is_trainer(track.name)]
        self.slow = slow_replicas({track.name: track.ring.last("compute_s") for track in trainers})


def _same(one: float | None, other: float) -> bool:
    return one == other or (one is not None and math.isnan(one) and math.isnan(other))


TOTALS = ("throughput", "loss", "gpu", "memory_mb", "gpu_memory_mb", "step")
SUMS = ("throughput", "memory_mb", "gpu_memory_mb")
OF_TRAINERS = ("throughput", "loss", "step")


def known(tracks: Iterable[ReplicaStatus], name: str) -> list[float]:
    """Returns the latest value of each replica that has reported the metric. NaN stands for a non-finite value."""
    values = (track.ring.last(name) for track in tracks)
    return [value for value in values if value is not None]


def finite_values(tracks: Iterable[ReplicaStatus], name: str) -> list[float]:
    """Returns the latest value of each replica that has reported a finite value."""
    return [value for value in known(tracks, name) if not math.isnan(value)]


def matching_tracks(tracks: Iterable[ReplicaStatus], name: str) -> list[ReplicaStatus]:
    """Returns the replicas that can report a metric."""
    if name in OF_TRAINERS:
        return [track for track in tracks if is_trainer(track.name)]
    return [track for track in tracks if track.gpus or not name.startswith("gpu")]


def add_up(tracks: Sequence[ReplicaStatus], *, is_whole: bool = True) -> dict[str, float | None]:
    """Computes totals of the latest reports.

    The totals are the maximum `step`, the `loss` of the first trainer that reports one, the median `gpu`, and sums.
    Sums are None unless `is_whole`, because an incomplete sum would be misleading.
    """
    found: dict[str, float | None] = {}
    for name in TOTALS:
        asked = matching_tracks(tracks, name)
        values = known(asked, name) if name == "loss" else finite_values(asked, name)
        if not values or (name in SUMS and not is_whole):
            found[name] = None
        elif name == "throughput":
            found[name] = run_throughput({track.name: track.ring.last(name) for track in asked})
        elif name in SUMS:
            found[name] = sum(values)
        elif name == "step":
            found[name] = max(values)
        else:
            found[name] = values[0] if name == "loss" else statistics.median(values)
    return found
