"""Tests of the preflight check that Optuna is installed on the primary of a sweep."""

from __future__ import annotations

from typing import Any

from tests.core.examples import host
from torchyard_core.launch.planning import LaunchContext
from torchyard_core.launch.rank_assignment import plan
from torchyard_core.launch.sweeps.sweep_launch import check_packages
from torchyard_core.sweeps.search_file import search_from_text
from torchyard_core.topology.file import topology_from_text

SEARCH = """\
version: 1
parameters: {x: {distribution: uniform, low: 0, high: 1}, y: {distribution: uniform, low: 0, high: 1}}
objective: {metric: loss, goal: minimize}
sampler: {kind: %s}
trials: 3
"""


def check(packages: dict[str, str], sampler: str = "tpe", setup: tuple[str, ...] = ()) -> Any:
    text = "version: 1\nname: x\npools: [{name: w, role: worker, replicas: 1}]\nprogram: {script: a.py}\n"
    topology, search = topology_from_text(text).topology, search_from_text(SEARCH % sampler).search
    assert topology is not None
    assert search is not None
    facts = {"gpu-a": {"python": {"path": "/opt/env/bin/python"}, "packages": packages}}
    return check_packages(search, setup, LaunchContext(plan(topology, [host("gpu-a")]), {}, {}, facts))


def test_optuna_is_needed_on_the_primary() -> None:
    assert check({"optuna": "4.9.0"}).message == "Optuna 4.9.0"
    missing = check({})
    assert not missing.ok
    assert missing.message == (
        "Optuna is not installed for /opt/env/bin/python on gpu-a, where the sweep chooses its trials."
    )
    assert missing.hint == "Install it there with `/opt/env/bin/python -m pip install 'optuna>=4.2,<5'`."


def test_cma_es_needs_a_package_of_its_own() -> None:
    lacking = check({"optuna": "4.9.0"}, "cma_es")
    assert not lacking.ok
    assert lacking.message.startswith("the package cmaes is not installed")
    assert "cmaes" in lacking.hint
    assert check({"optuna": "4.9.0", "cmaes": "0.13"}, "cma_es").ok


def test_setup_may_provide_optuna() -> None:
    found = check({}, setup=("source .venv/bin/activate",))
    assert found.ok
    assert found.warning
