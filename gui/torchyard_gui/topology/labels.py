"""Texts for roles, strategies, presets and counts of replicas."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QCoreApplication

from torchyard_core.topology.machine_types import Machine
from torchyard_core.topology.model import Role, StrategyKind
from torchyard_core.topology.strategies.presets import PRESETS, Preset


def tr(text: str) -> str:
    return QCoreApplication.translate("topology", text)


def role_name(role: Role) -> str:
    """Returns the name of one replica's role."""
    names = {
        Role.CHIEF: tr("Chief"),
        Role.WORKER: tr("Worker"),
        Role.PS: tr("Parameter server"),
        Role.REDUCER: tr("Reducer"),
        Role.EVALUATOR: tr("Evaluator"),
    }
    return names[role]


def role_plural(role: Role) -> str:
    names = {
        Role.CHIEF: tr("chiefs"),
        Role.WORKER: tr("workers"),
        Role.PS: tr("parameter servers"),
        Role.REDUCER: tr("reducers"),
        Role.EVALUATOR: tr("evaluators"),
    }
    return names[role]


def role_sentence(role: Role) -> str:
    """Returns what a replica of the role does."""
    sentences = {
        Role.CHIEF: tr("The first trainer: rank 0, which also writes checkpoints. A run has at most one."),
        Role.WORKER: tr("Trains on its share of the data."),
        Role.PS: tr("Holds parameters for the trainers, in strategies with servers and in other frameworks."),
        Role.REDUCER: tr("Sums the trainers' gradients, in strategies that use reducers."),
        Role.EVALUATOR: tr("Evaluates checkpoints beside the training; its failure never fails the run."),
    }
    return sentences[role]


def strategy_name(kind: StrategyKind) -> str:
    names = {
        StrategyKind.NONE: tr("None"),
        StrategyKind.ALL_REDUCE: tr("All-reduce"),
        StrategyKind.SANDBLASTER: tr("Sandblaster"),
        StrategyKind.REDUCTION_SERVER: tr("Reduction server"),
        StrategyKind.DOWNPOUR: tr("Downpour"),
        StrategyKind.HOGWILD: tr("Hogwild"),
    }
    return names[kind]


def strategy_sentence(kind: StrategyKind) -> str:
    """Returns what a strategy does."""
    sentences = {
        StrategyKind.NONE: tr("The script keeps its parameters in step itself, for example with DDP."),
        StrategyKind.ALL_REDUCE: tr("After each step all trainers average their gradients with each other."),
        StrategyKind.SANDBLASTER: tr("Trainers send gradients to parameter servers and wait for the sum."),
        StrategyKind.REDUCTION_SERVER: tr("Reducers on hosts of their own sum the gradients of all trainers."),
        StrategyKind.DOWNPOUR: tr("Groups of trainers push to and pull from servers, each at its own pace."),
        StrategyKind.HOGWILD: tr("Groups train apart and exchange parameters with their neighbours now and then."),
    }
    return sentences[kind]


def preset_title(preset: Preset) -> str:
    """Returns a preset's title; a strategy's preset has the strategy's name."""
    return strategy_name(StrategyKind(preset.key)) if preset.key in PRESETS else preset.title


def strategy_preset_sentence(kind: StrategyKind) -> str:
    """Returns what a strategy's preset adds to an empty design."""
    sentences = {
        StrategyKind.ALL_REDUCE: tr("Three workers round a ring."),
        StrategyKind.SANDBLASTER: tr("Three workers in step with two parameter servers."),
        StrategyKind.REDUCTION_SERVER: tr("Four workers, and as many reducers as beat a ring, more than N²/(2(N−1))."),
        StrategyKind.DOWNPOUR: tr("Two groups of two workers, each at its own pace, with two parameter servers."),
        StrategyKind.HOGWILD: tr("Three workers that train apart and exchange with their neighbours."),
    }
    return sentences[kind]


def preset_sentence(preset: Preset) -> str:
    """Returns what a preset adds to an empty design."""
    # Names of machines and frameworks are not translated.
    return strategy_preset_sentence(StrategyKind(preset.key)) if preset.key in PRESETS else preset.sentence


def machine_sentence(machine: Machine) -> str:
    """Returns the resources of a machine type."""
    sizes = tr("{count} CPUs, {memory} GB").format(count=machine.cpus, memory=f"{machine.memory_gb:g}")
    gpus = f", {machine.gpus} × {machine.gpu_model}" if machine.gpus else ""
    return f"{machine.name} ({machine.machine}): {sizes}{gpus}."


def named(names: Sequence[str]) -> str:
    """Returns `worker-3`, `3 replicas`, or `3 workers` if all have one role."""
    if len(names) == 1:
        return names[0]
    roles = {name.rpartition("-")[0] for name in names}
    noun = tr("replicas")
    if len(roles) == 1 and (role := roles.pop()) in list(Role):
        noun = role_plural(Role(role))
    return f"{len(names)} {noun}"
