"""Overrides of single values on the command line: `run --set pools.workers.replicas=2`."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, get_origin

from pydantic import BaseModel

from torchyard_core.errors import FileProblem, UsageError
from torchyard_core.problems import Place, did_you_mean, no_lines
from torchyard_core.topology.model import Topology
from torchyard_core.yaml_io.model_validation import type_at, validate
from torchyard_core.yaml_io.parser import ParsedYaml, parse_yaml


def apply_overrides(topology: Topology, settings: Sequence[str]) -> Topology:
    """Returns the topology with each `path=value` applied. Paths identify pools by name.

    Raises UsageError for an invalid path or value.
    """
    data = deepcopy(topology.as_data())
    written: dict[Place, str] = {}
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals or not path.strip():
            raise _refused(setting, "a setting is written `path=value`.", "For example pools.workers.replicas=2.")
        place = _place(data, path.strip(), setting)
        value = _value(text, setting)
        _put(data, place, value.data)
        for inner, letters in value.written.items():
            written[(*place, *inner)] = letters
    changed, problems = validate(Topology, data, written, no_lines)
    if changed is None:
        sentences = "; ".join(problem.message for problem in problems)
        raise _refused(", ".join(settings), f"{sentences}.")
    return changed


def _refused(setting: str, message: str, hint: str = "") -> UsageError:
    return UsageError(f"--set {setting}: {message}", code="bad_setting", hint=hint)


def _value(text: str, setting: str) -> ParsedYaml:
    if not text.strip():
        return ParsedYaml()
    try:
        value = parse_yaml(text, "value")
    except FileProblem as problem:
        message = problem.message.split(": ", 1)[-1]
        raise _refused(setting, f"the value is not YAML: {message}", problem.hint) from None
    if value.problems:
        raise _refused(setting, f"{value.problems[0].message}.")
    return value


def _place(data: dict[str, Any], path: str, setting: str) -> Place:
    """Resolves `path`. Each step is a key of the model, a pool's name or position, or a key chosen by the user.

    Raises UsageError for an unknown path.
    """
    place: Place = ()
    rest = path
    while rest:
        around, typed = type_at(Topology, place), path[: len(path) - len(rest)].rstrip(".")
        if isinstance(around, type) and issubclass(around, BaseModel):
            step, _, rest = rest.partition(".")
            if step not in around.model_fields:
                hint = did_you_mean(step, around.model_fields) or f"; known here: {', '.join(around.model_fields)}"
                raise _refused(setting, f"there is no `{step}`{f' in `{typed}`' if typed else ''}{hint}")
            place = (*place, step)
        elif get_origin(around) is tuple:
            position, rest = _item(data, place, rest, setting)
            place = (*place, position)
        elif get_origin(around) is dict:
            # Names of variables and labels may contain dots, so the rest of the path is one key.
            return (*place, rest)
        else:
            raise _refused(setting, f"`{place[-1]}` has nothing below it.")
    if place == ("pools",) or (len(place) == 2 and place[0] == "pools"):
        raise _refused(setting, "name what to change in the pool.", "For example pools.workers.replicas=2.")
    return place


def _item(data: dict[str, Any], place: Place, rest: str, setting: str) -> tuple[int, str]:
    """Resolves the first entry of the path `rest`, given by its name or by its number from 0.

    Returns the entry's position, and the rest of the path. Raises UsageError if there is no such entry.
    """
    items: Any = data
    for step in place:
        items = items.get(step, []) if isinstance(items, dict) else items[step]
    names = [str(item["name"]) if isinstance(item, dict) else "" for item in items]
    for position, name in sorted(enumerate(names), key=lambda pair: -len(pair[1])):
        if name and (rest == name or rest.startswith(f"{name}.")):
            return position, rest[len(name) + 1 :]
    step, _, left = rest.partition(".")
    if step.isdecimal() and int(step) < len(items):
        return int(step), left
    what = "pool" if place == ("pools",) else "entry"
    named = [name for name in names if name]
    available = len(items) if step.isdecimal() or not named else ", ".join(named)
    hint = did_you_mean(step, named) or f"; there are {available}"
    raise _refused(setting, f"there is no {what} `{step}`{hint}")


def _put(data: dict[str, Any], place: Place, value: Any) -> None:
    around: Any = data
    for step in place[:-1]:
        around = around.setdefault(step, {}) if isinstance(around, dict) else around[step]
    around[place[-1]] = value
