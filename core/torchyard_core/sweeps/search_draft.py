"""A search file as the texts of a form's fields, with its conversion to YAML and the problems of each field.

The checks are those of the search file, so a form shows the same problems as the command line.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torchyard_core.errors import FileProblem
from torchyard_core.problems import Place, Problem
from torchyard_core.sweeps.model import Distribution, Parameter, PrunerKind, SamplerKind, Search
from torchyard_core.sweeps.search_checks import parameters_in
from torchyard_core.sweeps.search_file import SearchFile, search_from_text
from torchyard_core.topology.document.yaml_patch import patches
from torchyard_core.topology.model import Topology
from torchyard_core.yaml_io.document import parse_document
from torchyard_core.yaml_io.parser import plain_value
from torchyard_core.yaml_io.writer import dump_flow

SETTINGS_OF_SAMPLER = {
    SamplerKind.TPE: ("seed", "startup_trials"),
    SamplerKind.RANDOM: ("seed",),
    SamplerKind.GRID: ("seed",),
    SamplerKind.CMA_ES: ("seed", "startup_trials"),
}
"""The settings that a form shows for each sampler."""
SETTINGS_OF_PRUNER = {
    PrunerKind.NONE: (),
    PrunerKind.MEDIAN: ("startup_trials", "warmup_steps", "interval_steps"),
    PrunerKind.ASHA: ("min_resource", "reduction_factor"),
    PrunerKind.HYPERBAND: ("min_resource", "max_resource", "reduction_factor"),
}
KINDS = ("number", "whole", "choice")
"""The kinds of parameters. Numbers and whole numbers are drawn uniformly on a linear or logarithmic scale."""
_DISTRIBUTIONS = {
    ("number", False): Distribution.UNIFORM,
    ("number", True): Distribution.LOG_UNIFORM,
    ("whole", False): Distribution.INT,
    ("whole", True): Distribution.LOG_INT,
    ("choice", False): Distribution.CATEGORICAL,
}
_OF_DISTRIBUTION = {distribution: key for key, distribution in _DISTRIBUTIONS.items()}

FieldName = tuple[str | int, ...]
"""The name of a field: `("trials",)`, `("sampler", "seed")`, or `("parameters", 0, "low")` for the first row."""


@dataclass(frozen=True)
class ParameterDraft:
    """A parameter as texts. `values` is a list in YAML's notation, without its brackets."""

    name: str = ""
    kind: str = "number"
    is_log: bool = False
    low: str = ""
    high: str = ""
    step: str = ""
    values: str = ""

    @property
    def distribution(self) -> Distribution:
        return _DISTRIBUTIONS[self.kind, self.is_log and self.kind != "choice"]

    def as_data(self) -> dict[str, Any]:
        """Returns the parameter's entry in the file, without the fields that its distribution does not use."""
        data: dict[str, Any] = {"distribution": str(self.distribution)}
        if self.kind == "choice":
            if self.values.strip():
                data["values"] = _list(self.values)
            return data
        keys = ("low", "high") if self.is_log else ("low", "high", "step")
        return data | {key: _value(text) for key in keys if (text := getattr(self, key)).strip()}

    @staticmethod
    def of(name: str, parameter: Parameter) -> ParameterDraft:
        kind, is_log = _OF_DISTRIBUTION[parameter.distribution]
        texts = {key: _text(getattr(parameter, key)) for key in ("low", "high", "step")}
        values = dump_flow(list(parameter.values))[1:-1] if parameter.values else ""
        return ParameterDraft(name, kind, is_log, values=values, **texts)

    @staticmethod
    def suggested(name: str) -> ParameterDraft:
        """Returns a draft with a range that is usual for a parameter of this name."""
        words = name.lower().replace("-", "_").split("_")
        if "lr" in words or "rate" in words or "decay" in words:
            return ParameterDraft(name, "number", True, "0.0001", "0.1")
        if "batch" in words:
            return ParameterDraft(name, "choice", values="32, 64, 128")
        if {"depth", "layers", "heads", "num", "n"} & set(words):
            return ParameterDraft(name, "whole", low="1", high="4")
        return ParameterDraft(name, "number", low="0", high="1")


