"""Tests that each next step yields a command line that can be parsed, and that no hint contains a command as text."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer

from tests import REPOSITORY
from torchyard_agent.protocol import jsonrpc
from torchyard_core import next_steps as steps
from torchyard_core.cli.root_command import app
from torchyard_core.errors import TorchyardError, agent_advice, agent_problem
from torchyard_core.next_steps import NextStep

KINDS = NextStep.__subclasses__()
"""All kinds of next steps. A test of the window uses this list, too."""


def example(kind: type[NextStep]) -> NextStep:
    """Returns a NextStep of this type, with a value in every field."""
    values: dict[str, Any] = {one.name: ("x",) if "tuple" in str(one.type) else "x" for one in fields(kind)}
    given: dict[type[NextStep], dict[str, Any]] = {
        steps.SendSecrets: {"options": ("--secret", "x")},
        steps.StopRun: {"options": ("--force",)},
        steps.WriteTrial: {"options": ("--trial", "3")},
        steps.SetUpTeam: {"options": ("--member", "x")},
        steps.ListBookings: {"option": "--mine"},
        steps.BookGpus: {"gpus": "gpu-a:0-1,gpu-b:2", "length": "8h"},
        steps.LaunchAt: {"verb": "sweep", "arguments": ("a.yaml", "b.yaml")},
        steps.LaunchWithBooking: {"verb": "sweep", "arguments": ("a.yaml", "b.yaml")},
        steps.JoinWaitlist: {"count": "4"},
    }
    return kind(**values | given.get(kind, {}))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_each_step_is_a_command_line_that_parses(kind: type[NextStep]) -> None:
    made = example(kind)
    name, *words = shlex.split(made.command_line())
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    assert name == "torchyard"
    command.make_context(command.name, words)
    assert made.sentence().endswith(".")
    assert "{" not in made.sentence()


def test_values_are_quoted_for_a_shell() -> None:
    assert steps.TrustKey("a b").command_line() == "torchyard hosts trust 'a b'"
    assert steps.CheckHosts().command_line() == "torchyard hosts check"
    assert steps.CheckHosts(("a", "b")).command_line() == "torchyard hosts check a b"
    at = steps.LaunchAt(("my run.yaml", "-d"), "2031-01-08 12:00", "6h")
    assert shlex.split(at.command_line())[2:] == ["my run.yaml", "-d", "--at", "2031-01-08 12:00", "--book", "6h"]


def test_an_error_has_its_advice_as_text_and_as_steps() -> None:
    error = TorchyardError("it broke", hint=("Look at it.", steps.CheckHosts(("gpu-a",)), "Then try again."))
    assert error.next == (steps.CheckHosts(("gpu-a",)),)
    assert error.hint == "Look at it. `torchyard hosts check gpu-a` finds what each host has now. Then try again."
    assert error.sentence() == f"it broke. {error.hint}"
    assert error.to_json() == {"code": "failed", "message": "it broke", "hint": error.hint}
    assert TorchyardError("again", hint=error.advice).next == error.next


def test_an_agents_error_gets_its_step_by_its_code() -> None:
    sent = jsonrpc.RpcError("the run r-1 is alive there", "run_alive", "Stop it first.", run_id="r-1")
    read = jsonrpc.error_of(jsonrpc.parse(jsonrpc.error_response(1, sent)))
    assert agent_advice("gpu-a", read.code, read.hint, read.run_id) == ("Stop it first.", steps.StopRun("r-1"))
    assert agent_advice("gpu-a", "run_alive", "") == ("", steps.ListRuns())
    full = agent_problem("gpu-a", {"message": "full", "code": "disk_nearly_full", "hint": "Delete old runs."})
    assert full.next == (steps.ListRuns(), steps.SetHostField("gpu-a", "agent_dir"))
    assert full.hint.startswith("Delete old runs. `torchyard runs list` shows all runs. Set `agent_dir` of gpu-a in")
    assert agent_problem("gpu-a", {"message": "full"}).next == ()
    torch = agent_problem("gpu-a", {"message": "torch is missing", "code": "no_torch", "hint": "Install it."})
    assert torch.next == (steps.SetHostField("gpu-a", "python"),)
    assert torch.hint.startswith("Install it. Set `python` of gpu-a in the fleet file, then run `torchyard hosts")


def texts(tree: ast.AST) -> Iterator[str]:
    """Yields the string literals of a syntax tree, except for docstrings."""
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


def hints(tree: ast.AST) -> Iterator[str]:
    """Yields the string literals of all hints in a syntax tree."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "hint":
            yield from texts(node.value)


def test_no_hint_names_a_command_as_text() -> None:
    core, agent = REPOSITORY / "core/torchyard_core", REPOSITORY / "agent/torchyard_agent"
    remarks = core / "cli"
    named: list[tuple[Path, str]] = []
    for path in (*core.rglob("*.py"), *(agent / "daemon").rglob("*.py"), *(agent / "telemetry").rglob("*.py")):
        found = (hints if path.is_relative_to(remarks) else texts)(ast.parse(path.read_text(encoding="utf-8")))
        named += [(path, text) for text in found if "`torchyard " in text]
    assert named == []
