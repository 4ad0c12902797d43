"""Checks of a search, as pure functions.

The checks cover ranges, settings that the sampler or pruner does not have, and distributions that the sampler cannot
draw from.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import inf

from torchyard_core.formatting import counted
from torchyard_core.problems import Finding, Findings, Place, error_finding, near_miss
from torchyard_core.sweeps.model import (
    MAX_STEPS,
    MAX_TRIALS,
    MAX_WHOLE,
    Distribution,
    Parameter,
    PrunerKind,
    SamplerKind,
    Search,
)
from torchyard_core.topology.model import Topology

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)
_PLACEHOLDER = re.compile(r"\{params\.([^{}]*)\}")
SIMILAR = 0.5
"""Similarity from which an unknown name counts as a misspelt parameter. Names may be short (`lr`), so it is low."""
_OF_SAMPLERS = {"startup_trials": (SamplerKind.TPE, SamplerKind.CMA_ES)}
_OF_PRUNERS = {
    "startup_trials": (PrunerKind.MEDIAN,),
    "warmup_steps": (PrunerKind.MEDIAN,),
    "interval_steps": (PrunerKind.MEDIAN,),
    "min_resource": (PrunerKind.ASHA, PrunerKind.HYPERBAND),
    "max_resource": (PrunerKind.HYPERBAND,),
    "reduction_factor": (PrunerKind.ASHA, PrunerKind.HYPERBAND),
}


def check_search(search: Search) -> Findings:
    """Yields the problems of a search."""
    for name, parameter in search.parameters.items():
        if not _NAME.fullmatch(name):
            message = f"'{name}' cannot name a parameter: letters, digits and _ only, no digit first, at most 64"
            yield error_finding("bad-parameter", message, "parameters", name)
        yield from _check_parameter(name, parameter)
    if not _NAME.fullmatch(search.objective.metric):
        message = f"'{search.objective.metric}' cannot name a metric: letters, digits and _ only, no digit first"
        yield error_finding("bad-metric", message, "objective", "metric")
    sampler, pruner = search.sampler, search.pruner
    for setting, samplers in _OF_SAMPLERS.items():
        if getattr(sampler, setting) is not None and sampler.kind not in samplers:
            yield _unused(setting, "sampler", sampler.kind, samplers)
    for setting, pruners in _OF_PRUNERS.items():
        if getattr(pruner, setting) is not None and pruner.kind not in pruners:
            yield _unused(setting, "pruner", pruner.kind, pruners)
    least, most = pruner.min_resource or 1, pruner.max_resource
    if most is not None and most < least:
        message = f"the range is empty: max_resource {most} is below min_resource {least}"
        yield error_finding("range", message, "pruner", "max_resource")
    yield from _check_sampler(search)


def check_arguments(search: Search, topology: Topology) -> Findings:
    """Yields an error for each parameter that no argument of the topology uses.

    A parameter is not reported if an argument contains a misspelt form of its name, which `check_placeholders` reports.
    """
    used = {name for _, word in _arguments(topology) for name in _PLACEHOLDER.findall(word)}
    misspelt = {near_miss(name, search.parameters, SIMILAR) for name in used - set(search.parameters)}
    for name in search.parameters:
        if name not in used and name not in misspelt:
            message = (
                f"no argument of the topology contains {{params.{name}}}, so {name} would not change the trials; "
                "add it to `args` of the program or of a pool"
            )
            yield error_finding("parameter-unused", message, "parameters", name)


def check_placeholders(search: Search, topology: Topology, source: str) -> Findings:
    """Yields an error for each unknown `{params.NAME}` in the topology's arguments, located in the topology file.

    `source` is the name of the search file for messages.
    """
    for place, word in _arguments(topology):
        for name in dict.fromkeys(_PLACEHOLDER.findall(word)):
            if name in search.parameters:
                continue
            close = near_miss(name, search.parameters, SIMILAR)
            known = ", ".join(search.parameters)
            hint = f"did you mean {{params.{close}}}?" if close is not None else f"its parameters are {known}"
            message = f"{{params.{name}}} is no parameter of {source}; {hint}"
            yield error_finding("parameter-unknown", message, *place)


def parameters_in(topology: Topology) -> tuple[str, ...]:
    """Returns the names in `{params.NAME}` of the topology's arguments, in the order of their first use."""
    program = topology.program
    words = [*program.command, *program.args, *(word for pool in topology.pools for word in pool.args)]
    return tuple(dict.fromkeys(name for word in words for name in _PLACEHOLDER.findall(word)))


def uses_parameters(topology: Topology) -> str | None:
    """Returns the first `{params.NAME}` in the topology's arguments, or None. Only a sweep can replace it."""
    found = next((match for _, word in _arguments(topology) if (match := _PLACEHOLDER.search(word))), None)
    return found[0] if found is not None else None


def _arguments(topology: Topology) -> Iterator[tuple[Place, str]]:
    """Yields each argument that may contain placeholders for sweep parameters, with its location in the topology."""
    program = topology.program
    for key, words in (("command", program.command), ("args", program.args)):
        yield from ((("program", key, number), word) for number, word in enumerate(words))
    for index, pool in enumerate(topology.pools):
        yield from ((("pools", index, "args", number), word) for number, word in enumerate(pool.args))


