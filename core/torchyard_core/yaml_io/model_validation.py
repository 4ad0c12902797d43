"""Validation of a document's data against a pydantic model, with messages for the user."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from enum import Enum
from itertools import islice
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, MaxLen, MinLen
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from torchyard_core.problems import MAX_PROBLEMS, LineOf, Place, Problem, did_you_mean, no_lines
from torchyard_core.yaml_io.parser import shown

Model = TypeVar("Model", bound=BaseModel)


def validate(
    model: type[Model], data: Any, written: Mapping[Place, str], line: LineOf, column: LineOf = no_lines
) -> tuple[Model | None, list[Problem]]:
    """Returns the data as an instance of the model, or None together with the problems of the data.

    Text may be written as a bare number (`args: [--epochs, 2]`). An optional key without a value is treated as absent.

    Args:
        column: Returns the column of a location, for problems with a column. By default, problems have none.
    """
    result = _attempt(model, data)
    if isinstance(result, list) and (normalized := _normalized(model, data, result, written)) is not None:
        data = normalized
        result = _attempt(model, data)
    if not isinstance(result, list):
        return result, []
    errors = list(islice(_distinct(result), MAX_PROBLEMS))
    problems = [replace(_problem(model, error, data, line), column=column(_place(error))) for error in errors]
    found = list(zip(errors, problems, strict=True))
    unknown = [(_place(error)[:-1], problem.message) for error, problem in found if problem.code == "unknown-key"]
    kept = [problem for error, problem in found if not _is_misspelled(error, unknown)]
    return None, sorted(kept, key=lambda problem: problem.line or 0)


def without_unknown_keys(model: type[BaseModel], data: Any) -> Any:
    """Returns the data without the keys that the model does not have, so that the rest can be checked."""
    result = _attempt(model, data)
    known = deepcopy(data)
    for error in result if isinstance(result, list) else ():
        if error["type"] == "extra_forbidden":
            *way, key = _place(error)
            block = known
            for step in way:
                block = block[step]
            block.pop(key, None)
    return known


def _is_misspelled(error: ErrorDetails, unknown: Sequence[tuple[Place, str]]) -> bool:
    """Returns whether a missing key is probably only misspelled. `unknown` has (block, message) of each unknown key."""
    place = _place(error)
    return error["type"] == "missing" and any(
        block == place[:-1] and f"did you mean `{place[-1]}`" in message for block, message in unknown
    )


def _attempt(model: type[Model], data: Any) -> Model | list[ErrorDetails]:
    # Strict validation of JSON accepts lists for tuples and text for enums, unlike strict validation of Python values.
    try:
        return model.model_validate_json(json.dumps(data))
    except ValidationError as error:
        return error.errors(include_url=False)


def _normalized(
    model: type[BaseModel], data: Any, errors: list[ErrorDetails], written: Mapping[Place, str]
) -> Any | None:
    """Makes unquoted scalars text where text is required, and removes optional keys without a value.

    Returns the corrected copy of the data, or None if there is nothing to correct.
    """
    normalized = None
    for error in errors:
        place = _place(error)
        if not place:
            continue
        empty = error.get("input") is None and _may_be_left_out(model, place)
        as_written = error["type"] == "string_type" and error.get("input") is not None and place in written
        if not (empty or as_written):
            continue
        normalized = deepcopy(data) if normalized is None else normalized
        parent = normalized
        for step in place[:-1]:
            parent = parent[step]
        if empty:
            del parent[place[-1]]
        else:
            parent[place[-1]] = written[place]
    return normalized


def _may_be_left_out(model: type[BaseModel], place: Place) -> bool:
    field = _fields_around(model, place).get(str(place[-1]))
    return field is not None and not field.is_required()


def _fields_around(model: type[BaseModel], place: Place) -> Mapping[str, FieldInfo]:
    """Returns the fields of the block that contains a location; empty if the location is not in a block."""
    around = type_at(model, place[:-1])
    return around.model_fields if isinstance(around, type) and issubclass(around, BaseModel) else {}


def _place(error: ErrorDetails) -> Place:
    return tuple(step for step in error["loc"] if step != "[key]")


def _distinct(errors: list[ErrorDetails]) -> Iterator[ErrorDetails]:
    """Yields one error per location, and omits the "too short" error for a list with invalid items."""
    places = [_place(error) for error in errors]
    seen: set[Place] = set()
    for error, place in zip(errors, places, strict=True):
        inner = any(len(other) > len(place) and other[: len(place)] == place for other in places)
        if place in seen or (error["type"] == "too_short" and inner):
            continue
        seen.add(place)
        yield error


def _problem(model: type[BaseModel], error: ErrorDetails, data: Any, line: LineOf) -> Problem:
    place = _place(error)
    key = str(place[-1]) if place else ""
    path = shown(place, data)
    if error["type"] == "extra_forbidden":
        message = _unknown_key(model, place)
        return Problem("error", "unknown-key", message, line(place), path)
    if error["type"] == "missing":
        around = f" in {_place_name(place[:-1], data)}" if len(place) > 1 else ""
        return Problem("error", "missing-key", f"`{key}` is missing{around}", line(place[:-1]), path)
    value = error.get("input")
    if error["type"] == "value_error":
        message = f"{_place_name(place, data)} {error['msg'].removeprefix('Value error, ')}"
    elif error["type"] == "too_short":
        message = f"{_place_name(place, data)} is empty; it needs at least one entry"
    else:
        message = f"{_place_name(place, data)} must be {_expected(model, place, error)}, {_instead_of(value)}"
        if error["type"] == "enum" and isinstance(value, str):
            message += did_you_mean(value, [str(member.value) for member in _members(model, place)])
    return Problem("error", "wrong-value", message, line(place), path)


def _place_name(place: Place, data: Any) -> str:
    """Returns the name of a location, for a message."""
    if not place:
        return "the document"
    if not isinstance(place[-1], int):
        return str(place[-1])
    return f"item {place[-1] + 1} of {place[-2]}" if len(place) > 1 else f"item {place[-1] + 1}"


def _unknown_key(model: type[BaseModel], place: Place) -> str:
    key = str(place[-1])
    known = list(_fields_around(model, place))
    home = _block_with(model, key)
    hint = did_you_mean(key, known, cutoff=0.55 if home is None else 0.8)
    if not hint and home is not None:
        hint = f"; it belongs {home}"
    if not hint:
        hint = f"; known here: {', '.join(known)}"
    return f"unknown key `{key}`{hint}"


def _block_with(model: type[BaseModel], key: str) -> str | None:
    if key in model.model_fields:
        return "at the top level"
    for name, field in model.model_fields.items():
        inner = _without_none(field.annotation)
        of_list = get_args(inner)[0] if get_origin(inner) is tuple else inner
        if isinstance(of_list, type) and issubclass(of_list, BaseModel) and key in of_list.model_fields:
            return f"in an entry of `{name}`" if get_origin(inner) is tuple else f"under `{name}`"
    return None


def _instead_of(value: Any) -> str:
    if value is None:
        return "but is empty"
    if isinstance(value, bool):
        return f"not {str(value).lower()}"
    if isinstance(value, str):
        return f"not '{value if len(value) <= 40 else value[:40] + '…'}'"
    if isinstance(value, list):
        return "not a list"
    if isinstance(value, dict):
        return "not a block of keys"
    return f"not {value:g}" if isinstance(value, float) else f"not {value}"


def _expected(model: type[BaseModel], place: Place, error: ErrorDetails) -> str:
    """Returns a description of the type that is required at a location."""
    wanted = type_at(model, place)
    origin = get_origin(wanted)
    if isinstance(wanted, type) and issubclass(wanted, Enum):
        return _one_of([str(member.value) for member in wanted])
    if origin is Literal:
        return _one_of([str(choice) for choice in get_args(wanted)])
    if wanted is int:
        return "a whole number" + _bound(model, place, error)
    if wanted is float:
        return "a number" + _bound(model, place, error)
    if wanted is bool:
        return "true or false"
    if wanted is str:
        return "text" + _bound(model, place, error)
    return "a list" if origin is tuple else "a block of keys"


def _one_of(choices: list[str]) -> str:
    return choices[0] if len(choices) == 1 else f"one of {', '.join(choices[:-1])} or {choices[-1]}"


def _members(model: type[BaseModel], place: Place) -> list[Enum]:
    wanted = type_at(model, place)
    return list(wanted) if isinstance(wanted, type) and issubclass(wanted, Enum) else []


def _bound(model: type[BaseModel], place: Place, error: ErrorDetails) -> str:
    """Returns the limits of a field as a phrase such as ` of at least 1`, or an empty string."""
    field = _fields_around(model, place).get(str(place[-1]))
    least: object = None
    most: object = None
    for bound in _bounds(field) if field is not None else ():
        if isinstance(bound, Ge):
            least = bound.ge
        elif isinstance(bound, Le):
            most = bound.le
        elif isinstance(bound, Gt):
            return f" above {bound.gt}"
        elif isinstance(bound, MaxLen) and error["type"] == "string_too_long":
            return f" of at most {bound.max_length} characters"
        elif isinstance(bound, MinLen):
            return " that is not empty"
    if least is not None and most is not None:
        return f" from {least} to {most}"
    return f" of at least {least}" if least is not None else f" of at most {most}" if most is not None else ""


def _bounds(field: FieldInfo) -> Iterator[object]:
    """Yields the limits of a field. For an optional field, pydantic stores the limits in the field's annotation."""
    yield from field.metadata
    for about in getattr(_without_none(field.annotation), "__metadata__", ()):
        yield from about.metadata if isinstance(about, FieldInfo) else (about,)


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, types.UnionType):
        return next(arg for arg in get_args(annotation) if arg is not type(None))
    return annotation


def type_at(model: type[BaseModel], place: Place) -> Any:
    """Returns the annotation at a location, without Annotated and Optional; None for an unknown location."""
    wanted: Any = model
    for step in place:
        if isinstance(wanted, type) and issubclass(wanted, BaseModel):
            field = wanted.model_fields.get(str(step))
            wanted = field.annotation if field is not None else None
        elif get_origin(wanted) is tuple:
            wanted = get_args(wanted)[0]
        elif get_origin(wanted) is dict:
            wanted = get_args(wanted)[1]
        else:
            return None
        wanted = _without_none(wanted)
        if hasattr(wanted, "__metadata__"):
            wanted = get_args(wanted)[0]
    return wanted
