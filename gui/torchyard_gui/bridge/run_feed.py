"""Keeps the state of one run up to date. A background thread follows the run, and the window processes the thread's
messages in batches.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QObject, QTimer, Signal

from torchyard_core.errors import AgentRefused, HostError, TorchyardError
from torchyard_core.formatting import clock, format_byte_rate, percent, utc_now
from torchyard_core.launch.runs.follower import RETRY_S, Follower
from torchyard_core.launch.runs.history import History, RunRecord, fields_at_end
from torchyard_core.launch.runs.known_runs import KnownRun, ask_run, run_details
from torchyard_core.next_steps import AddHost
from torchyard_core.replica_metrics import LatestSamples
from torchyard_core.throughput import is_trainer
from torchyard_core.topology.host_facts import HostFacts
from torchyard_gui.bridge.background_jobs import Job, Jobs
from torchyard_gui.bridge.metric_labels import step_parts
from torchyard_gui.bridge.run_state import RunState
from torchyard_gui.bridge.run_state_types import RunChanges, short_cause, when

if TYPE_CHECKING:
    from torchyard_core.advisor.run_comparison import PredictedStep, StepTimes
    from torchyard_core.fleet.daemon_client import DaemonClient
    from torchyard_core.fleet.fleet import Fleet
    from torchyard_gui.canvas.live_state import ReplicaLiveState, Tint

EVENTS_EVERY_MS = 100
"""Milliseconds during which events are collected before they are processed together."""
SAMPLES_EVERY_MS = 400
"""Interval in milliseconds between reads of samples. A host sends one sample per second, so no sample is lost."""
SAMPLES_REPORTED_EVERY_S = 0.95
"""Minimum interval in seconds between two emissions of `changed` for samples. Hosts take a sample every second."""
SLICE_S = 0.008
"""A long journal is read in slices of this many seconds, so that the window stays responsive."""
LOOK_EVERY_MS = 2000
"""Interval in milliseconds between checks for silent hosts."""
WAS_BUSY_S = 2 * LOOK_EVERY_MS / 1000
"""If more than this many seconds pass between two checks for silent hosts, the window itself must have been blocked.

