"""Conversion between the `studySpec` of Vertex AI's HyperparameterTuningJob and search files.

Source: the REST resources `HyperparameterTuningJob` and `StudySpec`. Keys are in camelCase, or in snake_case as in the
Python client. Vertex AI appends `--NAME=VALUE` to the arguments of each trial. Torchyard instead replaces
`{params.NAME}` in the arguments.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from torchyard_core.errors import UsageError
from torchyard_core.interop.document_reader import refuse
from torchyard_core.interop.document_writer import Exported
from torchyard_core.interop.formats.vertex import VertexDocument
from torchyard_core.interop.remarks import Remark
from torchyard_core.problems import Place, no_lines
from torchyard_core.sweeps.model import (
    MAX_PARALLEL,
    MAX_TRIALS,
    Distribution,
    Parameter,
    PrunerKind,
    SamplerKind,
    Search,
)
from torchyard_core.sweeps.search_checks import check_search
from torchyard_core.yaml_io.model_validation import validate
from torchyard_core.yaml_io.writer import dump_yaml

FORMS = ("yaml", "json")
_SAMPLERS = {
    "ALGORITHM_UNSPECIFIED": SamplerKind.TPE,
    "GRID_SEARCH": SamplerKind.GRID,
    "RANDOM_SEARCH": SamplerKind.RANDOM,
}
_KINDS = ("doubleValueSpec", "integerValueSpec", "categoricalValueSpec", "discreteValueSpec")
_LINEAR = ("UNIT_LINEAR_SCALE", "SCALE_TYPE_UNSPECIFIED")
_CLOUDS = dict.fromkeys(
    (
        "name", "state", "createTime", "startTime", "endTime", "updateTime", "error", "labels", "encryptionSpec",
        "trials",
    ),
    "it is that cloud's",
) | {
    "trialJobSpec": "the import of the format vertex reads it as a topology",
    "maxFailedTrialCount": "failed trials count, and the sweep goes on",
}  # fmt: skip
_OTHER_STOPPING = dict.fromkeys(
    ("decayCurveStoppingSpec", "convexAutomatedStoppingSpec", "convexStopConfig"),
    "of its rules for early stopping, only the median has an equivalent",
) | {
    "observationNoise": "Optuna's samplers allow for noise",
    "studyStoppingConfig": "a sweep ends after its number of trials",
    "transferLearningConfig": "a sweep learns from its own trials only",
}


@dataclass(frozen=True)
class ImportedSearch:
    """The search of an imported document, with remarks."""

    search: Search
    remarks: tuple[Remark, ...]


def read(text: str, source: str = "job.yaml") -> ImportedSearch:
    """Reads a tuning job, or its studySpec alone. Raises FileProblem for a study that a search cannot express."""
    reader = VertexDocument.of(text, source)
    study: Place = reader.key((), "studySpec")
    if study[-1] in reader.block(()):
        reader.leave_beyond((), ("studySpec", "displayName", "maxTrialCount", "parallelTrialCount"), _CLOUDS)
    elif reader.key((), "parameters")[-1] in reader.block(()):
        study = ()
    else:
        reader.stop("there is no `studySpec`.", (), "It is a key of a HyperparameterTuningJob.")
    stopping = reader.key(study, "medianAutomatedStoppingSpec")
    carried = ("metrics", "parameters", "algorithm", "medianAutomatedStoppingSpec", "measurementSelectionType")
    reader.leave_beyond(study, carried, _OTHER_STOPPING)
    data: dict[str, Any] = {"version": 1}
    if study and (name := (reader.text(reader.key((), "displayName")) or "").strip()[:100]):
        data["name"] = name
    places = {}
    parameters = reader.key(study, "parameters")
    for number in range(len(reader.items(parameters))):
        place = (*parameters, number)
        name, parameter = _parameter(reader, place)
        if name in places:
            reader.stop(f"the parameter {name} is listed twice.", place)
        places[name] = place
        data.setdefault("parameters", {})[name] = parameter
    if not places:
        reader.stop("there are no parameters.", parameters)
    data["objective"] = _objective(reader, reader.key(study, "metrics"))
    algorithm = reader.text(reader.key(study, "algorithm")) or "ALGORITHM_UNSPECIFIED"
    if algorithm not in _SAMPLERS:
        hint = f"Allowed are {', '.join(_SAMPLERS)}."
        reader.stop(f"the algorithm {algorithm} is not known.", reader.key(study, "algorithm"), hint)
    data["sampler"] = {"kind": _SAMPLERS[algorithm].value}
    if algorithm == "ALGORITHM_UNSPECIFIED":
        reader.remark("the algorithm of Vertex AI Vizier is replaced by tpe.")
    if stopping[-1] in reader.block(study):
        data["pruner"] = {"kind": PrunerKind.MEDIAN.value}
        elapsed = reader.key(stopping, "useElapsedDuration")
        if reader.at(elapsed):
            reader.remark("trials are compared by steps, not by elapsed time.", elapsed)
    selection = reader.key(study, "measurementSelectionType")
    if reader.text(selection) == "BEST_MEASUREMENT":
        reader.remark("the last reported value of a trial counts, not its best.", selection)
    count, parallel = reader.key((), "maxTrialCount"), reader.key((), "parallelTrialCount")
    if not study or count[-1] not in reader.block(()):
        reader.remark("`maxTrialCount` is missing: set `trials`, here 1.")
    data["trials"] = reader.whole(count, 1, least=1, most=MAX_TRIALS) if study else 1
    data["parallel"] = reader.whole(parallel, 1, least=1, most=MAX_PARALLEL) if study else 1
    arguments = ", ".join(f'"--{name}={{params.{name}}}"' for name in places)
    reader.remark(f"the topology's `args` must contain the parameters: [{arguments}].")
    return ImportedSearch(_built(reader, data, places, parameters), tuple(reader.remarks))


def _built(reader: VertexDocument, data: dict[str, Any], places: dict[str, Place], parameters: Place) -> Search:
    search, problems = validate(Search, data, {}, no_lines)
    if search is None:
        sentences = "; ".join(dict.fromkeys(problem.message for problem in problems))
        refuse(reader.document.source, reader.line(parameters), f"this makes no search: {sentences}.")
    for found in check_search(search):
        place = places.get(str(found.place[1]), parameters) if len(found.place) > 1 else parameters
        reader.stop(f"{found.message}.", place)
    return search


def _parameter(reader: VertexDocument, place: Place) -> tuple[str, dict[str, Any]]:
    reader.leave_beyond(place, ("parameterId", "scaleType", *_KINDS, "conditionalParameterSpecs"), {})
    written = reader.text(reader.key(place, "parameterId")) or ""
    name = re.sub(r"[^A-Za-z0-9_]", "_", written)
    if name[:1].isdecimal():
        name = f"_{name}"
    if name != written and name:
        reader.remark(f"the parameter {written} is named {name}: letters, digits and _ only.", place)
    conditional = reader.key(place, "conditionalParameterSpecs")
    if reader.items(conditional):
        reader.stop("conditional parameters have no equivalent.", conditional, "Make a study of each condition.")
    given = [kind for kind in _KINDS if reader.key(place, kind)[-1] in reader.block(place)]
    if len(given) != 1:
        reader.stop(f"the parameter {written} needs one of {', '.join(_KINDS)}.", place)
    kind = given[0]
    spec = reader.key(place, kind)
    scale_place = reader.key(place, "scaleType")
    scale = reader.text(scale_place) or _LINEAR[0]
    if kind in ("categoricalValueSpec", "discreteValueSpec"):
        listed = reader.key(spec, "values")
        if scale not in _LINEAR:
            reader.remark("the scale of listed values is left out: each is drawn by itself.", scale_place)
        values: list[Any] = reader.words(listed)
        if kind == "discreteValueSpec":
            values = [_tidy(_number(reader, (*listed, number))) for number in range(len(values))]
        return name, {"distribution": Distribution.CATEGORICAL.value, "values": values}
    if scale not in (*_LINEAR, "UNIT_LOG_SCALE"):
        reader.stop(
            f"the scale {scale} has no equivalent.", scale_place, "Allowed are UNIT_LINEAR_SCALE and UNIT_LOG_SCALE."
        )
    is_whole, is_log = kind == "integerValueSpec", scale == "UNIT_LOG_SCALE"
    distribution = (
        (Distribution.LOG_INT if is_log else Distribution.INT)
        if is_whole
        else (Distribution.LOG_UNIFORM if is_log else Distribution.UNIFORM)
    )
    least, most = _number(reader, reader.key(spec, "minValue")), _number(reader, reader.key(spec, "maxValue"))
    if reader.key(spec, "defaultValue")[-1] in reader.block(spec):
        reader.remark("the default of a parameter is left out: the sampler chooses.", reader.key(spec, "defaultValue"))
    return name, {"distribution": distribution.value, "low": least, "high": most}


def _objective(reader: VertexDocument, place: Place) -> dict[str, str]:
    metrics = reader.items(place)
    if len(metrics) != 1:
        reader.stop(f"these are {len(metrics)} metrics.", place, "A sweep has one objective.")
    metric = (*place, 0)
    reader.leave_beyond(metric, ("metricId", "goal"), {"safetyConfig": "it has no equivalent"})
    name, goal = reader.text(reader.key(metric, "metricId")) or "", reader.text(reader.key(metric, "goal"))
    if goal not in ("MINIMIZE", "MAXIMIZE"):
        reader.stop(f"the goal of {name} is {goal or 'missing'}.", metric, "Allowed are MINIMIZE and MAXIMIZE.")
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
    if plain != name:
        reader.remark(f"the metric {name} is named {plain}: report it under this name.", metric)
    return {"metric": plain, "goal": goal.lower()}


def _number(reader: VertexDocument, place: Place) -> float:
    """Returns the number at a location. Google's APIs write 64-bit integers as strings, which are accepted."""
    try:
        found = float(reader.text(place) or "")
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        reader.stop(f"`{place[-1]}` is no number.", place)
    return found


