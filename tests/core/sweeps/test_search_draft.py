"""Tests of a search file as the texts of a form: its YAML, and the fields of problems."""

from __future__ import annotations

from dataclasses import replace

import pytest

from torchyard_core.sweeps.search_draft import ParameterDraft, SearchDraft, argument_for
from torchyard_core.sweeps.search_file import search_from_text
from torchyard_core.topology.file import topology_from_text
from torchyard_core.topology.model import Topology

FILE = """\
# Which learning rate?
version: 1
parameters:
  lr: {distribution: log_uniform, low: 1e-4, high: 0.1}  # as in the paper
  batch: {distribution: categorical, values: [32, 64, "64", true]}
  depth: {distribution: int, low: 1, high: 9, step: 2}
objective: {metric: loss, goal: minimize}
pruner: {kind: median, warmup_steps: 100}
trials: 5000 # many
"""


def topology(*args: str) -> Topology:
    pools = "pools: [{name: w, role: worker, replicas: 1}]"
    text = f"version: 1\nname: digits\n{pools}\nprogram: {{script: a.py, args: {list(args)}}}\n"
    found = topology_from_text(text).topology
    assert found is not None
    return found


def opened(text: str) -> SearchDraft:
    search = search_from_text(text).search
    assert search is not None
    return SearchDraft.of(search)


def problems(draft: SearchDraft, of: Topology | None = None) -> dict[tuple[str | int, ...], str]:
    return draft.problems(search_from_text(draft.text()), of)


def test_a_new_search_has_the_parameters_of_the_arguments_and_no_problem() -> None:
    design = topology("--lr={params.lr}", "--n={params.n_layers}", "--b={params.batch}", "{params.momentum}")
    draft = SearchDraft.new(design)
    assert [parameter.name for parameter in draft.parameters] == ["lr", "n_layers", "batch", "momentum"]
    assert problems(draft, design) == {}
    assert draft.text() == (
        "version: 1\n"
        "parameters:\n"
        "  lr:\n    distribution: log_uniform\n    low: 0.0001\n    high: 0.1\n"
        "  n_layers:\n    distribution: int\n    low: 1\n    high: 4\n"
        "  batch:\n    distribution: categorical\n    values: [32, 64, 128]\n"
        "  momentum:\n    distribution: uniform\n    low: 0\n    high: 1\n"
        "objective: {metric: loss, goal: minimize}\n"
        "sampler: {kind: tpe}\n"
        "trials: 50\n"
        "parallel: 1\n"
    )


def test_an_opened_file_is_written_as_it_was_and_edits_keep_its_comments() -> None:
    draft = opened(FILE)
    assert draft.text(FILE) == FILE
    assert draft.parameters[1].values == "32, 64, '64', true"
    lr = replace(draft.parameters[0], high="0.5")
    changed = replace(draft, parameters=(lr, *draft.parameters[1:]), trials="7")
    assert changed.text(FILE) == FILE.replace("0.1}", "0.5}").replace("5000", "7")
    swapped = replace(draft, parameters=draft.parameters[::-1])
    assert opened(swapped.text(FILE)) == swapped
    renamed = replace(draft, parameters=(replace(lr, name="rate"), *draft.parameters[1:]))
    assert opened(renamed.text(FILE)) == renamed
    assert renamed.text(FILE).startswith("# Which learning rate?\n")


