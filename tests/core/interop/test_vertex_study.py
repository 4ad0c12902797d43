from __future__ import annotations

import json

import pytest
import yaml

from torchyard_core.errors import FileProblem
from torchyard_core.interop.formats import vertex_study
from torchyard_core.sweeps.model import Search
from torchyard_core.sweeps.search_file import dump_search, search_from_text

JOB = """\
displayName: digits tuning
maxTrialCount: 20
parallelTrialCount: 2
maxFailedTrialCount: 3
studySpec:
  metrics: [{metricId: val-loss, goal: MINIMIZE}]
  parameters:
    - {parameterId: lr, doubleValueSpec: {minValue: 0.0001, maxValue: 0.1}, scaleType: UNIT_LOG_SCALE}
    - {parameterId: num-layers, integerValueSpec: {minValue: "1", maxValue: "8"}, scaleType: UNIT_LINEAR_SCALE}
    - {parameterId: batch, discreteValueSpec: {values: [32, 64, 128]}}
    - {parameterId: optimizer, categoricalValueSpec: {values: [adam, sgd]}}
  algorithm: RANDOM_SEARCH
  medianAutomatedStoppingSpec: {useElapsedDuration: true}
  observationNoise: HIGH
trialJobSpec: {workerPoolSpecs: []}
"""


def remarks(text: str) -> list[str]:
    return [one.printed("job.yaml") for one in vertex_study.read(text).remarks]


def test_a_tuning_job_is_a_search() -> None:
    search = vertex_study.read(JOB).search
    assert yaml.safe_load(dump_search(search)) == {
        "version": 1,
        "name": "digits tuning",
        "parameters": {
            "lr": {"distribution": "log_uniform", "low": 0.0001, "high": 0.1},
            "num_layers": {"distribution": "int", "low": 1, "high": 8},
            "batch": {"distribution": "categorical", "values": [32, 64, 128]},
            "optimizer": {"distribution": "categorical", "values": ["adam", "sgd"]},
        },
        "objective": {"metric": "val_loss", "goal": "minimize"},
        "sampler": {"kind": "random"},
        "pruner": {"kind": "median"},
        "trials": 20,
        "parallel": 2,
    }
    assert search_from_text(dump_search(search)).check() == ()
    found = "\n".join(remarks(JOB))
    assert "job.yaml:9: the parameter num-layers is named num_layers" in found
    assert "job.yaml:13: trials are compared by steps, not by elapsed time." in found
    assert '"--lr={params.lr}", "--num_layers={params.num_layers}"' in found


def test_a_job_in_snake_case_and_a_study_alone_are_read() -> None:
    snake = """\
study_spec:
  metrics: [{metric_id: loss, goal: MAXIMIZE}]
  parameters: [{parameter_id: x, double_value_spec: {min_value: 0, max_value: 1}}]
max_trial_count: 4
"""
    search = vertex_study.read(snake).search
    assert (search.number_of_trials, search.objective.goal) == (4, "maximize")
    alone = json.dumps(yaml.safe_load(JOB)["studySpec"])
    assert list(vertex_study.read(alone).search.parameters) == ["lr", "num_layers", "batch", "optimizer"]


def test_an_exported_search_is_read_back() -> None:
    search = vertex_study.read(JOB).search
    for form in vertex_study.FORMS:
        again = vertex_study.read(vertex_study.write(search, form).text).search
        assert again == search


def test_what_vertex_lacks_is_remarked() -> None:
    text = """\
version: 1
parameters: {x: {distribution: uniform, low: 0, high: 0.3, step: 0.1}, y: {distribution: log_int, low: 1, high: 9}}
objective: {metric: loss, goal: minimize}
sampler: {kind: tpe, seed: 1}
pruner: {kind: asha}
trials: 3
"""
    search = search_from_text(text).search
    assert isinstance(search, Search)
    exported = vertex_study.write(search)
    study = yaml.safe_load(exported.text)["studySpec"]
    assert study["parameters"][0] == {"parameterId": "x", "discreteValueSpec": {"values": [0.0, 0.1, 0.2, 0.3]}}
    assert study["parameters"][1]["integerValueSpec"] == {"minValue": "1", "maxValue": "9"}
    assert "algorithm" not in study
    said = " ".join(one.message for one in exported.remarks)
    assert "tpe is replaced" in said
    assert "`seed` is left out" in said
    assert "the pruner asha is left out" in said


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("UNIT_LOG_SCALE", "UNIT_REVERSE_LOG_SCALE", "job.yaml:8: the scale UNIT_REVERSE_LOG_SCALE has no equivalent"),
        ("minValue: 0.0001", "minValue: 1", "job.yaml:8: the range of lr is empty: low 1 is above high 0.1"),
        ("goal: MINIMIZE}", "goal: MINIMIZE}, {metricId: b, goal: MINIMIZE}", "job.yaml:6: these are 2 metrics"),
        ("RANDOM_SEARCH", "GRID_SEARCH", "job.yaml:8: a grid needs a finite list of values, but lr is log_uniform"),
        ("RANDOM_SEARCH", "BEST", "job.yaml:12: the algorithm BEST is not known"),
        ("parameterId: batch", "parameterId: lr", "job.yaml:10: the parameter lr is listed twice"),
        ("studySpec:", "spec:", "there is no `studySpec`"),
    ],
)
def test_what_a_search_cannot_express_is_an_error_with_its_line(old: str, new: str, expected: str) -> None:
    with pytest.raises(FileProblem) as refused:
        vertex_study.read(JOB.replace(old, new))
    assert expected in refused.value.message
