"""Launches runs on the lab's hosts, and observes them through the hosts' files and /proc."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.end_to_end.running import Event, only, programs_on, topology
from tests.lab import Desktop, Lab, LabHost
from tests.lab.hosts.processes import outside_pids_in
from tests.waiting import wait_until
from torchyard_core.cli.context import CommandContext
from torchyard_core.fleet.fleet import Fleet
from torchyard_core.home import Home
from torchyard_core.launch.launch import Launch
from torchyard_core.topology.file import read_topology

FOREVER = "import time; time.sleep(600)"
COUNTING = """
    import os, time
    for number in range(100_000):
        print(os.environ["TORCHYARD_REPLICA"], number, flush=True)
        time.sleep(0.02)
"""
"""A program that prints a numbered line every 20 ms, so that gaps in the log and stalled ranks can be seen."""
GONE_WITHIN_S = 60.0
"""Deadline in seconds for processes to exit. The deadline is generous, because the machine may be busy."""
BUSY_S = 4.0
"""Tolerance in seconds for time limits, because the machine may run other tests. Benchmarks check the limits without
tolerance.
"""
QUICK = {"lease_s": 2.0, "heartbeat_s": 0.4}
"""Short lease and heartbeat. With even shorter times, live hosts would be considered lost on a busy machine."""


class LaunchedRun:
    """A launched run, and its files on the hosts."""

    def __init__(self, team: Team, run_id: str, places: Mapping[str, str], primary: str):
        self.run_id = run_id
        self.places = places
        """The host of each replica."""
        self.primary = primary
        self._team = team

    def folder(self, host: str) -> Path:
        """Returns the run's folder on a host, as a path on this machine."""
        return self._team.agent_dir(self._team.lab[host]) / "hosts" / host / "runs" / self.run_id

    def journal(self, host: str | None = None) -> list[Event]:
        """Returns the complete lines of the journal on a host, by default on the primary."""
        path = self.folder(host or self.primary) / "journal.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def of(self, event: str, host: str | None = None) -> list[Event]:
        return [entry for entry in self.journal(host) if entry["event"] == event]

    def states(self, host: str | None = None) -> list[str]:
        """Returns the run's states so far."""
        return [entry["state"] for entry in self.of("run_state", host)]

    def replica_states(self, name: str) -> list[str]:
        return [entry["state"] for entry in self.of("replica_state") if entry["replica"] == name]

    def wait_for(self, *states: str, within_s: float = 30.0, host: str | None = None) -> None:
        """Waits until the last recorded state of the run is one of the given states."""
        wait_until(lambda: (self.states(host) or [""])[-1] in states, within_s)

    def ended(self, within_s: float = 40.0, host: str | None = None) -> Event:
        """Waits for `run_ended` in the host's journal, and returns this event."""
        wait_until(lambda: self.of("run_ended", host), within_s)
        return self.of("run_ended", host)[-1]

    def log(self, replica: str) -> str:
        path = self.folder(self.places[replica]) / "logs" / f"{replica}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait_for_output(self, text: str, within_s: float = 30.0) -> None:
        """Waits until every replica has printed `text`."""
        wait_until(lambda: all(text in self.log(name) for name in self.places), within_s)

    def stop(self, *, force: bool = True) -> Event:
        """Stops the run through the daemon on its primary; returns the run's `run_ended` event."""
        self._team.call(self.primary, "run.stop", run_id=self.run_id, reason="enough", force=force)
        return self.ended()