No host then counts as silent, because the window has not read the hosts' messages yet.
"""


class Inbox:
    """A queue that carries messages to the window from the thread that follows a run.

    It keeps all events in order, but only the latest sample of each host.
    """

    def __init__(self, wake: Callable[[bool], None]):
        """Creates an empty inbox.

        Args:
            wake: Called on the posting thread when messages are waiting, with True for events and False for samples.
                It is not called again until the receiver begins to take the messages.
        """
        self.news: deque[tuple[str, Any]] = deque()
        self.samples = LatestSamples()
        self._wake = wake
        self._lock = threading.Lock()
        self._is_notified = False

    def post(self, kind: str, payload: Any) -> None:
        self.news.append((kind, payload))
        with self._lock:
            was_notified, self._is_notified = self._is_notified, True
        if not was_notified:
            self._wake(True)

    def post_sample(self, host: str, sample: dict[str, Any]) -> None:
        if self.samples.put(host, sample):
            self._wake(False)

    def listen_again(self) -> None:
        """Allows `wake` to be called for the next event."""
        with self._lock:
            self._is_notified = False


class RunFeed(QObject):
    """Keeps a RunState up to date until it is closed. The signal `changed` carries RunChanges."""

    changed = Signal(object)
    failed = Signal(object)
    """Emitted with a TorchyardError when the run cannot be followed. `retry` may follow the run again."""

    def __init__(
        self,
        run: KnownRun,
        fleet: Callable[[], Fleet],
        history: History,
        jobs: Jobs,
        known: Callable[[], Sequence[HostFacts]],
        parent: QObject | None = None,
        predict: Callable[[RunRecord], PredictedStep | None] | None = None,
        cluster: str = "",
        cpus_of: Callable[[str], int | None] = lambda node: None,
    ):
        """Opens the feed.

        Args:
            predict: Predicts a step of the run. Called on a background thread.
            cluster: The cluster that chooses the nodes of the run; "" if it is on hosts of the fleet file.
            cpus_of: Returns the number of cores of a node of the cluster, or None if it is unknown.
        """
        super().__init__(parent)
        self.run = run
        self.picture = RunState(run.run_id, run.name, run.primary, run.hosts, cluster, cpus_of)
        self.error: TorchyardError | None = None
        """The reason why the run cannot be followed, temporarily or permanently, or None."""
        self.was_heard = False
        """Whether the run's primary host has answered since the feed was opened."""
        self._fleet = fleet
        self._jobs = jobs
        self._known = known
        self._history = history
        self._inbox = Inbox(self._wake)
        self._changes = RunChanges()
        self._news_timer = self._timer(EVENTS_EVERY_MS, self._take_news)
        self._sample_timer = self._timer(SAMPLES_EVERY_MS, self._take_samples)
        self._silence_timer = self._timer(LOOK_EVERY_MS, self._look_for_silence, once=False)
        record = history.load(run.run_id)
        self._take_history(record)
        self._closed = False
        self._samples_reported = 0.0
        self._looked_at = 0.0
        self._predicted: PredictedStep | None = None
        self._begin()
        if record is not None and predict is not None:
            jobs.run(lambda: predict(record), self._take_prediction, owner=self)

    @property
    def is_live(self) -> bool:
        """Whether more events are expected."""
        return not self._closed and not self._job.is_finished

    def live_state_of(self, replica: str) -> ReplicaLiveState:
        from torchyard_gui.canvas.live_state import ReplicaLiveState

        track = self.picture.tracks[replica]
        stale = self.picture.stale_since(track)
        slow = self.picture.slow.get(replica)
        tint: Tint | None = None
        cause = ""
        if track.state == "failed":
            tint, cause = "fail", short_cause(self.picture.cause_of(track), track.exit_code)
        elif slow is not None and stale is None:
            tint, cause = "wait", f"{slow:.1f}×"
        return ReplicaLiveState(
            state="unknown" if stale is not None else track.state,
            meter=None if stale is not None else self.picture.meter(track),
            metric=self.metric_of(replica),
            tint=tint,
            cause=cause,
            stale_since="" if stale is None else clock(stale),
            restarts=track.restarts,
            details=", ".join(f"{name} {value}" for name, value in step_parts(track)),
        )

    def predicted_step(self, trainer: str) -> StepTimes | None:
        """Returns the predicted parts of a trainer's step.

        Returns None if the run was not predicted, or if its trainers are no longer those of the prediction.
        """
        tracks = self.picture.tracks
        if self._predicted is None or trainer not in self._predicted.compute_s:
            return None
        now = {name for name, track in tracks.items() if is_trainer(name) and track.state not in ("failed", "lost")}
        if now != self._predicted.compute_s.keys():
            return None
        return self._predicted.of(self._predicted.compute_s[trainer])

    @property
    def live_states(self) -> dict[str, ReplicaLiveState]:
        return {name: self.live_state_of(name) for name in self.picture.tracks}

    def metric_of(self, replica: str) -> str:
        """Returns the text of the metric that a replica's chip shows, or "" if the replica is not running.

        The metric is the first of these whose value is known: GPU use, throughput, traffic, CPU use.
        """
        track = self.picture.tracks[replica]
        if track.state not in ("running", "stopping"):
            return ""
        use, rate, cpu = (track.ring.last(name) for name in ("gpu", "throughput", "cpu"))
        if track.gpus and use is not None:
            return percent(use)
        if rate is not None:
            return f"{rate:,.0f}/s"
        carried = track.ring.last("bytes_s")
        if carried is not None:
            return format_byte_rate(carried)
        return f"CPU {percent(cpu)}" if cpu is not None else ""

    def retry(self, run: KnownRun) -> None:
        """Updates a run that is not followed, and follows it again if its primary's host is likely to answer.

        Args:
            run: The run's entry in the latest list of runs.
        """
        picture, error = self.picture, self.error
        if self._closed or self.is_live or picture.is_followed or picture.is_over or error is None:
            return
        if run.is_fresh or (run.reported_by and not self.was_heard):
            picture.take_shown(run.state, run.reason, run.as_of, [], run.reported_by)
            self._changes.run = True
        if self._fleet().knows(run.primary) and (run.is_fresh or error.code == "no_host"):
            self._begin()
        self._emit_changes()

    def close(self) -> None:
        """Stops following the run. The run itself continues."""
        self._closed = True
        self._job.cancel()
        for timer in (self._news_timer, self._sample_timer, self._silence_timer):
            timer.stop()

    # The following method runs on the background thread.

    def _wake(self, is_news: bool) -> None:
        self._jobs.tell(self._woken, is_news)

    # The following methods run on the GUI thread.

    def _begin(self) -> None:
        self._job = Job()
        run, fleet, inbox, job = self.run, self._fleet, self._inbox, self._job
        self.destroyed.connect(job.cancel)
        has_nodes = bool(self.picture.cluster)
        self._jobs.run(
            lambda: follow(run, fleet(), inbox, job, has_nodes=has_nodes), self._done, self._broke, owner=self, job=job
        )

    def _timer(self, interval: int, slot: Callable[[], None], *, once: bool = True) -> QTimer:
        timer = QTimer(self, interval=interval, singleShot=once)
        timer.timeout.connect(slot)
        return timer

    def _woken(self, is_news: bool) -> None:
        if self._closed:
            return
        timer = self._news_timer if is_news else self._sample_timer
        if not timer.isActive():
            timer.start()

    def _take_news(self) -> None:
        self._inbox.listen_again()
        deadline = time.monotonic() + SLICE_S
        news = self._inbox.news
        while news and time.monotonic() < deadline:
            self._take(*news.popleft())
        if news:
            self._news_timer.start(0)
        else:
            self._news_timer.setInterval(EVENTS_EVERY_MS)
        self._emit_changes()

    def _take(self, kind: str, payload: Any) -> None:
        picture, changes = self.picture, self._changes
        if kind == "event":
            picture.take_event(payload, changes)
            if payload["event"] == "run_ended":
                self._remember(payload)
        elif kind == "record":
            self.error, self.was_heard = None, True
            picture.take_record(payload, self._known())
            changes.shown = True
        elif kind == "shown":
            replicas = payload["replicas"]
            picture.mark_followed(changes)
            picture.forget_noted()
            picture.take_shown(payload["state"], payload["reason"], payload["as_of"], replicas)
            picture.mark_found(picture.primary, changes)
            changes.run = changes.shown = True
            if payload["alive"]:
                self._looked_at = time.monotonic()
                self._silence_timer.start()
        elif kind == "nodes":
            picture.take_nodes(payload, changes)
        elif kind == "away":
            self.error = payload
            picture.mark_followed(changes)
            picture.mark_lost(payload.host, changes)
            changes.run = True
        elif kind == "broke":
            self._end(payload)

    def _take_samples(self) -> None:
        now = time.monotonic()
        samples = self._inbox.samples.take()
        for host, sample in samples.items():
            self.picture.take_sample(host, sample, now, self._changes)
        if samples:
            self.picture.sum_up()
        if now - self._samples_reported >= SAMPLES_REPORTED_EVERY_S or self._job.is_finished:
            self._samples_reported = now
            self._emit_changes()
        elif not self._sample_timer.isActive():
            self._sample_timer.start()

    def _look_for_silence(self) -> None:
        now = time.monotonic()
        was_busy, self._looked_at = now - self._looked_at > WAS_BUSY_S, now
        if not was_busy:
            self.picture.look_for_silence(now, time.time(), self._changes)
        self._emit_changes()

    def _emit_changes(self) -> None:
        if self._changes and not self._closed:
            changes, self._changes = self._changes, RunChanges()
            self.changed.emit(changes)

    def _take_history(self, record: RunRecord | None) -> None:
        """Applies this computer's record of the run, so that the run is drawn even while no host answers."""
        picture = self.picture
        if record is not None:
            about = {
                "topology": record.topology,
                "topology_file": record.topology_file,
                "replicas": record.planned,
                "submitted": record.submitted,
            }
            picture.take_record(about, self._known())
            picture.take_shown(record.state, record.reason, record.as_of, record.replicas)
            if picture.is_over:
                picture.take_noted(record.metrics, when(record.ended))
        else:
            picture.take_shown(self.run.state, self.run.reason, self.run.as_of, [], self.run.reported_by)
            picture.submitted = when(self.run.submitted)

    def _take_prediction(self, predicted: PredictedStep | None) -> None:
        self._predicted = predicted
        self._changes.run |= predicted is not None
        self._emit_changes()

    def _remember(self, ended: dict[str, Any]) -> None:
        run_id, history = self.run.run_id, self._history

        def write() -> None:
            record = history.load(run_id)
            if record is not None and not record.ended:
                history.update(run_id, **fields_at_end(ended))

        self._jobs.run(write)

    def _done(self, result: None) -> None:
        self._take_samples()
        self._take_news()
        self._silence_timer.stop()

    def _broke(self, error: TorchyardError) -> None:
        self._inbox.post("broke", error)  # Posted to the inbox, so that earlier events are processed first.
        self._done(None)

    def _end(self, error: TorchyardError) -> None:
        self._silence_timer.stop()
        self.error = error
        picture = self.picture
        if not picture.is_over:
            if error.code == "keeper_died":
                picture.state, picture.reason = "failed", error.message
                self._changes.run = True
            else:  # Other errors mean only that the run can no longer be followed.
                picture.mark_unfollowed(self._changes)
        self.failed.emit(error)


