"""Runs that this desktop or hosts know: listing, lookup, details and stopping."""

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
    """A run in its current state at its primary, or in its last known state if the primary does not answer."""

    run_id: str
    name: str
    state: str
    reason: str
    as_of: str
    primary: str
    hosts: tuple[str, ...]
    is_fresh: bool
    """Whether the primary answered. If it did not, `state` was last known at `as_of`."""
    submitted: str = ""
    booking: str = ""
    """ID of the booking that holds the run's GPUs."""
    reported_by: str = ""
    """The member that reported the state in place of the primary. The run may have changed since."""
    restarted_from: str = ""
    """ID of the ended run that was restarted as this one, or of the ended sweep that this one continues."""
    is_sweep: bool = False
    """Whether the run is the coordinator of a sweep."""
    sweep_run: str = ""
    """ID of the run of the sweep, if this run is one of the sweep's trials."""

    @property
    def has_ended(self) -> bool:
        """Whether the run is known to have ended, either from its primary or from this desktop's history."""
        return is_over(self.state) and not self.reported_by

    @property
    def is_stale(self) -> bool:
        """Whether the run may be in another state now, because its primary did not answer."""
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
    """Returns the runs known to the reachable hosts or to this desktop, newest first.

    `on_problem` is called with the error of a host that did not answer. Runs of that host that are known elsewhere are
    listed in their last known state.
    """
    answers: dict[str, Future[Any]] = {name: link.submit("run.list", {}) for name, link in links.items()}
    found: dict[str, KnownRun] = {}
    reported_by_primary: set[str] = set()
    """Runs that their primary has listed. Later reports of other hosts about them are ignored."""
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
            if own is not None:  # Only hosts that take part in the run are trusted.
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
    """Returns the run with this ID, or the only run whose ID starts or ends with it, or the newest run of this name.

    `last` means the newest run. A trial of a sweep is found only by its whole ID, since it begins with the ID of its
    sweep. `runs` must be sorted from newest to oldest. Raises UsageError if no run or several runs match.
    """
    if not run_id.strip():  # The empty value of an unset shell variable must not select the only run.
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
    """Returns the primary's answer to `run.show`, which includes the record stored on the primary."""
    answer: dict[str, Any] = link.call("run.show", {"run_id": run.run_id})
    return answer


def run_details(run: KnownRun, shown: dict[str, Any]) -> dict[str, Any]:
    """Returns the details of the run from a host's answer to `run.show`."""
    record = shown["record"]
    about = record.get("record", {})
    state, reason = _state_of(shown)
    replicas = _with_planned(shown["replicas"], about.get("replicas", []))
    if state != shown["state"]:  # The keeper exited before recording the end of its replicas.
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
        "replicas": replicas,
        "metrics": {name: metrics_report.valid_metrics(metrics) for name, metrics in shown["metrics"].items()},
        "timings": shown["timings"],
    }


def show_record(run: KnownRun, record: RunRecord | None) -> dict[str, Any]:
    """Returns the details of the run in its state last known to this desktop, with the keys of `show_run`."""
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
        "replicas": record.replicas if record else [],
        "metrics": record.metrics if record else {},
        "timings": record.timings if record else {},
    }


def _with_planned(replicas: list[dict[str, Any]], planned: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the planned replicas in the plan's order, then others. Replicas without a reported state are pending."""
    reported = {replica["name"]: replica for replica in replicas}
    pending = {"state": "pending", "exit_code": None, "restarts": 0, "reason": ""}
    all_pending = {
        replica["name"]: {"name": replica["name"], "host": replica["host"], **pending} for replica in planned
    }
    return list({**all_pending, **reported}.values())


def _lost(replica: dict[str, Any]) -> dict[str, Any]:
    return replica if ReplicaState(replica["state"]).is_terminal else {**replica, "state": ReplicaState.LOST.value}


def stop_run(run: KnownRun, link: AgentLink, *, force: bool = False) -> None:
    """Requests the stop of a run; the journal reports its end. Raises AgentRefused if the run has ended already."""
    link.call("run.stop", stop_request(run.run_id, force=force))


def free_prepared(run: KnownRun, links: Iterable[AgentLink]) -> None:
    """Makes hosts release the resources of a run that was stopped before it began. Waits up to FREE_WITHIN_S."""
    answers = [link.submit("run.abort", {"run_id": run.run_id, "by": desktop_identity()}) for link in links]
    wait(answers, FREE_WITHIN_S)


def stop_request(run_id: str, *, force: bool, how: str = "") -> dict[str, Any]:
    """Returns the parameters of `run.stop`. The reason in the run's state ends with `how`, such as `in the window`."""
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
    """Returns the state of a run whose start was never confirmed and which its primary does not list."""
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
    """Returns a run of this desktop's history. Only its state, reason and time are taken from a host's report."""
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

    A run whose keeper exited before the run ended has failed.
    """
    if report["alive"] or is_over(report["state"]):
        return report["state"], report["reason"]
    return "failed", report.get("died") or KEEPER_DIED


def is_over(state: str) -> bool:
    """Returns whether a run in this state has ended."""
    return state in ("succeeded", "failed", "stopped")
