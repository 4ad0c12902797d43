"""Launches the topologies of `examples/` on given hosts."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.end_to_end.running import REPOSITORY
from tests.end_to_end.terminals import terminal
from tests.lab import Desktop

EXAMPLES = sorted((REPOSITORY / "examples").glob("*/*.yaml"))
TENSORFLOW = REPOSITORY / ".venv-tensorflow"
SHORTER = {"--epochs": "3", "--windows": "960"}
"""Script options that shorten the training, because these tests check the command and not the result of training.
"""
WITHIN_S = 170.0
LEAST_ACCURACY = 0.5
"""Minimum test accuracy for ten classes after a few epochs; guessing gives 0.1."""
MOST_LOSS = 4.2
"""Maximum validation loss of the text example after a few steps; guessing gives 4.6."""
TRAINERS = ("chief", "worker")
MISTAKES = ("Traceback", "fault in Torchyard", "Error:")


@dataclass(frozen=True)
class Place:
    """The hosts of an example run, and the desktop that launches it."""

    name: str
    desktop: Desktop
    hosts: tuple[str, ...]
    python: str
    """Path of an interpreter with torch and scikit-learn."""


@dataclass(frozen=True)
class View:
    """How a command shows a run: in which output format, and whether on a terminal."""

    on_terminal: bool
    as_json: bool

    @property
    def name(self) -> str:
        return f"{'JSON' if self.as_json else 'text'}, {'terminal' if self.on_terminal else 'pipe'}"


@dataclass(frozen=True)
class Shown:
    """The output and the exit code of a `torchyard run` command."""

    code: int
    text: str
    """stdout and stderr. On a terminal, both are a single text, from which escape sequences have been removed."""
    view: View


def name_of(example: Path) -> str:
    return f"{example.parent.name}/{example.stem}"


def uses_tensorflow(example: Path) -> bool:
    return example.parent.name == "tensorflow"


def launch(
    example: Path, place: Place, view: View, *, is_short: bool = True, setup: Sequence[str] | None = None
) -> Shown:
    """Runs an example to its end with `torchyard run`, on the hosts of `place`.

    Args:
        is_short: Whether to train for only a few epochs if the example's script has an option for this.
        setup: Shell lines that replace the example's `program.setup`.
    """
    settings = _settings(example, place, is_short=is_short, setup=setup)
    arguments: list[str | Path] = ["run", example, *settings, *["--json"] * view.as_json]
    if not view.on_terminal:
        done = place.desktop.torchyard(*arguments, timeout=WITHIN_S)
        return Shown(done.returncode, done.stdout + done.stderr, view)
    with terminal(place.desktop, *arguments) as screen:
        code = screen.read_to_the_end(WITHIN_S)
    # The output also contains lines that were overwritten on the terminal.
    return Shown(code, re.sub(r"\r+\n?", "\n", screen.shown), view)


def _settings(example: Path, place: Place, *, is_short: bool, setup: Sequence[str] | None) -> list[str]:
    """Returns the `--set` options that adapt an example to the hosts and interpreter, and shorten the training."""
    document = yaml.safe_load(example.read_text())
    pools: list[dict[str, Any]] = document["pools"]
    settings: dict[str, Any] = {}
    missing = len(place.hosts) - sum(pool["replicas"] for pool in pools)
    if missing > 0:  # Each host needs at least one replica.
        workers = next(pool for pool in pools if pool["role"] == "worker")
        workers["replicas"] += missing
        settings[f"pools.{workers['name']}.replicas"] = workers["replicas"]
    placed = 0
    for pool in pools:
        own = pool.get("hosts", [])
        if not own or not set(own) <= set(place.hosts):
            is_one = pool["replicas"] == 1
            hosts = [place.hosts[placed % len(place.hosts)]] if is_one else list(place.hosts)
            settings[f"pools.{pool['name']}.hosts"] = hosts
            settings[f"pools.{pool['name']}.placement"] = "spread"
        placed += pool["replicas"]
    program = document["program"]
    if uses_tensorflow(example):
        settings["program.setup"] = [f"source {TENSORFLOW}/bin/activate"]
    elif "command" in program:
        settings["program.setup"] = []
        settings["program.command"] = [place.python, *program["command"][1:]]
    if setup is not None:
        settings["program.setup"] = list(setup)
    script = (example.parent / program.get("script", example.name)).read_text() if is_short else ""
    for option, value in SHORTER.items():
        if option in script:
            settings["program.args"] = [option, value]
    return [f"--set={path}={json.dumps(value)}" for path, value in settings.items()]


def assert_shown(shown: Shown, example: Path, place: Place) -> dict[str, Any]:
    """Asserts that the output shows the run's end, its replicas, its progress and its result.

    Returns the output of `runs show --json`.
    """
    assert shown.code == 0, shown.text
    assert not any(word in shown.text for word in MISTAKES), shown.text
    events = [json.loads(line) for line in shown.text.splitlines() if line.startswith("{")]
    if shown.view.as_json:
        ended = events[-1]
        assert (ended["event"], ended["state"]) == ("run_ended", "succeeded"), shown.text
        run_id = ended["run_id"]
    else:
        assert not events, shown.text
        found = re.search(r"^✓ run (\S+) succeeded after [0-9.]+ s", shown.text, re.MULTILINE)
        assert found, shown.text
        run_id = found[1]
    answer = place.desktop.torchyard("runs", "show", run_id, "--json")
    run: dict[str, Any] = json.loads(answer.stdout)
    replicas: list[dict[str, Any]] = run["replicas"]
    assert {replica["host"] for replica in replicas} == set(place.hosts)
    trainers = sorted(replica["name"] for replica in replicas if replica["name"].startswith(TRAINERS))
    assert_reported(run["metrics"], replicas, document=yaml.safe_load(example.read_text()))
    if shown.view.as_json:
        return run
    chief = trainers[0]
    [(what, number)] = re.findall(rf"{chief} \| (test accuracy|validation loss) ([0-9.]+)", shown.text)
    assert float(number) > LEAST_ACCURACY if what == "test accuracy" else float(number) < MOST_LOSS, shown.text
    for replica in replicas:
        if replica["state"] == "succeeded":
            assert f"{replica['name']} on {replica['host']} succeeded" in shown.text, shown.text
    if chief in run["metrics"]:
        progress = r" step \d+" if shown.view.on_terminal else r"^(chief|worker)-\d+ step \d+"
        assert re.search(progress, shown.text, re.MULTILINE), shown.text
    return run


def assert_reported(metrics: dict[str, Any], replicas: Sequence[dict[str, Any]], *, document: dict[str, Any]) -> None:
    """Asserts that every trainer has reported its steps, if the document has a strategy.

    Servers and reducers do not make steps, and send their first report after a second.
    """
    if document.get("strategy", {}).get("kind", "none") == "none":
        return
    for replica in replicas:
        role = replica["name"].rpartition("-")[0]
        if role in TRAINERS:
            assert metrics[replica["name"]]["step"] > 0
        elif role in ("ps", "reducer"):
            assert metrics.get(replica["name"], {}).get("step") is None