def follow(run: KnownRun, fleet: Fleet, inbox: Inbox, job: Job, *, has_nodes: bool = False) -> None:
    """Follows a run until its end. While the primary's host does not answer, retries repeatedly. Called on a separate
    thread.

    Args:
        has_nodes: Whether a scheduler chooses the nodes of the run. If so, their names are posted after each start.

    Raises:
        RunFailed: The keeper of the run has died.
        AgentRefused: The host does not know the run.
        TorchyardError: With the code `no_host` if the primary's host is not in the fleet.
    """
    tries = 0
    while True:
        job.checkpoint()
        try:
            primary, raw = _ask(run, fleet)
            _follow(run, fleet, primary, raw, inbox, job, has_nodes=has_nodes)
            return
        except HostError as error:
            inbox.post("away", error)
        job.wait(RETRY_S[min(tries, len(RETRY_S) - 1)])
        tries += 1


def _ask(run: KnownRun, fleet: Fleet) -> tuple[DaemonClient, dict[str, Any]]:
    if not fleet.knows(run.primary):
        raise TorchyardError(
            f"the primary host {run.primary} is not in the fleet.",
            code="no_host",
            hint=("Add it by that name.", AddHost(run.primary)),
        )
    link = fleet.link(run.primary, install=False)
    return link, ask_run(run, link)


