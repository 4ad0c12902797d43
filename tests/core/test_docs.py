"""Tests that the documentation describes all commands, options, keys with their defaults, and methods, and has no
broken links.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from tools import strategy_pictures

from tests import REPOSITORY
from tests.core.problem_codes import problem_codes
from torchyard_agent.daemon.rpc_methods import Methods
from torchyard_agent.keeper.keeper import Keeper
from torchyard_agent.keeper.timeouts import Timeouts
from torchyard_agent.protocol import metrics_report
from torchyard_agent.protocol.placeholders import NAMES
from torchyard_core.cli.root_command import app
from torchyard_core.fleet import cluster
from torchyard_core.fleet.inventory import FleetModel, Host, read_fleet
from torchyard_core.sweeps.model import (
    Distribution,
    Objective,
    Parameter,
    Pruner,
    PrunerKind,
    Sampler,
    SamplerKind,
    Search,
)
from torchyard_core.sweeps.search_file import search_from_text
from torchyard_core.topology.file import topology_from_text
from torchyard_core.topology.model import Pool, Program, Strategy, StrategyKind, Topology
from torchyard_core.topology.strategies.reduction_cost import fastest_reduction
from torchyard_core.topology.strategies.registry import SHARED_SETTINGS, all_specs
from torchyard_core.topology.strategies.spec import StrategySpec
from torchyard_core.user_settings import UserSettings
from torchyard_roles import Cluster

DOCS = REPOSITORY / "docs"
PAGES = sorted(
    [
        *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md") if (REPOSITORY / name).exists()),
        *DOCS.rglob("*.md"),
        *(REPOSITORY / "examples").rglob("README.md"),
    ]
)
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def text_of(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    """Returns the text between the heading that begins with `heading` and the next heading of the same or a higher
    level.
    """
    level = len(heading) - len(heading.lstrip("#"))
    found = re.search(rf"^{re.escape(heading)}\b.*?(?=^#{{1,{level}}} |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"there is no section {heading}"
    return found[0]


def blocks(text: str, language: str) -> list[str]:
    return [block for kind, block in _FENCED.findall(text) if kind == language]


# Tests of the documentation of commands


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


GROUP: Any = typer.main.get_command(app)
COMMANDS = dict(commands(GROUP))


def options(command: Any) -> set[str]:
    """Returns the options of a command in all spellings, except for those that every command has."""
    spellings = {spelling for parameter in command.params for spelling in parameter.opts if spelling[0] == "-"}
    return spellings - {"--json", "-h", "--help"}


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_a_section_that_names_its_options(name: str) -> None:
    described = section(text_of("command.md"), f"### torchyard {name}")
    missing = {spelling for spelling in options(COMMANDS[name]) if f"`{spelling}" not in described}
    assert not missing


def test_no_command_is_described_that_there_is_not() -> None:
    headings = re.findall(r"^### torchyard ([a-z -]+[a-z])", text_of("command.md"), re.MULTILINE)
    assert sorted(headings) == sorted(COMMANDS)


def test_the_options_before_the_command_are_described() -> None:
    before = text_of("command.md").split("\n## ", 1)[0]
    wanted = {*options(GROUP), "--json", "-h", "--help"}
    assert not {spelling for spelling in wanted if f"`{spelling}" not in before}


# Tests of the documentation of file formats


def rows(text: str) -> dict[str, str]:
    """Returns the default of each key in a table of keys."""
    return dict(re.findall(r"^\| `(\w+)` \| (.*?) \| ", text, re.MULTILINE))


BLOCKS = [
    ("topology-file.md", "## At the top", Topology),
    ("topology-file.md", "## strategy", Strategy),
    ("topology-file.md", "## pools", Pool),
    ("topology-file.md", "## program", Program),
    ("fleet-file.md", "## At the top", FleetModel),
    ("fleet-file.md", "## hosts", Host),
    ("fleet-file.md", "## clusters", cluster.Cluster),
    ("fleet-file.md", "## login", cluster.Login),
    ("settings.md", "## Keys", UserSettings),
]


@pytest.mark.parametrize(("page", "heading", "model"), BLOCKS)
def test_each_key_of_a_file_is_in_its_table_with_its_default(page: str, heading: str, model: type[BaseModel]) -> None:
    described = rows(section(text_of(page), heading))
    # A setting that applies to only one strategy may be described on that strategy's page instead.
    own = {setting.key for spec in all_specs() for setting in spec.own_settings} if model is Strategy else set()
    assert set(described) <= set(model.model_fields) <= {*described, *own}
    for key in described:
        field = model.model_fields[key]
        if field.is_required():
            assert described[key] == "required", key
        elif (shown := default_shown(field.get_default(call_default_factory=True))) is not None:
            assert described[key].strip("`") == shown, key


def default_shown(value: Any) -> str | None:
    """Returns a default as the tables show it, or None if a table may describe it freely."""
    assert value is not PydanticUndefined
    if value is None or isinstance(value, BaseModel) or value in ((), {}):
        return None
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)


def test_each_problem_and_placeholder_is_named() -> None:
    text = text_of("topology-file.md") + text_of("fleet-file.md")
    assert not {code for code in problem_codes() if f"`{code}`" not in text}
    assert not {name for name in NAMES if f"`{{{name}}}`" not in text}


WHOLE = [block for page in PAGES for block in blocks(page.read_text(encoding="utf-8"), "yaml") if "version:" in block]


def test_the_example_search_and_its_topology_fit() -> None:
    program, search = blocks(text_of("search-file.md"), "yaml")
    topology = topology_from_text(f"version: 1\nname: x\npools: [{{name: w, role: worker, replicas: 1}}]\n{program}")
    assert topology.topology is not None
    assert search_from_text(search).check(topology.topology) == ()


def test_each_key_of_a_search_file_is_described() -> None:
    text = text_of("search-file.md")
    for model in (Search, Parameter, Objective, Sampler, Pruner):
        assert not {key for key in model.model_fields if key not in text}, model
    for words in (Distribution, SamplerKind, PrunerKind):
        assert not {word for word in words if f"`{word}`" not in text}, words


@pytest.mark.parametrize("text", [block for block in WHOLE if "hosts:\n" not in block and "objective:" not in block])
def test_example_topologies_are_right(text: str) -> None:
    read = topology_from_text(text, "example.yaml")
    assert [problem.printed("example.yaml") for problem in read.check() if problem.severity == "error"] == []


def test_there_are_example_topologies() -> None:
    assert len([block for block in blocks(text_of("topology-file.md"), "yaml") if "version:" in block]) >= 3


def test_the_example_fleet_is_right(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    [example] = blocks(text_of("fleet-file.md"), "yaml")
    file.write_text(example, encoding="utf-8")
    read = read_fleet(file)
    assert read.problems == ()
    assert [host.name for host in read.hosts] == ["this-computer", "gpu-a", "gpu-b", "gpu-c"]
    assert [one.name for one in read.clusters] == ["hpc"]


# Tests of the documentation of the protocol and of the calls that scripts make


def test_each_method_of_the_daemon_is_in_the_table_and_no_other() -> None:
    table = section(text_of("protocol.md"), "### What the daemon answers")
    nothing: Any = None
    methods = Methods("", {"node": ""}, nothing, nothing, nothing).table()
    assert set(re.findall(r"^\| `([\w.]+)` \|", table, re.MULTILINE)) == set(methods)


def test_each_method_of_a_keeper_is_named() -> None:
    async def names() -> list[str]:
        keeper = Keeper("", "node", "run", Timeouts())
        keeper._metrics.close()
        return list(keeper._methods())

    described = section(text_of("protocol.md"), "### What a keeper answers")
    assert not {name for name in asyncio.run(names()) if f"`{name}`" not in described}


def test_each_metric_of_a_report_is_named() -> None:
    for page in ("protocol.md", "training-script.md"):
        assert not {name for name in metrics_report.METRICS if f"`{name}`" not in text_of(page)}, page


def test_each_call_of_the_cluster_is_described() -> None:
    calls = {name for name in vars(Cluster) if not name.startswith("_")}
    assert not {name for name in calls if f"cluster.{name}" not in text_of("training-script.md")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_python_examples_compile(page: Path) -> None:
    for block in blocks(page.read_text(encoding="utf-8"), "python"):
        compile(block, str(page), "exec")


# Tests of the documentation of strategies


SPECS = [spec for spec in all_specs() if spec.kind is not StrategyKind.NONE]


def page_of(kind: StrategyKind) -> str:
    return text_of(f"strategies/{kind.value.replace('_', '-')}.md")


def has_setting(page: str, key: str) -> bool:
    return f"`{key}`" in page or f"  {key}: " in page


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.kind.value)
def test_each_strategy_has_a_page_with_its_own_settings(spec: StrategySpec) -> None:
    name = spec.kind.value.replace("_", "-")
    page = page_of(spec.kind)
    assert (f"](../pictures/strategies/{name}.svg)" in page) is (name in strategy_pictures.PICTURES)
    assert f"  kind: {spec.kind.value}\n" in page
    assert [setting.key for setting in spec.own_settings if not has_setting(page, setting.key)] == []
    assert f"({name}.md)" in text_of("strategies/README.md")
    for heading in ("## When to use it", "## What it costs", "## Settings", "## When something fails"):
        assert section(page, heading), heading


def test_each_shared_setting_is_on_the_page_of_a_strategy_that_uses_it() -> None:
    for setting in SHARED_SETTINGS:
        users = [spec.kind for spec in SPECS if setting.key in spec.settings]
        assert any(has_setting(page_of(kind), setting.key) for kind in users), setting.key


@pytest.mark.parametrize("name", strategy_pictures.PICTURES)
def test_the_pictures_of_strategies_are_those_that_are_drawn_now(name: str) -> None:
    drawn = strategy_pictures.PICTURES[name]().svg()
    assert (DOCS / "pictures" / "strategies" / f"{name}.svg").read_text(encoding="utf-8") == drawn


def test_the_times_of_plans_are_those_of_the_arithmetic() -> None:
    table = section(text_of("strategies/README.md"), "## Which plan reducers follow")
    rows = re.findall(r"^\| N=(\d+), k=(\d+) \|(.*)\|$", table, re.MULTILINE)
    assert len(rows) >= 5
    for workers, reducers, cells in rows:
        shown = dict(zip(("ring", "reducers", "mixed"), map(str.strip, cells.split("|")), strict=True))
        found = fastest_reduction(int(workers), int(reducers))
        assert [name for name, cell in shown.items() if cell.startswith("**")] == [found.best.value]
        times = {way.value: f"{time:.2f}" for way, time in found.times.items()}
        assert {name: cell.strip("*") for name, cell in shown.items() if cell} == times


# Tests of links between pages


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_relative_links_lead_to_what_is_there(page: Path) -> None:
    prose = _FENCED.sub("", page.read_text(encoding="utf-8"))
    wrong = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    assert wrong == []


def anchors(page: Path) -> set[str]:
    """Returns a page's headings in the form in which links refer to them."""
    headings = re.findall(r"^#+ (.*)$", _FENCED.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_the_readme_begins_with_two_commands() -> None:
    _, first = _FENCED.findall((REPOSITORY / "README.md").read_text(encoding="utf-8"))[0]
    assert [line.split("#")[0].strip() for line in first.splitlines()] == ["make run", "make test"]