def _tidy(number: float) -> float | int:
    return int(number) if number.is_integer() else number


def write(search: Search, form: str | None = None) -> Exported:
    """Writes a valid search as a tuning job without its trialJobSpec. Raises UsageError for an unknown form."""
    if form is not None and form not in FORMS:
        raise UsageError(f"there is no form {form}.", code="no_format", hint=f"It is written as {', '.join(FORMS)}.")
    remarks = [Remark("add `trialJobSpec`: the export of the topology as vertex writes it.")]
    if search.sampler.kind in (SamplerKind.TPE, SamplerKind.CMA_ES):
        remarks.append(Remark(f"{search.sampler.kind} is replaced by the algorithm of Vertex AI Vizier."))
    if search.sampler.seed is not None:
        remarks.append(Remark("`seed` is left out: Vertex AI has none."))
    study: dict[str, Any] = {
        "metrics": [{"metricId": search.objective.metric, "goal": search.objective.goal.value.upper()}],
        "parameters": [_written(name, parameter) for name, parameter in search.parameters.items()],
    }
    algorithm = {kind: name for name, kind in _SAMPLERS.items()}.get(search.sampler.kind)
    if algorithm in ("GRID_SEARCH", "RANDOM_SEARCH"):
        study["algorithm"] = algorithm
    if search.pruner.kind is PrunerKind.MEDIAN:
        study["medianAutomatedStoppingSpec"] = {"useElapsedDuration": False}
    elif search.pruner.kind is not PrunerKind.NONE:
        remarks.append(Remark(f"the pruner {search.pruner.kind} is left out: Vertex AI has none like it."))
    job = {
        "displayName": search.name or "search",
        "studySpec": study,
        "maxTrialCount": search.number_of_trials,
        "parallelTrialCount": search.parallel,
    }
    text = json.dumps(job, indent=2, ensure_ascii=False) + "\n" if form == "json" else dump_yaml(job)
    return Exported(text, tuple(remarks))


