"""Follows a run through its primary's journal until the run ends, across lost connections."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any
from weakref import WeakKeyDictionary

from torchyard_agent.protocol import journal_replay, metrics_report
from torchyard_agent.protocol.run_states import KEEPER_DIED
from torchyard_core.background_thread import in_background
from torchyard_core.errors import HostError, RunFailed
from torchyard_core.formatting import utc_now, utc_timestamp
from torchyard_core.launch.agent_interface import AgentLink, Reattach
from torchyard_core.next_steps import ShowLogs

RETRY_S = (1.0, 2.0, 4.0, 8.0, 15.0)
"""Delays in seconds before the attempts to reconnect. The last delay is used for all further attempts."""
POLL_S = 0.2
"""Maximum time in seconds to wait for an event. It is short, so that the program soon reacts to Ctrl-C."""

Event = dict[str, Any]


class Follower:
    """Yields the events of a run as they happen, and updates the `view` of the run with each event.

    A lost connection is reported as a `connection` event with the time of the last known journal entry. After the
    connection is restored, the journal is replayed from that entry. A follower does not close its links. A caller that
    does not read all events must call `close`.
    """

    def __init__(
        self,
        run_id: str,
        primary: AgentLink,
        reattach: Reattach,
        others: Sequence[AgentLink] = (),
        on_sample: Callable[[str, dict[str, Any]], None] | None = None,
        *,
        away: Sequence[str] = (),
        with_telemetry: bool = True,
    ):
        """Creates a follower.

        Args:
            run_id: The ID of the run.
            primary: The link to the primary.
            reattach: Opens a new link to a host.
            others: The links to the other hosts of the run.
            on_sample: Called with (host, sample) for each telemetry sample, on the threads of the links.
            away: Other hosts of the run that do not answer at present. The follower tries to connect to them.
            with_telemetry: Whether telemetry is requested from the hosts.
        """
        self.view = journal_replay.new_view(run_id)
        self._run_id = run_id
        self._link = primary
        self._reattach = reattach
        self._others = others
        self._on_sample = on_sample
        self._news: queue.Queue[tuple[str, Any]] = queue.Queue()
        self._steps: dict[str, float] = {}
        self._telemetry_problem = ""
        self._stops: list[Callable[[], None]] = []
        self._with_telemetry = with_telemetry
        self._away: dict[str, _Retry] = {host: _Retry(host) for host in away}
        """The attempts to reconnect to hosts other than the primary, by host."""
        self._retry: _Retry | None = None

    def events(self, duration: float | None = None) -> Iterator[Event | None]:
        """Yields journal events and live reports in order, and None whenever no event has arrived for POLL_S.

        Stops after the event `run_ended`, or after `duration` seconds. Raises RunFailed if the primary's keeper exited
        before the end of the run, and HostError or AgentRefused if the first subscription fails.
        """
        deadline = None if duration is None else time.monotonic() + duration
        try:
            self._watch(self._link)
            for link in self._others:
                self._watch_other(link)
            self._subscribe()
            while not self.view["ended"] and (deadline is None or time.monotonic() < deadline):
                yield from self._bring_back()
                try:
                    kind, payload = self._news.get(timeout=POLL_S)
                except queue.Empty:
                    yield None
                    continue
                if kind == "wake":
                    yield None
                elif kind == "telemetry":
                    yield from self._reports(payload)
                elif kind == "lost":
                    if payload is self._link and self._retry is None:
                        self._retry = _Retry(payload.host)
                        yield self._lost(payload.host)
                elif kind == "other lost":
                    self._away.setdefault(payload, _Retry(payload))
                    yield self._lost(payload)
                else:
                    yield from self._take(payload)
        finally:
            self.close()

    def wake(self) -> None:
        """Makes `events` yield None without a delay. May be called on any thread."""
        self._news.put(("wake", None))

    def close(self) -> None:
        """Removes the follower's listeners from the links. Unsubscribes from telemetry that no other listener uses."""
        for stop in self._stops:
            stop()
        self._stops.clear()

    def _watch(self, link: AgentLink) -> None:
        if not self._with_telemetry:
            return
        host = link.host

        def take(sample: dict[str, Any]) -> None:
            if self._on_sample is not None:
                self._on_sample(host, sample)
            self._news.put(("telemetry", sample))

        self._stops.append(watch_telemetry(link, take))

    def _watch_other(self, link: AgentLink) -> None:
        self._watch(link)
        host = link.host
        link.on_close(lambda: self._news.put(("other lost", host)))

    def _subscribe(self) -> None:
        link = self._link

        def take(message: dict[str, Any]) -> None:
            if message["run_id"] == self._run_id:
                self._news.put(("state", message))

        self._stops.append(link.listen("state", take))
        link.on_close(lambda: self._news.put(("lost", link)))
        link.call("state.subscribe", {"run_id": self._run_id, "seen": self.view["seen"]})

    def _take(self, message: dict[str, Any]) -> Iterator[Event]:
        for entry in message["entries"]:
            if self._is_old(entry):
                continue
            journal_replay.apply(self.view, entry)
            if entry["event"] == "report":
                self._steps[entry["replica"]] = float(entry.get("step") or 0)
            elif entry["event"] == "replica_state" and entry["state"] == "starting":
                self._steps.pop(entry["replica"], None)  # The replica restarts from the step of its checkpoint.
            yield entry
        # Older daemons send `alive` as False with each part of a long journal. Only the last message has no entries.
        if not message["alive"] and not message["entries"] and not self.view["ended"]:
            why = message.get("died") or KEEPER_DIED
            raise RunFailed(
                f"run {self._run_id} is over: {why}."
                if why != KEEPER_DIED
                else f"the keeper of run {self._run_id} on {self._link.host} is gone, and its replicas with it.",
                code="keeper_died",
                hint=(ShowLogs(self._run_id), "keeper.log beside it may tell why."),
            )

    def _is_old(self, entry: Event) -> bool:
        """Returns whether this follower has already processed the entry.

        Entries can arrive twice if an earlier follower of the run has subscribed over the same link.
        """
        seen = self.view["seen"]
        return seen is not None and entry["epoch"] == seen[0] and entry["seq"] <= seen[1]

    def _reports(self, sample: dict[str, Any]) -> Iterator[Event]:
        """Yields a report for each replica of this run whose step has advanced since the last sample.

        Also yields a `telemetry` event when the live telemetry of a run on a cluster becomes unavailable or is
        available again.
        """
        problem = sample.get("missing", {}).get(self._run_id, "")
        if problem != self._telemetry_problem:
            was_missing, self._telemetry_problem = bool(self._telemetry_problem), problem
            if not (was_missing and problem):  # A change of the reason is not reported.
                state = {"state": "missing", "reason": problem} if problem else {"state": "back"}
                yield {"event": "telemetry", "time": utc_timestamp(sample["time"]), "host": self._link.host, **state}
        for key, metrics in sample.get("reports", {}).items():
            run_id, _, replica = key.partition("/")
            step = metrics.get("step")
            if run_id != self._run_id or step is None or step <= self._steps.get(replica, 0):
                continue
            self._steps[replica] = step
            metrics = metrics_report.valid_metrics(metrics)
            self.view["metrics"].setdefault(replica, {}).update(metrics)
            custom = {
                name: value for name, value in metrics_report.custom_metrics(metrics).items() if value is not None
            }
            not_finite = metrics_report.not_finite(metrics)
            yield {
                "event": "report",
                "time": utc_timestamp(sample["time"]),
                "replica": replica,
                "step": step,
                "loss": metrics.get("loss"),
                "throughput": metrics.get("throughput"),
                **({"custom": custom} if custom else {}),
                **({"not_finite": not_finite} if not_finite else {}),
            }

    def _bring_back(self) -> Iterator[Event]:
        """Yields an event for each host that answers again. Connections are opened on other threads."""
        for host, retry in list(self._away.items()):
            link = retry.link(self._reattach)
            if link is not None:
                del self._away[host]
                self._watch_other(link)
                yield _back(host)
        link = self._retry.link(self._reattach) if self._retry is not None else None
        if link is None:
            return
        self._link = link
        try:
            self._watch(link)
            self._subscribe()
        except HostError:
            return
        self._retry = None
        yield _back(link.host)

    def _lost(self, host: str) -> Event:
        return {"event": "connection", "time": utc_now(), "host": host, "state": "lost", "as_of": self.view["as_of"]}