class Team:
    """The lab's hosts with open links to their agents, over which tests launch runs."""

    def __init__(
        self,
        lab: Lab,
        desktop: Desktop,
        folder: Path,
        agent_dir: Callable[[LabHost], Path] = lambda host: host.home / ".torchyard",
    ):
        """Creates the team; `agent_dir` returns the path of a host's agent folder on this machine."""
        self.lab = lab
        self.desktop = desktop
        self.agent_dir = agent_dir
        self._folder = folder
        self._launched = 0
        home = Home(desktop.home)
        self._caches = home.caches
        self._settings = CommandContext(home, home.fleet_file, False)
        self.fleet: Fleet = self._settings.fleet(self._settings.inventory().hosts)

    def impatient(self, **seconds: float) -> None:
        """Sets the keepers' timeouts (`lease_s`, `heartbeat_s`, …) on all hosts. Must be called before the first
        launch.
        """
        variables = {f"TORCHYARD_KEEPER_{name.upper()}": str(value) for name, value in seconds.items()}
        for host in self.lab.hosts:
            host.set_ssh_environment({**host.spec.ssh_environment, **variables})

    def topology(self, script: str, program: str = "", pools: str = "", replicas: int = 3, **more: str) -> Path:
        """Writes a topology whose replicas all run `script`, by default one worker per host; returns its path."""
        self._launched += 1
        workers = f"[{{name: workers, role: worker, replicas: {replicas}, placement: spread}}]"
        launched = "" if "launcher:" in program else "  script: script.py\n"
        text = f"pools: {pools or workers}\nprogram:\n{launched}"
        settings = "".join(f"  {line.strip()}\n" for line in program.splitlines() if line.strip())
        return topology(self._folder / f"program-{self._launched}", text + settings, script_py=script, **more)

    def launch(self, file: Path, on_event: Callable[[Event], None] = lambda event: None) -> LaunchedRun:
        """Checks, uploads and starts a topology, as `torchyard run` does."""
        source = read_topology(file)
        assert source.topology is not None, source.problems
        launch = Launch(source, source.topology, "faults", self.fleet, {}, on_event, caches=self._caches)
        started = launch.run()
        places = {replica.name: replica.host for replica in started.plan.replicas}
        return LaunchedRun(self, started.run_id, places, started.primary.host)

    def call(self, host: str, method: str, **params: Any) -> Any:
        return self.fleet.link(host).call(method, params)

    def nothing_is_left(self, within_s: float = GONE_WITHIN_S) -> None:
        """Waits until no process of any run exists on the live hosts."""
        wait_until(lambda: not programs_on(self.lab), within_s, what=lambda: f"left running: {programs_on(self.lab)}")

    def close(self) -> None:
        self.fleet.close()


def outside_pids(host: LabHost, word: str) -> list[int]:
    """Returns the PIDs, on this machine, of a host's processes whose command lines contain `word`."""
    return [pid for pid, argv in _argv_by_outside_pid(host).items() if word in " ".join(argv)]


def kill(host: LabHost, word: str, number: int = signal.SIGKILL) -> list[int]:
    """Sends a signal to a host's processes whose command lines contain `word`; returns the PIDs of these processes on
    this machine.
    """
    found = outside_pids(host, word)
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    return found


def keeper_of(host: LabHost) -> int:
    """Returns the PID of the only keeper on a host."""
    return only(lambda: outside_pids(host, "keeper.main"))


def daemon_of(host: LabHost) -> int:
    """Returns the PID of the daemon on a host, found by its process title."""
    return only(lambda: [pid for pid in _argv_by_outside_pid(host) if _comm(pid) == "torchyard-agent"])


def environment_of(pid: int) -> dict[str, str]:
    """Returns the environment with which a process was started, or an empty dictionary if the process has exited."""
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition(b"=") for entry in data.split(b"\0") if entry)
    return {name.decode(errors="replace"): value.decode(errors="replace") for name, _, value in pairs}


def pids_of(host: LabHost) -> list[int]:
    """Returns the PIDs on this machine of all processes of a host."""
    return list(_argv_by_outside_pid(host))


def is_alive(pid: int) -> bool:
    """Returns whether a process is running; a zombie does not count as running."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def _argv_by_outside_pid(host: LabHost) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    if not host.alive:
        return found
    for pid in outside_pids_in(host.pid_namespace):
        with suppress(OSError):
            found[pid] = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    return found


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def run_folders(lab: Lab) -> list[Path]:
    """Returns all run folders on the hosts."""
    return [folder for host in lab.hosts for folder in (host.home / ".torchyard" / "hosts").glob("*/runs/*")]
