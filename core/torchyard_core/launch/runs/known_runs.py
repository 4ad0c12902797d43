"""Runs that were started, by this desktop or another: found, shown, stopped and read."""

from __future__ import annotations

import base64
import codecs
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from typing import Any

from torchyard_agent.protocol import metrics_report
from torchyard_agent.protocol.run_states import ReplicaState, RunState
from torchyard_core.errors import AgentFailed, TorchyardError, UsageError
from torchyard_core.formatting import utc_now
from torchyard_core.identity import who_asks
from torchyard_core.launch.agent_interface import AgentLink, Reattach
from torchyard_core.launch.runs.history import History, RunRecord

LIST_TIMEOUT_S = 30.0
FREE_WITHIN_S = 15.0
LOG_WAIT_S = 10.0
"""Longest that a host keeps a question about new log lines open."""
TAIL_PIECE = 64 * 1024
"""Bytes that are looked through at a time for a log's last lines."""


@dataclass(frozen=True)
class KnownRun:
    """A run as its primary host knows it now; as this desktop last knew it where that host cannot be reached."""

    run_id: str
    name: str
    state: str
    reason: str
    as_of: str
    primary: str
    hosts: tuple[str, ...]
    is_fresh: bool
    """False: its primary was not asked, and `state` is as of `as_of`."""
    submitted: str = ""
    booking: str = ""
    """The booking that holds its GPUs, by its ID."""
    told_by: str = ""
    """The host that told of it where its primary did not: that one may have lost the run while the run goes on."""

    @property
    def has_ended(self) -> bool:
        """Whether it is over for sure: by its primary's account, or as this desktop saw it end."""
        return is_over(self.state) and not self.told_by

    def to_json(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "name": self.name,
            "state": self.state,
            "reason": self.reason,
            "as_of": self.as_of,
            "primary": self.primary,
            "hosts": list(self.hosts),
            "fresh": self.is_fresh,
            "submitted": self.submitted,
        }


def list_runs(
    links: Mapping[str, AgentLink],
    history: History,
    on_problem: Callable[[TorchyardError], None] = lambda problem: None,
) -> list[KnownRun]:
    """Every run that a reachable host or this desktop knows of, newest first.

    `on_problem` is told what keeps a host from telling its own: of its runs, what this desktop last knew is listed.
    """
    asked: dict[str, Future[Any]] = {name: link.submit("run.list", {}) for name, link in links.items()}
    found: dict[str, KnownRun] = {}
    told_by_primary: set[str] = set()
    """By its own keeper or by its daemon alone, where the keeper is silent: no other host knows it better."""
    unconfirmed: dict[str, str] = {}
    records = {record.run_id: record for record in history.records()}
    for record in records.values():
        found[record.run_id] = _from_record(record)
        if not record.is_confirmed and not is_over(record.state):
            unconfirmed[record.run_id] = record.primary
    for host, future in asked.items():
        try:
            lines = future.result(LIST_TIMEOUT_S)
        except TorchyardError as problem:
            on_problem(problem)
            continue
        except TimeoutError:
            on_problem(AgentFailed(host, f"the agent on {host} did not list its runs within {LIST_TIMEOUT_S:.0f} s."))
            continue
        listed = {line["run_id"] for line in lines}
        for line in lines:
            record = line["record"]
            known = found.get(line["run_id"])
            own = records.get(line["run_id"])
            if host == (own.primary if own is not None else record.get("primary", host)):
                told_by_primary.add(line["run_id"])
            elif line["run_id"] in told_by_primary:
                continue
            if own is not None:  # a host that had no part in it cannot speak for it
                if host == own.primary or (host in own.hosts and known is not None and not known.is_fresh):
                    found[own.run_id] = _of_own(_from_host(line, host), own, host)
                continue
            if record.get("primary", host) == host or known is None or (not known.is_fresh and not known.state):
                found[line["run_id"]] = _from_host(line, host)
        for run_id, primary in unconfirmed.items():
            if primary == host and run_id not in listed:
                found[run_id] = _never_begun(found[run_id])
    return sorted(found.values(), key=lambda run: run.run_id, reverse=True)


def find_run(run_id: str, runs: Sequence[KnownRun]) -> KnownRun:
    """The run with this ID, or the only one whose ID or name begins or ends so; `last` is the newest.

    Raises UsageError where there is none, or several.
    """
    if not run_id.strip():  # a shell's variable that was not set must not mean the only run there is
        raise UsageError("the run's ID is empty.", code="no_run", hint="`torchyard runs list` shows those that are.")
    if run_id == "last" and runs:
        return runs[0]
    exact = [run for run in runs if run.run_id == run_id]
    close = exact or [run for run in runs if run.run_id.startswith(run_id) or run.run_id.endswith(run_id)]
    close = close or [run for run in runs if run.name == run_id][:1]
    if len(close) == 1:
        return close[0]
    if close:
        more = f" and {len(close) - 5} more" if len(close) > 5 else ""
        raise UsageError(
            f"{run_id} fits several runs: {', '.join(run.run_id for run in close[:5])}{more}.",
            code="ambiguous",
            hint="Give more of the ID.",
        )
    raise UsageError(f"no run {run_id} is known.", code="no_run", hint="`torchyard runs list` shows those that are.")