def _check_parameter(name: str, parameter: Parameter) -> Findings:
    at = ("parameters", name)
    kind = parameter.distribution
    if kind is Distribution.CATEGORICAL:
        yield from _check_values(name, parameter)
        return
    if parameter.values is not None:
        message = f"`values` of {name} applies to categorical only; {kind} has `low` and `high`"
        yield error_finding("wrong-value", message, *at, "values")
    if parameter.low is None or parameter.high is None:
        missing = "low" if parameter.low is None else "high"
        yield error_finding("missing-key", f"`{missing}` is missing in {name}: {kind} has `low` and `high`", *at)
        return
    if parameter.low > parameter.high:
        message = f"the range of {name} is empty: low {parameter.low:g} is above high {parameter.high:g}"
        yield error_finding("range", message, *at, "low")
    elif parameter.high - parameter.low == inf:
        yield error_finding("range", f"the range of {name} is too wide", *at, "low")
    elif parameter.step is not None and (parameter.high - parameter.low) / parameter.step > MAX_STEPS:
        message = f"the step of {name} is too small: the range has more than {MAX_STEPS:,} steps"
        yield error_finding("range", message, *at, "step")
    if kind in (Distribution.LOG_UNIFORM, Distribution.LOG_INT):
        least = 1.0 if kind is Distribution.LOG_INT else 0.0
        if parameter.low < least or parameter.low == 0:
            limit = "1 or more" if kind is Distribution.LOG_INT else "above 0"
            message = f"low of {name} must be {limit} for {kind}, not {parameter.low:g}"
            yield error_finding("range", message, *at, "low")
        if parameter.step is not None:
            message = f"`step` of {name} applies to uniform and int only, not to {kind}"
            yield error_finding("wrong-value", message, *at, "step")
    for key in ("low", "high", "step"):
        value = getattr(parameter, key)
        if parameter.is_whole and value is not None and (value != int(value) or abs(value) > MAX_WHOLE):
            shown = f"{value:g}" if abs(value) <= MAX_WHOLE else f"a number above {MAX_WHOLE:,}"
            message = f"{key} of {name} must be a whole number for {kind}, not {shown}"
            yield error_finding("wrong-value", message, *at, key)


def _check_values(name: str, parameter: Parameter) -> Findings:
    at = ("parameters", name)
    for key in ("low", "high", "step"):
        if getattr(parameter, key) is not None:
            message = f"`{key}` of {name} does not apply to categorical, which has `values`"
            yield error_finding("wrong-value", message, *at, key)
    if not parameter.values:
        yield error_finding("missing-key", f"`values` is missing in {name}: categorical has a list of values", *at)
        return
    seen: list[object] = []
    for number, value in enumerate(parameter.values):
        # 1, 1.0 and true are equal in Python, and Optuna could not tell them apart.
        if value in seen:
            message = f"the value {value} of {name} is listed twice"
            yield error_finding("wrong-value", message, *at, "values", number)
        seen.append(value)


def _check_sampler(search: Search) -> Findings:
    kind = search.sampler.kind
    if kind is SamplerKind.GRID:
        for name, parameter in search.parameters.items():
            if parameter.grid is None:
                if parameter.step is not None or parameter.distribution is Distribution.INT:
                    problem, hint = f"has more than {MAX_TRIALS:,}", "give it a larger `step`"
                else:
                    is_uniform = parameter.distribution is Distribution.UNIFORM
                    problem = f"is {parameter.distribution}"
                    listed = "set its `distribution` to categorical and list its `values`"
                    hint = f"give it a `step`, or {listed}" if is_uniform else listed
                message = f"a grid needs a finite list of values, but {name} {problem}; {hint}"
                yield error_finding("no-grid", message, "parameters", name)
        points = search.grid_points
        if points is not None and points > MAX_TRIALS and search.trials is None:
            message = f"the grid has {counted(points, 'point')}, more than {MAX_TRIALS:,}; set `trials`"
            yield error_finding("too-many-trials", message)
        if points is not None and search.trials is not None and search.trials > points:
            message = f"the grid has {counted(points, 'point')}, so {search.trials} trials would repeat some"
            yield error_finding("too-many-trials", message, "trials")
        return
    if search.trials is None:
        yield error_finding("missing-key", f"`trials` is missing: {kind} needs a number of trials")
    if kind is SamplerKind.CMA_ES:
        # Optuna would silently draw categorical parameters, or a single numeric parameter, at random.
        for name, parameter in search.parameters.items():
            if parameter.distribution is Distribution.CATEGORICAL:
                message = f"cma_es cannot search the categorical parameter {name}; use tpe"
                yield error_finding("no-cma-es", message, "parameters", name)
        if len(search.parameters) < 2:
            message = "cma_es needs at least two numeric parameters; use tpe"
            yield error_finding("no-cma-es", message, "parameters")


def _unused(setting: str, block: str, kind: str, kinds: tuple[str, ...]) -> Finding:
    message = f"`{setting}` applies to {' and '.join(kinds)} only, not to {kind}"
    return error_finding("wrong-value", message, block, setting)
