"""Pure functions that check whether all hosts of a run have matching versions of Python, torch, CUDA and driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torchyard_core.launch.checks.check import Check
from torchyard_core.launch.rank_assignment import Plan
from torchyard_core.topology.model import Launcher

Facts = Mapping[str, Mapping[str, Any]]
"""Answers to `host.facts`, by host."""


def check_versions(facts: Facts) -> list[Check]:
    """Returns a warning for each product whose version differs between hosts, and for each driver too old for torch.

    Only the major and minor version of Python are compared. CUDA and driver are compared only between hosts with GPUs.
    """
    with_gpus = {host: found for host, found in facts.items() if found.get("gpus")}
    found = [
        _compare("python", "Python", facts, _python, "Pickles of one host may be unreadable on another."),
        _compare("torch", "torch", facts, _torch, "Collectives between them may fail or hang."),
        _compare("cuda", "torch for CUDA", with_gpus, _cuda, "Each has its own NCCL: collectives may fail or hang."),
        _compare("driver", "NVIDIA driver", with_gpus, _driver, "Kernels may behave differently."),
        *(_check_driver(host, about) for host, about in with_gpus.items()),
    ]
    return [check for check in found if check is not None]


def check_torch_builds(plan: Plan, facts: Facts) -> list[Check]:
    """Returns an error for each host on which replicas need GPUs but torch was built without CUDA.

    If the program has a `setup`, the line is only a warning, because `setup` may activate an environment with another
    torch.
    """
    program = plan.topology.program
    if program.launcher is not Launcher.TORCH:
        return []
    lines = []
    for host in plan.hosts:
        found, gpus = facts.get(host, {}), sum(len(replica.gpus) for replica in plan.on_host(host))
        if not gpus or not found.get("torch") or found.get("torch_cuda"):
            continue
        path = (found.get("python") or {}).get("path")
        message = (
            f"torch {found['torch']} of {path} on {host} was built without CUDA: it cannot use the run's "
            f"{'GPU' if gpus == 1 else f'{gpus} GPUs'} there"
        )
        if program.setup:
            message += "; `setup` may activate another environment"
        hint = "Install a CUDA build of torch there, or set `python` to an environment that has one."
        lines.append(Check("cuda", host, bool(program.setup), f"{message}.", hint, warning=bool(program.setup)))
    return lines


def _python(found: Mapping[str, Any]) -> str | None:
    version = (found.get("python") or {}).get("version")
    return ".".join(str(version).split(".")[:2]) if version else None


def _torch(found: Mapping[str, Any]) -> str | None:
    return str(found.get("torch") or "none")


def _cuda(found: Mapping[str, Any]) -> str | None:
    return str(found["torch_cuda"]) if found.get("torch_cuda") else ("none" if found.get("torch") else None)


def _driver(found: Mapping[str, Any]) -> str | None:
    return found.get("driver")


def _compare(
    name: str, product: str, facts: Facts, version_of: Callable[[Mapping[str, Any]], str | None], effect: str
) -> Check | None:
    by_version: dict[str, list[str]] = {}
    for host, found in facts.items():
        version = version_of(found)
        if version is not None:
            by_version.setdefault(version, []).append(host)
    if len(by_version) < 2:
        return None
    hint = f"{effect} Install the same version on all, or choose other hosts."
    return Check(name, "", True, f"{_differences(product, by_version)}.", hint, warning=True)


def _differences(product: str, by_version: dict[str, list[str]]) -> str:
    """Formats differing versions, the least common first: `gpu-b has torch 2.12.0; gpu-a and gpu-c have 2.13.0`."""
    few_first = sorted(by_version.items(), key=lambda item: (len(item[1]), item[0]))
    parts = []
    for number, (version, hosts) in enumerate(few_first):
        shown = "no torch" if version == "none" and product == "torch" else f"{product} {version}"
        if number and version != "none":
            shown = version
        parts.append(f"{_names(hosts)} {'has' if len(hosts) == 1 else 'have'} {shown}")
    return "; ".join(parts)


NAMED = 6


def _names(hosts: list[str]) -> str:
    if len(hosts) == 1:
        return hosts[0]
    if len(hosts) > NAMED:
        return f"the other {len(hosts)} hosts"
    return f"{', '.join(hosts[:-1])} and {hosts[-1]}"


def _check_driver(host: str, found: Mapping[str, Any]) -> Check | None:
    """Returns a warning if torch was built for a newer major version of CUDA than the host's driver supports."""
    built, runs = found.get("torch_cuda"), found.get("driver_cuda")
    if not built or not runs or int(str(built).split(".")[0]) <= int(str(runs).split(".")[0]):
        return None
    message = f"torch on {host} is built for CUDA {built}, but its driver {found.get('driver')} supports up to {runs}."
    hint = f"Update the driver there, or install a torch built for CUDA {str(runs).split('.')[0]}."
    return Check("driver", host, True, message, hint, warning=True)
