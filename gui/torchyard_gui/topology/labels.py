"""Titles and descriptions of roles, strategies and presets, and texts with numbers of replicas."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QCoreApplication

from torchyard_core.topology.machine_types import Machine
from torchyard_core.topology.model import Role, StrategyKind
from torchyard_core.topology.strategies.presets import PRESETS, Preset
from torchyard_core.topology.strategies.registry import spec_of


def tr(text: str) -> str:
    return QCoreApplication.translate("topology", text)


_ROLES = {
    Role.CHIEF: ("Chief", "chiefs", "The first trainer: rank 0, which also writes checkpoints. A run has at most one."),
    Role.WORKER: ("Worker", "workers", "Trains on its share of the data."),
    Role.PS: (
        "Parameter server",
        "parameter servers",
        "Holds parameters for the trainers, in strategies with servers and in other frameworks.",
    ),
    Role.REDUCER: ("Reducer", "reducers", "Sums the trainers' gradients, in strategies that use reducers."),
    Role.EVALUATOR: (
        "Evaluator",
        "evaluators",
        "Evaluates checkpoints beside the training; its failure never fails the run.",
    ),
}
"""The name of each role in the singular and in the plural, and what a replica of the role does."""


def role_name(role: Role) -> str:
    return tr(_ROLES[role][0])


def role_plural(role: Role) -> str:
    return tr(_ROLES[role][1])


def role_sentence(role: Role) -> str:
    return tr(_ROLES[role][2])


def strategy_name(kind: StrategyKind) -> str:
    return tr(spec_of(kind).title)


def strategy_sentence(kind: StrategyKind) -> str:
    """Returns the sentence that describes a strategy, for the field that selects the strategy."""
    return tr(spec_of(kind).sentence)


def preset_title(preset: Preset) -> str:
    """Returns the title of a preset. Names of machines and frameworks are not translated."""
    return tr(preset.title) if preset.key in PRESETS else preset.title


def preset_sentence(preset: Preset) -> str:
    """Returns the sentence that describes the pools that a preset adds to an empty topology."""
    return tr(preset.sentence) if preset.key in PRESETS else preset.sentence


def machine_sentence(machine: Machine) -> str:
    one, several = tr("1 CPU, {memory} GB"), tr("{count} CPUs, {memory} GB")
    sizes = (one if machine.cpus == 1 else several).format(count=machine.cpus, memory=f"{machine.memory_gb:g}")
    gpus = f", {machine.gpus} × {machine.gpu_model}" if machine.gpus else ""
    return f"{machine.name} ({machine.machine}): {sizes}{gpus}."


def regrouped_text(sizes: Sequence[int], *, is_trainers: bool) -> str:
    """Returns a description of a change to the number of groups, such as `make 3 worker groups of 4, 4 and 3`."""
    last = tr("{sizes} and {last}").format(sizes=", ".join(map(str, sizes[:-1])), last=sizes[-1])
    many = last if len(sizes) > 1 else str(sizes[0])
    same = len(set(sizes)) == 1
    if is_trainers:
        one, several = tr("make 1 worker group of {sizes}"), tr("make {count} worker groups of {sizes}")
    else:
        one, several = tr("make 1 server group of {sizes}"), tr("make {count} server groups of {sizes}")
    text = one if len(sizes) == 1 else several
    return text.format(count=len(sizes), sizes=sizes[0] if same else many)


def named(names: Sequence[str]) -> str:
    """Returns `worker-3` for a single replica, `3 workers` for replicas of one role, or else `3 replicas`."""
    if len(names) == 1:
        return names[0]
    roles = {name.rpartition("-")[0] for name in names}
    noun = tr("replicas")
    if len(roles) == 1 and (role := roles.pop()) in list(Role):
        noun = role_plural(Role(role))
    return f"{len(names)} {noun}"