@dataclass(frozen=True)
class SearchDraft:
    """A search as the texts of a form. `settings` has the texts of the fields ("sampler", key) and ("pruner", key)."""

    parameters: tuple[ParameterDraft, ...] = ()
    name: str = ""
    metric: str = "loss"
    goal: str = "minimize"
    sampler: str = str(SamplerKind.TPE)
    pruner: str = str(PrunerKind.NONE)
    settings: Mapping[FieldName, str] = field(default_factory=dict)
    trials: str = "50"
    parallel: str = "1"

    @staticmethod
    def new(topology: Topology | None) -> SearchDraft:
        """Returns a search with a parameter for each `{params.NAME}` in the topology's arguments, by default `lr`."""
        names = parameters_in(topology) if topology is not None else ()
        return SearchDraft(tuple(ParameterDraft.suggested(name) for name in names or ("lr",)))

    @staticmethod
    def of(search: Search) -> SearchDraft:
        blocks = {"sampler": search.sampler, "pruner": search.pruner}
        settings: dict[FieldName, str] = {
            (block, key): _text(value)
            for block, model in blocks.items()
            for key, value in model
            if key != "kind" and value is not None
        }
        return SearchDraft(
            tuple(ParameterDraft.of(name, parameter) for name, parameter in search.parameters.items()),
            search.name or "",
            search.objective.metric,
            str(search.objective.goal),
            str(search.sampler.kind),
            str(search.pruner.kind),
            settings,
            _text(search.trials),
            _text(search.parallel),
        )

    def as_data(self) -> dict[str, Any]:
        """Returns the data of the search file. Rows without a name, and rows that repeat a name, are left out."""
        data: dict[str, Any] = {"version": 1}
        if self.name.strip():
            data["name"] = self.name.strip()
        data["parameters"] = {}
        for parameter in self.parameters:
            if parameter.name.strip():
                data["parameters"].setdefault(parameter.name.strip(), parameter.as_data())
        data["objective"] = {"metric": self.metric.strip(), "goal": self.goal}
        data["sampler"] = {"kind": self.sampler, **self._settings("sampler", SETTINGS_OF_SAMPLER, self.sampler)}
        if self.pruner != PrunerKind.NONE:
            data["pruner"] = {"kind": self.pruner, **self._settings("pruner", SETTINGS_OF_PRUNER, self.pruner)}
        if self.trials.strip():
            data["trials"] = _value(self.trials)
        if self.parallel.strip():
            data["parallel"] = _value(self.parallel)
        return data

    def text(self, base: str = "") -> str:
        """Returns the search as YAML.

        Args:
            base: The text of a valid search file. Its unchanged parts are preserved with their comments, as far as its
                style allows.
        """
        data = self.as_data()
        if base:
            file = search_from_text(base)
            if file.search is not None and SearchDraft.of(file.search) == self:
                return base
            before = file.document.data
            for key, default in (("sampler", {"kind": "tpe"}), ("parallel", 1)):
                if key not in before and data.get(key) == default:
                    del data[key]
            for patched in patches(base, before, data):
                if _contains(patched, data):
                    return patched
        return _dumped(data)

    def problems(self, file: SearchFile, topology: Topology | None = None) -> dict[FieldName, str]:
        """Returns the first problem of each field. Problems of the whole table have the key `("parameters",)`.

        Args:
            file: The search file that was read from the draft's text.
            topology: If given, the parameters are also compared with those in the topology's arguments.
        """
        found: dict[FieldName, str] = {}
        names = [parameter.name.strip() for parameter in self.parameters]
        count = Counter(names)
        for row, name in enumerate(names):
            if not name:
                found["parameters", row, "name"] = "the parameter has no name"
            elif count[name] > 1 and name in names[:row]:
                found["parameters", row, "name"] = f"there is another parameter {name}"
        for problem in file.check(topology):
            found.setdefault(self._field_of(problem, names), problem.message)
        if file.search is None and (rest := self._without(found)) != self:
            # A value of the wrong type would otherwise hide the problems of all other fields.
            found = rest.problems(search_from_text(rest.text()), topology) | found
        if topology is not None and (missing := self.missing(topology)):
            text = f"the topology's argument {{params.{missing[0]}}} is no parameter of the search"
            found.setdefault(("parameters",), text)
        return found

    def place_of(self, field: FieldName) -> Place:
        """Returns the location of a field in the file. A row without a name is not in the file."""
        if field[0] == "parameters" and len(field) == 3:
            name = self.parameters[int(field[1])].name.strip()
            return ("parameters", name) if field[2] == "name" else ("parameters", name, field[2])
        return ("objective", *field) if field == ("metric",) else field

    def with_parameters(self, *names: str) -> SearchDraft:
        """Returns the draft with suggested parameters of the given names added."""
        more = tuple(ParameterDraft.suggested(name) for name in names)
        return replace(self, parameters=(*self.parameters, *more))

    def unused(self, topology: Topology) -> tuple[str, ...]:
        """Returns the names of parameters that no argument of the topology uses."""
        used = parameters_in(topology)
        names = dict.fromkeys(parameter.name.strip() for parameter in self.parameters)
        return tuple(name for name in names if name and name not in used)

    def missing(self, topology: Topology) -> tuple[str, ...]:
        """Returns the names in `{params.NAME}` of the topology's arguments that are not parameters of the draft."""
        names = {parameter.name.strip() for parameter in self.parameters}
        return tuple(name for name in parameters_in(topology) if name not in names)

    def _without(self, fields: Collection[FieldName]) -> SearchDraft:
        """Returns the draft with the given fields empty or at their defaults."""

        def kept(row: int, key: str, text: str) -> str:
            return "" if ("parameters", row, key) in fields else text

        parameters = tuple(
            replace(
                one,
                low=kept(row, "low", one.low),
                high=kept(row, "high", one.high),
                step=kept(row, "step", one.step),
                values=kept(row, "values", one.values),
            )
            for row, one in enumerate(self.parameters)
        )
        texts = {key: "" for key in ("name", "trials", "parallel") if (key,) in fields}
        if ("metric",) in fields:
            texts["metric"] = "loss"
        settings = {key: text for key, text in self.settings.items() if key not in fields}
        return replace(self, parameters=parameters, settings=settings, **texts)

    def _settings(self, block: str, keys: Mapping[Any, tuple[str, ...]], kind: str) -> dict[str, Any]:
        return {key: _value(text) for key in keys[kind] if (text := self.settings.get((block, key), "")).strip()}

    def _field_of(self, problem: Problem, names: list[str]) -> FieldName:
        """Returns the field that a problem concerns: the one whose path is a prefix of the problem's path."""
        path = f"{problem.path}."
        for row, name in enumerate(names):
            if name and path.startswith(f"parameters.{name}."):
                key = path.removeprefix(f"parameters.{name}.").partition(".")[0]
                # A missing `low`, `high` or `values` is reported at the parameter; only the message names the key.
                absent = [word for word in ("low", "high", "values") if f"`{word}` is missing" in problem.message]
                return ("parameters", row, key or next(iter(absent), "name"))
        block, _, key = problem.path.partition(".")
        if block in ("sampler", "pruner"):
            return (block, key or "kind")
        if block == "objective":
            return (key or "metric",)
        return (block or "trials",)  # A problem without a path concerns the number of trials.


