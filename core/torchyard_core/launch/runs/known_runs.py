"""The runs that are known to this desktop or to hosts: listing, finding, details and stopping."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from typing import Any

from torchyard_agent.protocol import metrics_report
from torchyard_agent.protocol.run_states import KEEPER_DIED, ReplicaState, RunState
from torchyard_core.errors import AgentFailed, TorchyardError, UsageError
from torchyard_core.formatting import utc_now
from torchyard_core.identity import desktop_identity
from torchyard_core.launch.agent_interface import AgentLink
from torchyard_core.launch.runs.history import History, RunRecord
from torchyard_core.next_steps import ListRuns

LIST_TIMEOUT_S = 30.0
FREE_WITHIN_S = 15.0


@dataclass(frozen=True)
class KnownRun:
    """A run with the state that its primary reports or, if the primary does not answer, the last known state."""

    run_id: str
    name: str
    state: str
    reason: str
    as_of: str
    primary: str
    hosts: tuple[str, ...]
    is_fresh: bool
    """Whether the primary has answered. If not, `state` is the state at the time `as_of`."""
    submitted: str = ""
    booking: str = ""
    """ID of the booking that holds the run's GPUs."""
    reported_by: str = ""
    """The member that reported the state; empty if the primary did. The run may have another state since then."""
    restarted_from: str = ""
    """ID of the ended run that this run restarts, or of the ended sweep that this sweep continues."""
    is_sweep: bool = False
    """Whether this is the run of a sweep itself, whose only replica is the coordinator."""
    sweep_run: str = ""
    """ID of the run of the sweep, if this run is one of the sweep's trials."""

    @property
    def has_ended(self) -> bool:
        """Whether the run is known to have ended, according to its primary or to this desktop's history."""
        return is_over(self.state) and not self.reported_by

    @property
    def is_stale(self) -> bool:
        """Whether the state may be out of date, because the primary did not answer."""
        return not self.is_fresh and not self.has_ended

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
            "restarted_from": self.restarted_from,
        }


def list_runs(
    links: Mapping[str, AgentLink],
    history: History,
    on_problem: Callable[[TorchyardError], None] = lambda problem: None,
) -> list[KnownRun]:
    """Returns the runs known to the hosts of `links` or to this desktop, newest first.

    `on_problem` is called with the error of each host that did not answer. If other hosts or this desktop know a run of
    that host, the run is listed in its last known state.
    """
    answers: dict[str, Future[Any]] = {name: link.submit("run.list", {}) for name, link in links.items()}
    found: dict[str, KnownRun] = {}
    reported_by_primary: set[str] = set()
    """IDs of runs that their own primary has listed. What other hosts report about these runs later is ignored."""
    unconfirmed: dict[str, str] = {}
    records = {record.run_id: record for record in history.records()}
    for record in records.values():
        found[record.run_id] = _from_record(record)
        if not record.is_confirmed and not is_over(record.state):
            unconfirmed[record.run_id] = record.primary
    for host, future in answers.items():
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
                reported_by_primary.add(line["run_id"])
            elif line["run_id"] in reported_by_primary:
                continue
            if own is not None:  # For a run of this desktop, only reports from the run's own hosts are trusted.
                may_report = host in own.hosts and not is_over(own.state) and known is not None and not known.is_fresh
                if host == own.primary or may_report:
                    found[own.run_id] = _of_own(_from_host(line, host), own, host)
                continue
            if record.get("primary", host) == host or known is None or (not known.is_fresh and not known.state):
                found[line["run_id"]] = _from_host(line, host)
        for run_id, primary in unconfirmed.items():
            if primary == host and run_id not in listed:
                found[run_id] = _never_begun(found[run_id])
    return sorted(found.values(), key=lambda run: run.run_id, reverse=True)