@pytest.mark.parametrize(
    ("parameter", "field", "message"),
    [
        (ParameterDraft("lr", low="2", high="1"), "low", "the range of lr is empty: low 2 is above high 1"),
        (ParameterDraft("lr", low="x", high="1"), "low", "low must be a number, not 'x'"),
        (ParameterDraft("lr", low="1"), "high", "`high` is missing in lr: uniform has `low` and `high`"),
        (ParameterDraft("lr", "number", True, "0", "1"), "low", "low of lr must be above 0 for log_uniform, not 0"),
        (ParameterDraft("lr", "choice", values="1, 1"), "values", "the value 1 of lr is listed twice"),
        (ParameterDraft("lr", "choice", values="[1"), "values", "values must be a list, not '[1'"),
        (ParameterDraft("lr", "choice"), "values", "`values` is missing in lr: categorical has a list of values"),
        (ParameterDraft("l r", low="0", high="1"), "name", "'l r' cannot name a parameter"),
        (ParameterDraft("", low="0", high="1"), "name", "the parameter has no name"),
        (ParameterDraft("n", low="0", high="1"), "name", "there is another parameter n"),
    ],
)
def test_a_problem_of_a_parameter_belongs_to_its_field(parameter: ParameterDraft, field: str, message: str) -> None:
    draft = SearchDraft((ParameterDraft("n", low="0", high="1"), parameter))
    found = problems(draft)
    assert list(found) == [("parameters", 1, field)]
    assert found["parameters", 1, field].startswith(message)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"trials": ""}, ("trials",)),
        ({"trials": "many"}, ("trials",)),
        ({"parallel": "0"}, ("parallel",)),
        ({"metric": ""}, ("metric",)),
        ({"settings": {("sampler", "seed"): "-1"}}, ("sampler", "seed")),
        ({"pruner": "hyperband", "settings": {("pruner", "max_resource"): "0"}}, ("pruner", "max_resource")),
        ({"sampler": "cma_es"}, ("parameters",)),
        ({"parameters": ()}, ("parameters",)),
        ({"sampler": "grid", "trials": ""}, ("parameters", 0, "name")),
    ],
)
def test_a_problem_of_the_search_belongs_to_its_field(changes: dict[str, object], field: tuple[str | int, ...]) -> None:
    draft = replace(SearchDraft((ParameterDraft("x", low="0", high="1"),)), **changes)  # type: ignore[arg-type]  # The types differ between cases.
    assert list(problems(draft)) == [field]


def test_a_value_of_the_wrong_type_hides_no_other_problem() -> None:
    rows = ParameterDraft("x", low="2", high="1"), ParameterDraft("y", low="a", high="1")
    draft = SearchDraft(rows, trials="many", metric="", settings={("sampler", "seed"): "-1"})
    found = problems(draft)
    fields = {("parameters", 0, "low"), ("parameters", 1, "low"), ("trials",), ("metric",), ("sampler", "seed")}
    assert set(found) == fields
    assert found["trials",] == "trials must be a whole number from 1 to 100000, not 'many'"
    assert found["parameters", 1, "low"] == "low must be a number, not 'a'"


def test_settings_of_another_sampler_or_pruner_are_not_written() -> None:
    settings = {("sampler", "startup_trials"): "5", ("pruner", "warmup_steps"): "7", ("sampler", "seed"): "1"}
    draft = replace(SearchDraft.new(None), sampler="random", pruner="asha", settings=settings)
    assert "sampler: {kind: random, seed: 1}\npruner: {kind: asha}\n" in draft.text()
    assert "pruner" not in replace(draft, pruner="none").text()


def test_parameters_and_arguments_that_do_not_match_are_found() -> None:
    draft, design = SearchDraft.new(None), topology("--depth={params.depth}")
    found = problems(draft, design)
    assert set(found) == {("parameters", 0, "name"), ("parameters",)}
    assert (draft.unused(design), draft.missing(design)) == (("lr",), ("depth",))
    assert draft.with_parameters("depth").missing(design) == ()


@pytest.mark.parametrize(
    ("script", "option"),
    [
        ('parser.add_argument("--batch-size", type=int)', "--batch-size"),
        ('parser.add_argument("--batch_size", type=int)', "--batch_size"),
        ('parser.add_argument("--batch_size", "--batch-size")', "--batch_size"),
        ('parser.add_argument("--batch-size-per-gpu")', "--batch_size"),
        ("", "--batch_size"),
    ],
)
def test_an_argument_has_the_name_of_the_scripts_option(script: str, option: str) -> None:
    assert argument_for("batch_size", script) == f"{option}={{params.batch_size}}"
