"""One run for people: `runs show`."""

from __future__ import annotations

from typing import Any

from torchyard_agent.protocol.asked import who
from torchyard_core.cli.output import say, since, table

HEADINGS = ("REPLICA", "HOST", "STATE", "EXIT", "RESTARTS", "STEP", "LOSS", "SAMPLES/S", "REASON")


def print_run(shown: dict[str, Any]) -> None:
    """What `show_run` gave."""
    say(f"{shown['run_id']}  {shown['name']}")
    reason = f": {shown['reason']}" if shown["reason"] else ""
    say(f"{shown['state']}{reason}")
    by = f" from {shown['launched_from']}" if shown["launched_from"] else ""
    say(f"submitted {since(shown['submitted'])}{by}, on {', '.join(shown['hosts'])}")
    for told in shown["asked"]:
        if told["what"] == "stop":
            how = "stopped at once" if told.get("force") else "stopped"
            say(f"{how} {since(told['time'])} by {who(told) or 'a desktop that did not say whose it is'}")
    if shown["replicas"]:
        say()
        table(HEADINGS, [_row(replica, shown["metrics"].get(replica["name"], {})) for replica in shown["replicas"]])


def _row(replica: dict[str, Any], metrics: dict[str, Any]) -> list[str]:
    return [
        replica["name"],
        str(replica.get("host") or "-"),
        replica["state"],
        "-" if replica.get("exit_code") is None else str(replica["exit_code"]),
        str(replica.get("restarts", 0)),
        _number(metrics.get("step"), ".0f"),
        _number(metrics.get("loss"), ".4g"),
        _number(metrics.get("throughput"), ",.0f"),
        replica.get("reason") or "",
    ]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