def remember_states(runs: Iterable[KnownRun], history: History) -> None:
    """Updates this desktop's history with the states that primaries have reported, for when they do not answer.

    The program that follows a run writes the rest of its record when the run ends. Raises OSError if a record cannot be
    written.
    """
    records = {record.run_id: record for record in history.records() if record.is_confirmed}
    for run in runs:
        record = records.get(run.run_id)
        if record is None or not run.is_fresh or record.ended:
            continue
        if (run.state, run.reason) != (record.state, record.reason):
            history.update(run.run_id, state=run.state, reason=run.reason, as_of=run.as_of)


def find_run(run_id: str, runs: Sequence[KnownRun]) -> KnownRun:
    """Finds a run by its ID, by the beginning or end of its ID, or by its name.

    If several runs have the name, the newest is returned. `last` means the newest run. A trial of a sweep is found only
    by its whole ID, because its ID begins with the ID of the sweep. `runs` must be sorted from newest to oldest. Raises
    UsageError if no run matches, or if the beginning or end matches several IDs.
    """
    if not run_id.strip():  # An unset shell variable gives an empty ID, which must not select the only run.
        raise UsageError("the run's ID is empty.", code="no_run", hint=ListRuns())
    exact = [run for run in runs if run.run_id == run_id]
    runs = [run for run in runs if not run.sweep_run]
    if run_id == "last" and runs:
        return runs[0]
    close = exact or [run for run in runs if run.run_id.startswith(run_id) or run.run_id.endswith(run_id)]
    close = close or [run for run in runs if run.name == run_id][:1]
    if len(close) == 1:
        return close[0]
    if close:
        more = f" and {len(close) - 5} more" if len(close) > 5 else ""
        message = f"{run_id} matches several runs: {', '.join(run.run_id for run in close[:5])}{more}."
        raise UsageError(message, code="ambiguous", hint="Type more of the ID.")
    raise UsageError(f"no run {run_id} is known.", code="no_run", hint=ListRuns())


def show_run(run: KnownRun, link: AgentLink) -> dict[str, Any]:
    """Returns the details of the run from its primary (`runs show`)."""
    return run_details(run, ask_run(run, link))


def ask_run(run: KnownRun, link: AgentLink) -> dict[str, Any]:
    """Returns the answer of a run's primary to `run.show`, which includes the record that the primary has stored."""
    answer: dict[str, Any] = link.call("run.show", {"run_id": run.run_id})
    return answer


def run_details(run: KnownRun, shown: dict[str, Any]) -> dict[str, Any]:
    """Converts a host's answer to `run.show` to the details of the run."""
    record = shown["record"]
    about = record.get("record", {})
    state, reason = _state_of(shown)
    replicas = _with_planned(shown["replicas"], about.get("replicas", []))
    if state != shown["state"]:  # The keeper exited before it recorded the end of its replicas.
        replicas = [_lost(replica) for replica in replicas]
    return {
        **run.to_json(),
        "name": record.get("name", run.name),
        "state": state,
        "reason": reason,
        "as_of": shown["as_of"],
        "fresh": not shown.get("silent"),
        "alive": shown["alive"],
        "submitted": about.get("submitted", ""),
        "launched_from": about.get("launched_from", ""),
        "restarted_from": about.get("restarted_from", ""),
        "asked": shown.get("asked", []),
        "memberships": shown.get("memberships", []),
        "interruptions": shown.get("interruptions", []),
        "telemetry_problem": shown.get("telemetry_problem", ""),
        "jobs": shown.get("jobs", []),
        "nodes": shown.get("nodes", {}),
        "replicas": replicas,
        "metrics": {name: metrics_report.valid_metrics(metrics) for name, metrics in shown["metrics"].items()},
        "timings": shown["timings"],
    }


def show_record(run: KnownRun, record: RunRecord | None) -> dict[str, Any]:
    """Returns the run's details in the state last known to this desktop. The keys are those of `show_run`."""
    return {
        **run.to_json(),
        "fresh": False,
        "alive": None,
        "launched_from": "",
        "restarted_from": record.restarted_from if record else "",
        "asked": [],
        "memberships": [],
        "interruptions": [],
        "telemetry_problem": "",
        "jobs": [],
        "nodes": {},
        "replicas": record.replicas if record else [],
        "metrics": record.metrics if record else {},
        "timings": record.timings if record else {},
    }