def _follow(
    run: KnownRun,
    fleet: Fleet,
    primary: DaemonClient,
    raw: dict[str, Any],
    inbox: Inbox,
    job: Job,
    *,
    has_nodes: bool,
) -> None:
    """Follows a run over a link to its primary's host. If the link is lost, the follower itself opens a new link."""

    def reattach(host: str) -> DaemonClient:
        job.checkpoint()
        return fleet.link(host, install=False)

    alive = bool(raw["alive"])
    known_since = when(raw["as_of"]) or 0.0
    inbox.post("record", raw["record"].get("record", {}))
    inbox.post("shown", run_details(run, raw))
    if has_nodes:
        _post_nodes(run, fleet, inbox)
    others, away = [], []
    if alive:
        for host, link in fleet.links([host for host in run.hosts if host != run.primary], install=False).items():
            if isinstance(link, HostError):
                away.append(host)
                inbox.post("event", {"event": "connection", "time": utc_now(), "host": host, "state": "lost"})
            else:
                others.append(link)
    follower = Follower(run.run_id, primary, reattach, others, inbox.post_sample, away=away, with_telemetry=alive)
    job.on_cancel(follower.wake)
    events = follower.events()
    try:
        for event in events:
            job.checkpoint()
            # A report without an epoch repeats the values of a sample, which `post_sample` has already received.
            if event is not None and (event["event"] != "report" or "epoch" in event):
                inbox.post("event", event)
            begins = event is not None and event["event"] == "run_state" and event["state"] != "waiting"
            # The nodes of starts before `known_since` were already posted, before the journal was replayed.
            if event is not None and has_nodes and begins and (when(event["time"]) or 0.0) >= known_since:
                _post_nodes(run, fleet, inbox)
    finally:
        follower.close()


def _post_nodes(run: KnownRun, fleet: Fleet, inbox: Inbox) -> None:
    """Posts the node of each slot at the current or last start, if the cluster answers."""
    with contextlib.suppress(AgentRefused):
        inbox.post("nodes", fleet.link(run.primary, install=False).call("run.nodes", {"run_id": run.run_id}))