def show_run(run: KnownRun, link: AgentLink) -> dict[str, Any]:
    """All that the primary host knows of the run (`runs show`)."""
    return shown_of(run, ask_run(run, link))


def ask_run(run: KnownRun, link: AgentLink) -> dict[str, Any]:
    """The primary host's answer to `run.show`, the record that was left there included."""
    answer: dict[str, Any] = link.call("run.show", {"run_id": run.run_id})
    return answer


def shown_of(run: KnownRun, shown: dict[str, Any]) -> dict[str, Any]:
    """What `runs show` tells, from the host's answer."""
    record = shown["record"]
    about = record.get("record", {})
    state, reason = _state_of(shown)
    replicas = _with_planned(shown["replicas"], about.get("replicas", []))
    if state != shown["state"]:  # the keeper did not live to say what became of them
        replicas = [_lost(replica) for replica in replicas]
    return {
        "run_id": run.run_id,
        "name": record.get("name", run.name),
        "state": state,
        "reason": reason,
        "as_of": shown["as_of"],
        "fresh": not shown.get("silent"),
        "alive": shown["alive"],
        "primary": run.primary,
        "hosts": list(run.hosts),
        "submitted": about.get("submitted", ""),
        "launched_from": about.get("launched_from", ""),
        "restarted_from": about.get("restarted_from", ""),
        "asked": shown.get("asked", []),
        "replicas": replicas,
        "metrics": {name: metrics_report.kept(metrics) for name, metrics in shown["metrics"].items()},
        "timings": shown["timings"],
    }


def show_record(run: KnownRun, record: RunRecord | None) -> dict[str, Any]:
    """What this desktop last knew of a run whose primary host cannot be asked: the keys of `show_run`."""
    return {
        "run_id": run.run_id,
        "name": run.name,
        "state": run.state,
        "reason": run.reason,
        "as_of": run.as_of,
        "fresh": False,
        "alive": None,
        "primary": run.primary,
        "hosts": list(run.hosts),
        "submitted": run.submitted,
        "launched_from": "",
        "restarted_from": record.restarted_from if record else "",
        "asked": [],
        "replicas": record.replicas if record else [],
        "metrics": record.metrics if record else {},
        "timings": record.timings if record else {},
    }


