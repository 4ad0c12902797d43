"""Tests that launch every example with the command, on this computer or on three hosts.

By default, each example runs once, with text output. `make proof` runs each example on both, with text and JSON output
in a terminal and a pipe, and writes docs/proof/examples.md.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.end_to_end.running import REPOSITORY
from tests.end_to_end.training.example_runs import (
    EXAMPLES,
    TENSORFLOW,
    Place,
    View,
    assert_shown,
    launch,
    name_of,
    uses_tensorflow,
)
from tests.fork_server import ForkServer
from tests.lab import Desktop, LabUnavailable
from tests.lab.commands import Commands
from tests.lab_fixtures import LabFactory, unavailable
from tests.warm_python import write_client
from torchyard_core.topology.model import StrategyKind

pytestmark = [pytest.mark.lab, pytest.mark.train]

TABLE = REPOSITORY / "docs" / "proof" / "examples.md"
PLACES = ("this computer", "three hosts")
IMPOSSIBLE = {(example, "three hosts") for example in EXAMPLES if example.stem == "sharded"}
"""Examples that cannot run on three lab hosts: they save a sharded model into a folder that all hosts must share.
"""
SHOWN_HERE = ("digits/this-computer", "digits/sandblaster", "digits/sharded")
"""The examples that run on this computer by default. The others run on three hosts."""
TEXT = {"this computer": View(on_terminal=True, as_json=False), "three hosts": View(on_terminal=False, as_json=False)}
"""How a run is shown by default, by place."""
VIEWS = [View(on_terminal, as_json) for as_json, on_terminal in itertools.product((False, True), (True, False))]
Table = dict[tuple[Path, str, View], str]
"""How each run ended, by example, place and view."""
KINDS = {kind.value for kind in StrategyKind}


@pytest.fixture(scope="module")
def places(
    module_lab: LabFactory, torch_for_hosts: ForkServer, _commands: Commands, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Place]]:
    """Yields this computer and three hosts, each place with its own desktop, for all tests in the module."""
    lab = module_lab(3)
    (python,) = {host.fork_scripts_from(torch_for_hosts) for host in lab.hosts}
    away = Desktop(tmp_path_factory.mktemp("away"), lab, commands=_commands, knows_bandwidths=True, python=python)
    with this_computer(tmp_path_factory.mktemp("here"), torch_for_hosts, _commands) as here:
        hosts = tuple(host.name for host in lab.hosts)
        yield {"this computer": here, "three hosts": Place("three hosts", away, hosts, python)}
    away.close()


@contextmanager
def this_computer(folder: Path, fork_server: ForkServer, commands: Commands) -> Iterator[Place]:
    """Yields a desktop whose only host is this computer, with an agent folder that is removed afterwards."""
    (folder / "bin").mkdir()
    fork_server.serve(write_client(folder / "bin"), os.getpid())
    python = str(folder / "bin" / "python")
    desktop = Desktop(folder / "desktop", commands=commands)
    entry = {"name": "this-computer", "local": True, "python": python, "agent_dir": str(folder / "agent")}
    desktop.fleet_file.write_text(yaml.safe_dump({"version": 1, "hosts": [entry]}))
    try:
        yield Place("this computer", desktop, ("this-computer",), python)
    finally:
        gone = desktop.torchyard("undeploy", "--yes")
        desktop.close()
    assert gone.returncode == 0, gone.stderr


def needs_tensorflow(example: Path) -> None:
    if uses_tensorflow(example) and not (TENSORFLOW / ".setup-done").exists():
        unavailable(LabUnavailable("There is no TensorFlow: `make tensorflow` installs it."))


def kind_of(example: Path) -> str:
    kind: str = yaml.safe_load(example.read_text()).get("strategy", {}).get("kind", "none")
    return kind


@pytest.mark.parametrize(
    ("example", "place"),
    [
        (example, place)
        for example, place in itertools.product(EXAMPLES, PLACES)
        # The TensorFlow examples are run by `test_tensorflow`, and the text example by `test_text_example`.
        if not uses_tensorflow(example) and example.parent.name != "text"
        if (place == "this computer") == (name_of(example) in SHOWN_HERE)
    ],
    ids=lambda value: name_of(value) if isinstance(value, Path) else value,
)
def test_every_example_runs_as_text(places: dict[str, Place], example: Path, place: str) -> None:
    needs_tensorflow(example)
    # Servers send their first report after a second, so runs that show servers are not shortened.
    shows_servers = kind_of(example) in ("sandblaster", "downpour") and place == "this computer"
    shown = launch(example, places[place], TEXT[place], is_short=not shows_servers)
    run = assert_shown(shown, example, places[place])
    if shows_servers:
        servers = {replica["name"] for replica in run["replicas"] if replica["name"].startswith("ps")}
        assert servers <= run["metrics"].keys()


@pytest.fixture(scope="module")
def table() -> Iterator[Table]:
    """Yields a table that collects the runs' results. After all variants have run, writes the table to a file."""
    found: Table = {}
    yield found
    if len(found) == len(EXAMPLES) * len(PLACES) * len(VIEWS):
        TABLE.parent.mkdir(exist_ok=True)
        TABLE.write_text(written(found))


def written(table: Table) -> str:
    columns = list(itertools.product(PLACES, VIEWS))
    lines = [
        "# The examples, in every way that they are run",
        "",
        "Written by `make proof`. *ok*: `torchyard run` ended with 0, and showed the run's end, every replica, its",
        "progress and its result. The digits' scripts train for three epochs.",
        "",
        f"| example | strategy | {' | '.join(f'{place}: {view.name}' for place, view in columns)} |",
        f"|---|---|{'---|' * len(columns)}",
    ]
    for example in EXAMPLES:
        cells = [table[example, place, view] for place, view in columns]
        lines.append(f"| `{name_of(example)}` | {kind_of(example)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


@pytest.mark.proof
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_every_example_runs_in_every_way(
    places: dict[str, Place], table: Table, example: Path, place: str, view: View
) -> None:
    needs_tensorflow(example)
    if (example, place) in IMPOSSIBLE:
        table[example, place, view] = "refused"
        pytest.skip("the hosts of the lab share no folder")
    table[example, place, view] = "failed"
    assert_shown(launch(example, places[place], view), example, places[place])
    table[example, place, view] = "ok"


def test_every_strategy_is_among_the_examples() -> None:
    assert {kind_of(example) for example in EXAMPLES} == KINDS
