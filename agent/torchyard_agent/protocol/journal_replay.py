"""Replay of a run's journal: folds the events of one host into a view of the run.

The daemon replays runs whose keeper has exited; the desktop replays the runs that it follows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torchyard_agent.protocol import metrics_report

Event = dict[str, Any]


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
        "asked": [],
        "booking_ends": None,
        "as_of": "",
        "ended": False,
        "seen": None,
    }


def apply(view: Event, event: Event) -> None:
    """Applies one event to `view`. Events must come in the journal's order; an unknown one only updates `as_of`."""
    view["as_of"] = event["time"]
    view["seen"] = [event["epoch"], event["seq"]]
    kind = event["event"]
    if kind == "run_state":
        view["state"] = event["state"]
        view["waiting_for"] = event.get("waiting_for")
        # A restart is over when the run is running again; the cause of the restart is then no longer shown.
        view["reason"] = event.get("reason") or ("" if event["state"] == "running" else view["reason"])
    elif kind == "replica_state":
        replica = view["replicas"].setdefault(event["replica"], {"name": event["replica"], "restarts": 0})
        replica["host"] = event["host"]
        replica["state"] = event["state"]
        replica["exit_code"] = event.get("exit_code")
        replica["reason"] = event.get("reason", "")
        replica["restarts"] = event.get("restarts", 0)
    elif kind == "gang_restart":
        view["restarts"].append({name: event[name] for name in ("time", "gang", "generation", "cause")})
    elif kind == "asked":
        kept = ("time", "by", "from", "what", "uid", "force")
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
        view["state"], view["reason"], view["ended"] = event["state"], event["reason"], True
        view["timings"] = event.get("timings", {})
        view["metrics"].update(
            {name: metrics_report.valid_metrics(metrics) for name, metrics in event.get("metrics", {}).items()}
        )
        for ended in event.get("replicas", []):
            view["replicas"].setdefault(ended["name"], {"name": ended["name"]}).update(ended)


def fold(run_id: str, events: Iterable[Event]) -> Event:
    """Returns the view of a run after `events`."""
    view = new_view(run_id)
    for event in events:
        apply(view, event)
    return view
