"""Replays a run's journal: combines the events of one host into a view of the run.

The daemon replays a journal to show the run; a desktop replays the journals of the runs that it follows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torchyard_agent.protocol import metrics_report
from torchyard_agent.protocol.run_states import RunState

Event = dict[str, Any]
_TERMINAL = tuple(state.value for state in RunState if state.is_terminal)


def new_view(run_id: str) -> Event:
    """Returns the view of a run before its first event."""
    return {
        "run_id": run_id,
        "state": "draft",
        "reason": "",
        "waiting_for": None,
        "replicas": {},
        "metrics": {},
        "timings": {},
        "restarts": [],
        "memberships": [],
        "interruptions": [],
        "asked": [],
        "booking_ends": None,
        "as_of": "",
        "ended": False,
        "seen": None,
    }


def apply(view: Event, event: Event) -> None:
    """Applies one event to `view`. Events must be applied in the order of the journal.

    If the kind of event is unknown, only `as_of` and `seen` change.
    """
    view["as_of"] = event["time"]
    view["seen"] = [event["epoch"], event["seq"]]
    view["ended"] = is_ended_after(event, view["ended"])
    kind = event["event"]
    if kind == "run_state":
        view["state"] = event["state"]
        view["waiting_for"] = event.get("waiting_for")
        # When the run is running again, the restart is complete and its cause is no longer shown.
        view["reason"] = event.get("reason") or ("" if event["state"] == "running" else view["reason"])
    elif kind == "replica_state":
        replica = view["replicas"].setdefault(event["replica"], {"name": event["replica"], "restarts": 0})
        replica["host"] = event["host"]
        replica["state"] = event["state"]
        replica["exit_code"] = event.get("exit_code")
        replica["reason"] = event.get("reason", "")
        replica["restarts"] = event.get("restarts", 0)
    elif kind == "gang_restart":
        view["memberships"] = []  # Losses in the earlier generation are not relevant for the new one.
        view["restarts"].append({name: event[name] for name in ("time", "gang", "generation", "cause")})
    elif kind == "membership":
        view["memberships"].append(
            {name: event[name] for name in ("time", "number", "step", "members", "lost", "cause")}
        )
    elif kind == "interrupted":
        view["memberships"] = []
        view["interruptions"].append({name: event[name] for name in ("time", "job", "restart", "cause")})
        _apply_last_metrics(view, event)
    elif kind == "asked":
        kept = ("time", "by", "from", "what", "uid", "force", "host", "replicas")
        view["asked"].append({name: event[name] for name in kept if name in event})
    elif kind == "booking_ends":
        view["booking_ends"] = {name: event[name] for name in ("time", "booking", "at", "reason")}
    elif kind == "report":
        metrics = view["metrics"].setdefault(event["replica"], {})
        metrics.update(
            metrics_report.valid_metrics(
                {**metrics, **metrics_report.custom_metrics_of_event(event), **metrics_report.metrics_of_event(event)}
            )
        )
    elif kind == "run_ended":
        view["state"], view["reason"] = event["state"], event["reason"]
        view["timings"] = event.get("timings", {})
        _apply_last_metrics(view, event)
        for ended in event.get("replicas", []):
            view["replicas"].setdefault(ended["name"], {"name": ended["name"]}).update(ended)


def _apply_last_metrics(view: Event, event: Event) -> None:
    """Applies the last metrics before the run's end or interruption.

    These metrics may be newer than the last `report` event, because reports are journaled only at intervals.
    """
    view["metrics"].update(
        {name: metrics_report.valid_metrics(metrics) for name, metrics in event.get("metrics", {}).items()}
    )


def is_ended_after(event: Event, before: bool) -> bool:
    """Returns whether the run has ended on the journal's host after `event`.

    A host may end the run because the primary is unreachable, and rejoin the run later. The run has then not ended.

    Args:
        before: Whether the run had ended before the event.
    """
    if event["event"] == "run_state":
        return before and event["state"] in _TERMINAL
    return before or bool(event["event"] == "run_ended")


def fold(run_id: str, events: Iterable[Event]) -> Event:
    """Returns the view of a run after `events`."""
    view = new_view(run_id)
    for event in events:
        apply(view, event)
    return view