def _with_planned(replicas: list[dict[str, Any]], planned: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The replicas that were heard of, in the plan's order, and those of the plan that were not yet."""
    heard = {replica["name"]: replica for replica in replicas}
    waiting = {"state": "pending", "exit_code": None, "restarts": 0, "reason": ""}
    first = {share["name"]: {"name": share["name"], "host": share["host"], **waiting} for share in planned}
    return list({**first, **heard}.values())


def _lost(replica: dict[str, Any]) -> dict[str, Any]:
    return replica if ReplicaState(replica["state"]).is_terminal else {**replica, "state": ReplicaState.LOST.value}


def stop_run(run: KnownRun, link: AgentLink, *, force: bool = False) -> None:
    """Asks the run to stop, in the name of who sits here. It is over when its journal says so.

    Raises AgentRefused where it is over already.
    """
    link.call("run.stop", stop_request(run.run_id, force=force))


def free_prepared(run: KnownRun, links: Iterable[AgentLink]) -> None:
    """Has hosts give up what they hold for a run that was stopped before it had begun. Its primary does not know them
    yet; where the run has begun, this changes nothing."""
    asked = [link.submit("run.abort", {"run_id": run.run_id, "by": who_asks()}) for link in links]
    wait(asked, FREE_WITHIN_S)


def stop_request(run_id: str, *, force: bool, how: str = "") -> dict[str, Any]:
    """The params of `run.stop`. `how` it was asked for is told in the run's reason."""
    by = who_asks()
    reason = f"stopped by {by}{f' {how}' if how else ''}"
    return {"run_id": run_id, "reason": reason, "force": force, "by": by}


def host_of(replica: str, shown: dict[str, Any]) -> str:
    """The host of a replica. Raises UsageError naming those that there are."""
    by_name = {found["name"]: str(found["host"]) for found in shown["replicas"]}
    if replica not in by_name:
        there = ", ".join(sorted(by_name)) or "none yet"
        raise UsageError(f"the run has no replica {replica}.", code="no_replica", hint=f"It has: {there}.")
    return by_name[replica]


class LogReader:
    """One rank's log as text lines, from the start to its end or as it grows."""

    def __init__(self, run_id: str, replica: str, local_rank: int, link: AgentLink, reattach: Reattach):
        self.replica = replica
        self.local_rank = local_rank
        self._run_id = run_id
        self._link = link
        self._reattach = reattach
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._part = ""
        self.ended = False

    def skip_to_last(self, count: int) -> None:
        """Begins with the last `count` whole lines that are there now."""
        self._offset = 0
        size = end = int(self._ask(0.0, limit=0)["size"])
        while end and count:
            self._offset = max(0, end - TAIL_PIECE)
            data = base64.b64decode(self._ask(0.0, limit=end - self._offset)["data"])
            end = self._offset
            while (newline := data.rfind(b"\n")) >= 0:
                data = data[:newline]
                begin = end + newline + 1
                count -= begin < size  # the newline that closes the last line begins none
                if not count:
                    self._offset = begin
                    return
        self._offset = end

    def lines(self, *, wait: bool) -> Iterator[str]:
        """Whole lines that are new. With `wait`, the host holds the answer until there are some, for some seconds."""
        while not self.ended:
            answer = self._ask(LOG_WAIT_S if wait else 0.0)
            data = base64.b64decode(answer["data"])
            self._offset = int(answer["next"])
            self.ended = bool(answer["ended"])
            *whole, self._part = (self._part + self._decoder.decode(data, self.ended)).split("\n")
            yield from whole
            if self.ended and self._part:
                yield self._part
            if wait or self._offset >= int(answer["size"]):
                return

    def _ask(self, wait_s: float, limit: int | None = None) -> dict[str, Any]:
        params = {
            "run_id": self._run_id,
            "replica": self.replica,
            "local_rank": self.local_rank,
            "offset": self._offset,
            "wait_s": wait_s,
        }
        if limit is not None:
            params["limit"] = limit
        if not self._link.is_open:
            self._link = self._reattach(self._link.host)
        answer: dict[str, Any] = self._link.call("logs.read", params, wait_s + 60.0)
        return answer


def log_readers(
    shown: dict[str, Any], replica: str | None, links: Mapping[str, AgentLink], reattach: Reattach
) -> list[LogReader]:
    """A reader for each log of the run, or of one replica. Hosts that are not in `links` are left out."""
    wanted = {found["name"]: str(found["host"]) for found in shown["replicas"] if replica in (None, found["name"])}
    readers = []
    for host in dict.fromkeys(wanted.values()):
        if host not in links:
            continue
        for log in links[host].call("logs.list", {"run_id": shown["run_id"]}):
            name, _, rank = str(log["name"]).removesuffix(".log").partition(".")
            if wanted.get(name) == host:
                readers.append(LogReader(shown["run_id"], name, int(rank or 0), links[host], reattach))
    order = list(wanted)
    return sorted(readers, key=lambda reader: (order.index(reader.replica), reader.local_rank))


def _from_record(record: RunRecord) -> KnownRun:
    return KnownRun(
        record.run_id,
        record.name,
        record.state,
        record.reason,
        record.as_of,
        record.primary,
        record.hosts,
        is_fresh=False,
        submitted=record.submitted,
        booking=record.booking,
    )


def _never_begun(run: KnownRun) -> KnownRun:
    """A run whose launch was never confirmed, and which its primary does not list."""
    reason = f"there is nothing of it on {run.primary}: it did not begin, or was removed since"
    return replace(run, state=RunState.STOPPED.value, reason=reason, as_of=utc_now(), is_fresh=True)


def _from_host(line: dict[str, Any], host: str) -> KnownRun:
    record = line["record"]
    primary = str(record.get("primary", host))
    return KnownRun(
        line["run_id"],
        line["name"],
        *_state_of(line),
        line["as_of"],
        primary,
        tuple(record.get("hosts", [host])),
        is_fresh=primary == host and not line.get("silent"),
        submitted=str(record.get("submitted", "")),
        booking=str(record.get("booking", "")),
        told_by="" if primary == host else host,
    )


def _of_own(told: KnownRun, own: RunRecord, host: str) -> KnownRun:
    """A run that this desktop launched, with the state that one of its hosts tells and no other word of that host."""
    return replace(
        told,
        name=own.name,
        primary=own.primary,
        hosts=own.hosts,
        submitted=own.submitted,
        booking=own.booking,
        is_fresh=told.is_fresh and host == own.primary,
        told_by="" if host == own.primary else host,
    )


def _state_of(told: dict[str, Any]) -> tuple[str, str]:
    """(state, reason) of a run by its host's account; without its keeper, a run that has no end has failed."""
    if told["alive"] or is_over(told["state"]):
        return told["state"], told["reason"]
    return "failed", told.get("died") or "its keeper died"


def is_over(state: str) -> bool:
    """Whether a run in this state has ended."""
    return state in ("succeeded", "failed", "stopped")
