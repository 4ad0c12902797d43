from __future__ import annotations

from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from torchyard_core.errors import FileProblem
from torchyard_core.sweeps.json_schema import SCHEMA_FILE, schema_text, search_schema
from torchyard_core.sweeps.search_file import SearchFile, dump_search, read_search, search_from_text
from torchyard_core.topology.file import topology_from_text
from torchyard_core.yaml_io.parser import parse_yaml

EXAMPLE = """\
version: 1
name: digits
parameters:
  lr: {distribution: log_uniform, low: 1e-4, high: 0.1}
  batch:
    distribution: categorical
    values: [32, 64]
  depth: {distribution: int, low: 1, high: 5, step: 2}
objective: {metric: loss, goal: minimize}
sampler: {kind: tpe, seed: 1}
pruner: {kind: median, warmup_steps: 2}
trials: 20
parallel: 2
"""


def printed(file: SearchFile) -> list[str]:
    return [problem.printed("s") for problem in file.check()]


def problems(text: str) -> list[str]:
    return printed(search_from_text(text))


def changed(old: str, new: str) -> list[str]:
    assert old in EXAMPLE
    return problems(EXAMPLE.replace(old, new))


def test_a_search_is_read_and_written_again(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(EXAMPLE)
    file = read_search(tmp_path / "s.yaml")
    assert file.check() == ()
    assert file.search is not None
    assert list(file.search.parameters) == ["lr", "batch", "depth"]
    assert file.search.parameters["depth"].grid == (1, 3, 5)
    again = search_from_text(dump_search(file.search))
    assert again.search == file.search


def test_the_message_to_the_hosts_has_every_setting() -> None:
    search = search_from_text(EXAMPLE).search
    assert search is not None
    message = search.as_message()
    assert message["trials"] == 20
    assert message["parallel"] == 2
    assert message["parameters"]["depth"] == {"distribution": "int", "low": 1, "high": 5, "step": 2, "values": None}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("log_uniform, low: 1e-4", "normal, low: 1e-4", "s:4:22: error wrong-value distribution must be one of"),
        ("low: 1e-4, high: 0.1", "low: 0.1, high: 1e-4", "s:4:40: error range the range of lr is empty"),
        ("low: 1e-4", "low: 0", "s:4:40: error range low of lr must be above 0 for log_uniform, not 0"),
        ("low: 1, high: 5", "low: 1.5, high: 5", "s:8:35: error wrong-value low of depth must be a whole number"),
        ("low: 1, high: 5", "high: 5", "s:8:10: error missing-key `low` is missing in depth"),
        ("values: [32, 64]", "values: [32, 64, 32]", "s:7:22: error wrong-value the value 32 of batch is listed twice"),
        ("values: [32, 64]", "values: []", "s:5:3: error missing-key `values` is missing in batch"),
        ("  batch:", "  batch-size:", "s:5:3: error bad-parameter 'batch-size' cannot name a parameter"),
        ("goal: minimize", "goal: least", "s:9:33: error wrong-value goal must be one of minimize or maximize"),
        ("metric: loss", "metric: the loss", "s:9:21: error bad-metric 'the loss' cannot name a metric"),
        ("warmup_steps: 2", "reduction_factor: 2", "s:11:42: error wrong-value `reduction_factor` applies to asha"),
        ("trials: 20\n", "", "s:1:1: error missing-key `trials` is missing: tpe needs a number of trials"),
        ("kind: tpe", "kind: cma_es", "s:5:3: error no-cma-es cma_es cannot search the categorical parameter batch"),
        ("kind: tpe", "kind: grid", "s:4:7: error no-grid a grid needs a finite list of values, but lr is log_uniform"),
        ("parallel: 2", "paralel: 2", "s:13:10: error unknown-key unknown key `paralel`; did you mean `parallel`?"),
    ],
)
def test_an_error_names_line_and_column(old: str, new: str, expected: str) -> None:
    found = changed(old, new)
    assert any(line.startswith(expected) for line in found), found


