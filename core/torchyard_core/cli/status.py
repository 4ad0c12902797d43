"""`torchyard status`: hosts, GPUs, and who uses what now."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import typer

from torchyard_core.cli.context import settings
from torchyard_core.cli.output import Json, error_as_json, print_json, say, table
from torchyard_core.errors import AgentMissing, AgentRefused, HostError, TorchyardError
from torchyard_core.fleet.usage import SAMPLE_TIMEOUT_S, beside_gpus, users_of

HEADINGS = ("HOST", "GPU", "MODEL", "MEMORY", "USED", "UTIL", "BY")


def status(context: typer.Context, as_json: Json = False) -> None:
    """Show every host and GPU of the fleet, and what runs there now, whoever started it.

    Exit code 3: a host could not be reached.

    Example: torchyard status
    """
    chosen = settings(context)
    hosts = [host.name for host in chosen.inventory().hosts]
    with chosen.fleet(chosen.inventory().hosts) as fleet:

        def sample(name: str) -> dict[str, Any] | AgentRefused:
            try:
                taken: dict[str, Any] = fleet.link(name, install=False).call("telemetry.sample", {}, SAMPLE_TIMEOUT_S)
                return taken
            except AgentRefused as refusal:
                return refusal

        samples = fleet.each(hosts, sample)
    if as_json:
        print_json([_as_json(name, found) for name, found in samples.items()])
    else:
        table(HEADINGS, [row for name, found in samples.items() for row in rows(name, found)])
        for found in samples.values():
            if isinstance(found, TorchyardError):
                say(found.sentence())
    silent = [found for found in samples.values() if isinstance(found, TorchyardError)]
    if code := max((error.exit_code for error in silent if not isinstance(error, AgentMissing)), default=0):
        raise typer.Exit(code)


def _as_json(name: str, found: dict[str, Any] | TorchyardError) -> dict[str, Any]:
    """{"name", "state", "as_of", "host", "gpus", "replicas", "error"}; units as in docs/protocol.md."""
    if isinstance(found, TorchyardError):
        state = found.state if isinstance(found, HostError) else "degraded"
        nothing: dict[str, Any] = {"as_of": None, "host": None, "gpus": [], "replicas": {}}
        return {"name": name, "state": state, **nothing, "error": error_as_json(found)}
    as_of = datetime.fromtimestamp(found["time"], UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    now = {key: found[key] for key in ("host", "gpus", "replicas")}
    return {"name": name, "state": "ready", "as_of": as_of, **now, "error": None}


def rows(name: str, found: dict[str, Any] | TorchyardError) -> list[list[str]]:
    if isinstance(found, TorchyardError):
        state = found.state if isinstance(found, HostError) else "degraded"
        return [[name, "?", state, "?", "?", "?", "unknown"]]
    host = found["host"]
    cpus = f"{host['cpus']} CPUs"
    memory = [_gigabytes(host["memory_mb"]), _gigabytes(host["memory_used_mb"])]
    return [
        [name, "cpu", cpus, *memory, _percent(host["cpu"]), ", ".join(beside_gpus(found)) or "-"],
        *([name, *_gpu(gpu)] for gpu in found["gpus"]),
    ]


def _gpu(gpu: dict[str, Any]) -> list[str]:
    by = ", ".join(users_of(gpu)) or "-"
    return [
        str(gpu["index"]),
        str(gpu["name"]),
        _gigabytes(gpu["memory_mb"]),
        _gigabytes(gpu["memory_used_mb"]),
        _percent(gpu["utilisation"]),
        str(gpu["problem"] or by),
    ]


def _gigabytes(mebibytes: float | None) -> str:
    return "?" if mebibytes is None else f"{mebibytes / 1024:.1f} GB"


def _percent(value: float | None) -> str:
    return "?" if value is None else f"{value:.0f}%"