def _value(text: str) -> Any:
    """Converts the text of a field to the value in the file. The checks refuse text that should be a number."""
    return plain_value(text.strip())


def _list(text: str) -> Any:
    """Parses a list in YAML's notation without brackets. Returns the text itself if this is not possible."""
    try:
        return parse_document(f"[{text}]", "values").data
    except FileProblem:
        return text


def _text(value: float | None) -> str:
    """Returns a number in its shortest form, and "" for None."""
    if value is None:
        return ""
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def _dumped(data: Mapping[str, Any]) -> str:
    """Formats a search as YAML, with one line for each top-level key and for each key of a parameter."""
    lines = []
    for key, value in data.items():
        if key != "parameters" or not value:
            lines.append(f"{key}: {dump_flow(value)}")
            continue
        lines.append("parameters:")
        for name, parameter in value.items():
            lines.append(f"  {dump_flow(name)}:")
            lines += [f"    {one}: {dump_flow(of_one)}" for one, of_one in parameter.items()]
    return "\n".join(lines) + "\n"


def _contains(text: str, data: Mapping[str, Any]) -> bool:
    """Returns whether a YAML text has exactly the given data, with the parameters in the same order."""
    try:
        document = parse_document(text, "search")
    except FileProblem:
        return False
    read = document.data
    return read == data and list(read["parameters"]) == list(data["parameters"]) and not document.problems


def argument_for(name: str, script: str = "") -> str:
    """Returns the argument that passes a parameter to the program, such as `--lr={params.lr}`.

    Args:
        name: The name of the parameter, which has no hyphens.
        script: The text of the program. The option is written with hyphens, such as `--batch-size` for `batch_size`,
            if the text contains only this form.
    """
    hyphenated = name.replace("_", "-")
    found = set(re.findall(r"--[\w-]+", script))
    option = hyphenated if f"--{hyphenated}" in found and f"--{name}" not in found else name
    return f"--{option}={{params.{name}}}"