def _with_planned(replicas: list[dict[str, Any]], planned: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the planned replicas in the order of the plan, followed by other replicas that were reported.

    A planned replica without a reported state is pending.
    """
    reported = {replica["name"]: replica for replica in replicas}
    pending = {"state": "pending", "exit_code": None, "restarts": 0, "reason": ""}
    all_pending = {
        replica["name"]: {"name": replica["name"], "host": replica["host"], **pending} for replica in planned
    }
    return list({**all_pending, **reported}.values())


def _lost(replica: dict[str, Any]) -> dict[str, Any]:
    return replica if ReplicaState(replica["state"]).is_terminal else {**replica, "state": ReplicaState.LOST.value}


def stop_run(run: KnownRun, link: AgentLink, *, force: bool = False) -> None:
    """Asks the primary to stop a run. The journal reports its end. Raises AgentRefused if the run has already ended."""
    link.call("run.stop", stop_request(run.run_id, force=force))


def free_prepared(run: KnownRun, links: Iterable[AgentLink]) -> None:
    """Makes hosts release the resources of a run that was stopped before its start. Waits up to FREE_WITHIN_S."""
    answers = [link.submit("run.abort", {"run_id": run.run_id, "by": desktop_identity()}) for link in links]
    wait(answers, FREE_WITHIN_S)


def stop_request(run_id: str, *, force: bool, how: str = "") -> dict[str, Any]:
    """Returns the parameters of `run.stop`. The reason ends with `how`, for example `in the window`."""
    by = desktop_identity()
    reason = f"stopped by {by}{f' {how}' if how else ''}"
    return {"run_id": run_id, "reason": reason, "force": force, "by": by}


def host_of(replica: str, shown: dict[str, Any]) -> str:
    """Returns the host of a replica. Raises UsageError with the names of all replicas if the name is unknown."""
    by_name = {found["name"]: str(found["host"]) for found in shown["replicas"]}
    if replica not in by_name:
        names = ", ".join(sorted(by_name)) or "none yet"
        raise UsageError(f"the run has no replica {replica}.", code="no_replica", hint=f"It has: {names}.")
    return by_name[replica]


def _from_record(record: RunRecord) -> KnownRun:
    known = (record.run_id, record.name, record.state, record.reason, record.as_of, record.primary, record.hosts)
    return KnownRun(
        *known,
        is_fresh=False,
        submitted=record.submitted,
        booking=record.booking,
        restarted_from=record.restarted_from,
        is_sweep=bool(record.sweep),
    )


def _never_begun(run: KnownRun) -> KnownRun:
    """Returns the run in the state stopped: its start was never confirmed, and its primary does not list it."""
    reason = f"{run.primary} has no record of it: it did not begin, or was removed since"
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
        reported_by="" if primary == host else host,
        restarted_from=str(record.get("restarted_from", "")),
        is_sweep=bool(record.get("sweep")),
        sweep_run=str(record.get("sweep_run", "")),
    )


def _of_own(reported: KnownRun, own: RunRecord, host: str) -> KnownRun:
    """Returns a run of this desktop as in its record `own`, with the state, reason and time that a host reported."""
    return replace(
        reported,
        name=own.name,
        primary=own.primary,
        hosts=own.hosts,
        submitted=own.submitted,
        booking=own.booking,
        restarted_from=own.restarted_from,
        is_sweep=bool(own.sweep),
        is_fresh=reported.is_fresh and host == own.primary,
        reported_by="" if host == own.primary else host,
    )


def _state_of(report: dict[str, Any]) -> tuple[str, str]:
    """Returns the state and reason of a run from a host's report.

    If the keeper exited before the run ended, the run has failed.
    """
    if report["alive"] or is_over(report["state"]):
        return report["state"], report["reason"]
    return "failed", report.get("died") or KEEPER_DIED


def is_over(state: str) -> bool:
    """Returns whether a run in this state has ended."""
    return state in ("succeeded", "failed", "stopped")
