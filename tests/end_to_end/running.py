"""Runs the `torchyard` command and reads the events of the runs that it launches."""

from __future__ import annotations

import json
import subprocess
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.lab import Desktop, Lab, LabHost
from tests.waiting import wait_until

REPOSITORY = Path(__file__).parents[2]
DIGITS = REPOSITORY / "examples" / "digits"
PROGRAMS = REPOSITORY / "tests" / "roles" / "programs"

Event = dict[str, Any]
Found = TypeVar("Found")


@dataclass(frozen=True)
class Outcome:
    """The events and the exit code of `torchyard run --json`."""

    code: int
    events: list[Event]
    stderr: str

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event.get("event") == kind]

    @property
    def run_id(self) -> str:
        return str(self.of("run_submitted")[0]["run_id"])

    @property
    def ended(self) -> Event:
        """Returns the `run_ended` event, after checking that it is the last event."""
        assert self.events[-1]["event"] == "run_ended", (self.events[-1], self.stderr)
        return self.events[-1]

    @property
    def error(self) -> dict[str, str]:
        """Returns the error that a failed command printed."""
        found: dict[str, str] = self.events[-1]["error"]
        return found


def run(desktop: Desktop, file: Path, *options: str, env: dict[str, str] | None = None) -> Outcome:
    """Runs `torchyard run --json` for `file` until the run has ended."""
    done = desktop.torchyard("run", file, "--json", *options, timeout=170, env=env)
    assert "Traceback" not in done.stderr, done.stderr
    return Outcome(done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr)


def log_of(desktop: Desktop, run_id: str, replica: str) -> str:
    """Returns the complete log of a replica."""
    done = desktop.torchyard("runs", "logs", run_id, "--replica", replica)
    assert done.returncode == 0, done.stderr
    return done.stdout


def logs_of(desktop: Desktop, run_id: str) -> dict[str, str]:
    """Returns the complete logs, by replica."""
    done = desktop.torchyard("runs", "logs", run_id, "--json")
    assert done.returncode == 0, done.stderr
    logs: dict[str, str] = defaultdict(str)
    for line in map(json.loads, done.stdout.splitlines()):
        logs[line["replica"]] += line["line"] + "\n"
    return logs


def topology(folder: Path, text: str, **scripts: str) -> Path:
    """Writes a topology file and scripts into `folder`. A keyword argument such as `train_py` gives the content of
    train.py.
    """
    folder.mkdir(exist_ok=True)
    for name, script in scripts.items():
        (folder / name.replace("_", ".")).write_text(textwrap.dedent(script))
    file = folder / "topology.yaml"
    file.write_text("version: 1\nname: test\n" + textwrap.dedent(text))
    return file


def nothing_but(*variables: str) -> str:
    """Returns a setup line that removes all but the given variables from the program's environment."""
    return f"unset $(compgen -e | grep -vxE '{'|'.join(variables)}')"


def started(process: subprocess.Popen[str], kind: str = "run_state", **wanted: Any) -> Event:
    """Reads the events of a `run --json` command until an event has the given kind and values; returns this event."""
    for event in events_of(process):
        if event.get("event") == kind and all(event.get(name) == value for name, value in wanted.items()):
            return event
    raise AssertionError(f"the run ended without {kind} {wanted}: {process.stderr and process.stderr.read()}")


def events_of(process: subprocess.Popen[str]) -> Iterator[Event]:
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)


def only(look: Callable[[], Sequence[Found]]) -> Found:
    """Waits until `look()` returns exactly one item; returns this item.

    A forked process has its parent's command line until it calls exec, so both processes match for a moment.
    """
    found: list[Found] = []

    def is_one() -> bool:
        found[:] = look()
        return len(found) == 1

    wait_until(is_one)
    return found[0]


def programs_on(lab: Lab) -> list[str]:
    """Returns the command lines of all processes on the lab's hosts, except for sshd and the agent."""
    found = []
    for host in lab.hosts:
        for _, argv in host.processes():
            line = " ".join(argv)
            ours = any(word in line for word in ("boot.sh", "sshd", "torchyard-agent", "version_info", "bytecode.py"))
            if not ours and line.strip():
                found.append(f"{host.name}: {line}")
    return found


def kill_keepers(host: LabHost) -> None:
    keepers = [str(process.pid) for process in host.processes() if "keeper.main" in " ".join(process.argv)]
    assert keepers
    host.exec(["kill", "-KILL", *keepers], check=True)
    wait_until(lambda: not set(map(int, keepers)) & {pid for pid, _ in host.processes()})