def test_the_other_problems_of_a_file_with_an_unknown_key_are_reported() -> None:
    text = EXAMPLE.replace("parallel: 2", "paralel: 2").replace("low: 1e-4, high: 0.1", "low: 0.1, high: 1e-4")
    read = search_from_text(text, "s")
    assert read.search is None
    topology = topology_from_text(
        "version: 1\nname: x\npools: [{name: w, role: worker, replicas: 1}]\nprogram: {script: t.py}\n"
    ).topology
    found = [problem.code for problem in read.check(topology)]
    assert sorted(found) == ["parameter-unused", "parameter-unused", "parameter-unused", "range", "unknown-key"]


def test_a_grid_has_no_more_trials_than_points() -> None:
    grid = "version: 1\nparameters: {a: {distribution: uniform, low: 0, high: 0.3, step: 0.1}}\n"
    grid += "objective: {metric: loss, goal: minimize}\nsampler: {kind: grid}\n"
    search = search_from_text(grid).search
    assert problems(grid) == []
    assert search is not None
    assert search.parameters["a"].grid == (0.0, 0.1, 0.2, 0.3)
    assert search.number_of_trials == 4
    assert problems(grid + "trials: 5\n") == [
        "s:5:9: error too-many-trials the grid has 4 points, so 5 trials would repeat some"
    ]


TOPOLOGY = """\
version: 1
name: x
pools: [{name: w, role: worker, replicas: 1, args: ['{params.depht}']}]
program:
  script: a.py
  args: ['--lr={params.lr}', '{params.batch}', '{params.momentum}']
"""


def test_each_parameter_of_an_argument_is_in_the_search() -> None:
    source = topology_from_text(TOPOLOGY, "t")
    assert [problem.printed("t") for problem in search_from_text(EXAMPLE, "s").check_topology(source)] == [
        "t:6:48: error parameter-unknown {params.momentum} is no parameter of s; its parameters are lr, batch, depth",
        "t:3:53: error parameter-unknown {params.depht} is no parameter of s; did you mean {params.depth}?",
    ]
    assert search_from_text("version: 2\n", "s").check_topology(source) == ()


def test_each_parameter_is_in_an_argument() -> None:
    topology = topology_from_text(TOPOLOGY.replace("{params.batch}", "32")).topology
    assert topology is not None
    # The misspelt `depht` is an error of the topology, and not also one of `depth`.
    assert [problem.printed("s") for problem in search_from_text(EXAMPLE).check(topology)] == [
        "s:5:3: error parameter-unused no argument of the topology contains {params.batch}, so batch would not "
        "change the trials; add it to `args` of the program or of a pool",
    ]


@pytest.mark.parametrize(
    ("parameter", "hint"),
    [
        ("log_uniform, low: 1e-4, high: 0.1", "is log_uniform; set its `distribution` to categorical and list its"),
        ("uniform, low: 0, high: 0.1", "is uniform; give it a `step`, or set its `distribution` to categorical"),
    ],
)
def test_a_grid_with_a_continuous_range_names_the_distribution_to_use(parameter: str, hint: str) -> None:
    text = EXAMPLE.replace("log_uniform, low: 1e-4, high: 0.1", parameter).replace("kind: tpe", "kind: grid")
    assert any(hint in line and "`values`" in line for line in problems(text)), problems(text)


def test_text_that_is_not_yaml_is_an_error_with_its_line() -> None:
    with pytest.raises(FileProblem, match=r"s\.yaml:2"):
        search_from_text("version: 1\nparameters: {a\n", "s.yaml")


def test_the_schema_in_resources_is_the_model_s() -> None:
    assert SCHEMA_FILE.read_text(encoding="utf-8") == schema_text(), (
        "run `python -m torchyard_core.sweeps.json_schema` and commit resources/search.schema.json"
    )
    validator = Draft202012Validator(search_schema())
    assert list(validator.iter_errors(parse_yaml(EXAMPLE, "x").data)) == []
    assert list(validator.iter_errors(parse_yaml(EXAMPLE.replace("goal: minimize", "goal: low"), "x").data)) != []
