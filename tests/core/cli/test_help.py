"""Tests that the help of each command has a description and an example."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from torchyard_core.cli.root_command import app


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


COMMANDS = dict(commands(typer.main.get_command(app)))


def test_the_commands_are_those_of_the_specification() -> None:
    assert set(COMMANDS) >= {
        *(f"hosts {verb}" for verb in ("list", "add", "remove", "check", "trust")),
        *(f"runs {verb}" for verb in ("list", "show", "logs", "stop", "fetch")),
        *("deploy", "undeploy", "validate", "plan", "run", "status"),
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_an_example_and_answers_programs(name: str) -> None:
    command = COMMANDS[name]
    assert f"Example: torchyard {name}" in command.help
    assert "--json" in {option for parameter in command.params for option in parameter.opts}
    assert all(getattr(parameter, "help", None) for parameter in command.params), command.params


def test_every_command_that_reads_a_file_says_that_it_reads_stdin_too() -> None:
    files = {
        name: parameter.help
        for name, command in COMMANDS.items()
        for parameter in command.params
        if parameter.metavar == "FILE" and parameter.param_type_name == "argument" and name != "gui"
    }
    assert set(files) >= {"validate", "plan", "run", "import", "export", "bookings import"}
    assert {name: text for name, text in files.items() if not text.endswith("; - reads it from stdin.")} == {}