def _written(name: str, parameter: Parameter) -> dict[str, Any]:
    kind = parameter.distribution
    if kind is Distribution.CATEGORICAL:
        assert parameter.values is not None
        numbers = [
            value for value in parameter.values if isinstance(value, (int, float)) and not isinstance(value, bool)
        ]
        if len(numbers) == len(parameter.values):
            return {"parameterId": name, "discreteValueSpec": {"values": sorted(numbers)}}
        texts = [str(value).lower() if isinstance(value, bool) else str(value) for value in parameter.values]
        return {"parameterId": name, "categoricalValueSpec": {"values": texts}}
    if parameter.step is not None:
        grid = parameter.grid
        assert grid is not None
        return {"parameterId": name, "discreteValueSpec": {"values": list(grid)}}
    scale = "UNIT_LOG_SCALE" if kind in (Distribution.LOG_UNIFORM, Distribution.LOG_INT) else "UNIT_LINEAR_SCALE"
    assert parameter.low is not None
    assert parameter.high is not None
    if parameter.is_whole:
        # Google's APIs represent 64-bit integers as strings in JSON.
        spec: dict[str, Any] = {
            "integerValueSpec": {"minValue": str(int(parameter.low)), "maxValue": str(int(parameter.high))}
        }
    else:
        spec = {"doubleValueSpec": {"minValue": parameter.low, "maxValue": parameter.high}}
    return {"parameterId": name, **spec, "scaleType": scale}
