"""Output of `torchyard runs show`."""

from __future__ import annotations

from typing import Any

from torchyard_agent.protocol import metrics_report
from torchyard_agent.protocol.attribution import user_of
from torchyard_core.cli.output import say, table
from torchyard_core.formatting import count, counted, format_byte_rate, seconds, since
from torchyard_core.launch.runs.known_runs import is_over
from torchyard_core.throughput import run_throughput

PLACE, MEASURED = ("REPLICA", "HOST"), ("STATE", "EXIT", "RESTARTS", "STEP", "LOSS", "SAMPLES/S")
"""The column headings. For a run on a cluster, the column of nodes is between PLACE and MEASURED."""
EXCHANGE = {
    "compute_s": ("COMPUTE", seconds),
    "exchange_s": ("EXCHANGE", seconds),
    "wait_s": ("WAITING", seconds),
    "staleness": ("STALE", count),
    "dropped": ("DROPPED", count),
    "skipped": ("SKIPPED", count),
    "version": ("VERSION", count),
    "clients": ("CLIENTS", count),
    "bytes_s": ("TRAFFIC", format_byte_rate),
}
"""The columns that show the durations of the parts of a step, and the values of servers.

A column is shown if any replica has a value for it.
"""
COMPARED = {
    "compute": ("compute_s",),
    "exchange": ("exchange_s",),
    "waiting": ("wait_s",),
    "exchange and waiting": ("exchange_s", "wait_s"),
    "step": ("step_s",),
}
"""The parts of a step that are compared with the prediction, by title.

They include the sum of exchange and waiting, because strategies divide this time in different ways.
"""


def print_run(shown: dict[str, Any]) -> None:
    """Prints the details of a run as returned by `show_run` or `show_record`."""
    say(f"{shown['run_id']}  {shown['name']}")
    reason = f": {shown['reason']}" if shown["reason"] else ""
    stale = "" if shown["fresh"] or is_over(shown["state"]) else f" (as of {since(shown['as_of'])})"
    say(f"{shown['state']}{stale}{reason}")
    by = f" from {shown['launched_from']}" if shown["launched_from"] else ""
    say(f"submitted {since(shown['submitted'])}{by}, on {', '.join(shown['hosts'])}")
    if shown["restarted_from"]:
        say(f"restart of {shown['restarted_from']}")
    for request in shown["asked"]:
        if request["what"] == "stop":
            how = "stopped at once" if request.get("force") else "stopped"
            say(f"{how} {since(request['time'])} by {user_of(request) or 'an unknown desktop'}")
    if memberships := shown.get("memberships"):
        last = memberships[-1]
        left, lost = len(last["members"]), len(last["lost"])
        names = f"; lost: {', '.join(last['lost'])}" if lost else ""
        say(f"step {last['step']}: {left} of {left + lost} workers{names}")
    if interruptions := shown.get("interruptions"):
        last, times = interruptions[-1], counted(len(interruptions), "interruption")
        say(f"{times} by Slurm, the last {since(last['time'])}: {last['cause']}")
    if jobs := shown.get("jobs"):
        say(f"{'job' if len(jobs) == 1 else 'jobs'} {', '.join(map(_job, jobs))}")
    if shown.get("telemetry_problem"):
        say(f"live telemetry is missing: {shown['telemetry_problem']}")
    if shown["replicas"]:
        say()
        metrics, nodes = shown["metrics"], shown.get("nodes") or {}
        more = [name for name in EXCHANGE if any(values.get(name) is not None for values in metrics.values())]
        table(
            (*PLACE, *(["NODE"] if nodes else []), *MEASURED, *(EXCHANGE[name][0] for name in more), "REASON"),
            [_row(replica, metrics.get(replica["name"], {}), more, nodes) for replica in shown["replicas"]],
        )
        throughput = run_throughput({name: values.get("throughput") for name, values in metrics.items()})
        if throughput is not None:
            say(f"throughput of the run: {throughput:,.0f} samples/s, mean of its last 10 s")
        for replica in shown["replicas"]:
            _print_own_metrics(replica["name"], metrics.get(replica["name"], {}))
        if shown.get("comparison") is not None:
            _print_comparison(shown["comparison"])


def _print_comparison(comparison: dict[str, Any]) -> None:
    """Prints the predicted and measured parts of a step side by side."""
    predicted, measured = comparison["predicted"], comparison["measured"]
    trainers = comparison["trainers"]
    say()
    say(
        "A step, as predicted from the profile"
        + (" of other files or arguments" if not comparison["same_files"] else "")
    )
    say(f"and as {'the trainer' if trainers == 1 else f'the median of {trainers} trainers'} measured its last one:")
    rows = [
        [title, *(seconds(sum(times[part] for part in parts)) for times in (predicted, measured))]
        for title, parts in COMPARED.items()
    ]
    table(("PART", "PREDICTED", "MEASURED"), rows)


def _print_own_metrics(replica: str, metrics: dict[str, Any]) -> None:
    """Prints a line with the metrics that the training program defines itself, or nothing if there are none."""
    values = [f"{name} {_number(metrics, name, '.4g')}" for name in metrics_report.custom_metrics(metrics)]
    if values:
        say(f"{replica}  {', '.join(values)}")


def _job(job: dict[str, str]) -> str:
    """Returns a job of a run on a cluster, such as `4712 of group-1 (PENDING)`."""
    about = ": ".join(filter(None, (job["state"], job["problem"])))
    group = f" of {job['group']}" if job["group"] else ""
    return f"{job['job_id']}{group}{f' ({about})' if about else ''}"


def _row(replica: dict[str, Any], metrics: dict[str, Any], more: list[str], nodes: dict[str, str]) -> list[str]:
    host = str(replica.get("host") or "-")
    return [
        replica["name"],
        host,
        *([nodes.get(host, "-")] if nodes else []),
        replica["state"],
        "-" if replica.get("exit_code") is None else str(replica["exit_code"]),
        str(replica.get("restarts", 0)),
        _number(metrics, "step", ".0f"),
        _number(metrics, "loss", ".4g"),
        _number(metrics, "throughput", ",.0f"),
        *("-" if metrics.get(name) is None else EXCHANGE[name][1](metrics[name]) for name in more),
        replica.get("reason") or "",
    ]


def _number(metrics: dict[str, Any], name: str, form: str) -> str:
    """Formats a metric. `-` stands for an unknown value, NaN for a value that is not finite."""
    value = metrics.get(name)
    return format(value, form) if value is not None else "NaN" if name in metrics else "-"