def _back(host: str) -> Event:
    return {"event": "connection", "time": utc_now(), "host": host, "state": "back"}


class _Retry:
    """Repeated attempts to connect to a host, with increasing delays."""

    def __init__(self, host: str):
        self._host = host
        self._tries = 0
        self._next = time.monotonic() + RETRY_S[0]
        self._attempt: Future[AgentLink] | None = None

    def link(self, reattach: Reattach) -> AgentLink | None:
        """Returns the new link once it is open, otherwise None. Never blocks. Raises errors other than HostError."""
        if self._attempt is None:
            if time.monotonic() >= self._next:
                self._attempt = in_background(reattach, self._host)
            return None
        if not self._attempt.done():
            return None
        attempt, self._attempt = self._attempt, None
        self._tries += 1
        self._next = time.monotonic() + RETRY_S[min(self._tries, len(RETRY_S) - 1)]
        try:
            return attempt.result()
        except HostError:
            return None


INTERVAL_S = 1.0

_watchers: WeakKeyDictionary[AgentLink, int] = WeakKeyDictionary()
"""The number of telemetry listeners per link. They share one subscription, because a daemon has one per connection."""
_lock = threading.Lock()


def watch_telemetry(link: AgentLink, listener: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
    """Registers `listener`. It is called with one telemetry sample per second, on the link's thread.

    Returns a function that removes the listener.
    """
    unlisten = link.listen("telemetry", listener)
    with _lock:
        _watchers[link] = _watchers.get(link, 0) + 1
    link.submit("telemetry.subscribe", {"interval_s": INTERVAL_S})
    stopped = threading.Event()

    def stop() -> None:
        if stopped.is_set():
            return
        stopped.set()
        unlisten()
        with _lock:
            _watchers[link] -= 1
            is_last = not _watchers[link]
        if is_last and link.is_open:
            link.submit("telemetry.unsubscribe", {})

    return stop
