"""The use case "profile a script": run it for at most a minute on one host of each kind in use, and keep the result."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torchyard_core.advisor.profile import Profile, ProfileCache, profile_of, program_name
from torchyard_core.advisor.profile_run import MEASUREMENTS, hosts_to_measure, profile_topology, program_settings
from torchyard_core.app.desktop import Desktop
from torchyard_core.app.launch_run import InvalidTopology, LaunchCallbacks, LaunchRun
from torchyard_core.errors import RunFailed, TorchyardError, UsageError
from torchyard_core.fleet.cluster import clusters_as_hosts, require_hosts
from torchyard_core.home import Home, expand_user
from torchyard_core.launch.launch import StartedRun
from torchyard_core.launch.rank_assignment import plan
from torchyard_core.launch.runs.follower import Follower
from torchyard_core.launch.runs.known_runs import stop_request
from torchyard_core.launch.runs.logs import LogReader
from torchyard_core.launch.runs.output_download import fetch_files, list_files
from torchyard_core.launch.snapshots.program_files import code_root
from torchyard_core.launch.snapshots.snapshot import take_snapshot
from torchyard_core.next_steps import ShowLogs
from torchyard_core.problems import has_errors
from torchyard_core.topology.file import TopologyFile
from torchyard_core.topology.model import Topology

LIMIT_S = 60.0
"""Maximum time in seconds for which a script runs. The recorder of the measurements usually ends the script earlier."""
LAST_LINES = 30
"""Number of log lines in the error message about a script that failed."""


def workdir_of(source: TopologyFile) -> Path | None:
    """Returns the program's working folder on this computer, or None if it has none."""
    if source.topology is None or source.topology.program.workdir is None or source.folder is None:
        return None
    return (source.folder / expand_user(source.topology.program.workdir)).resolve()


def program_root(source: TopologyFile, home: Home) -> str | None:
    """Returns the hash of the program's files, or None if there is no working folder.

    Raises RunFailed if no snapshot of the working folder can be taken.
    """
    folder = workdir_of(source)
    if folder is None or source.topology is None or not folder.is_dir():
        return None
    snapshot = take_snapshot(folder, source.topology.program.exclude, caches=home.caches / "files")
    return code_root(snapshot, source.topology)


def profile_cache(home: Home) -> ProfileCache:
    """Returns the profiles that this desktop has measured."""
    return ProfileCache(home.caches / "profiles")


class ProfileScript:
    """Measures the script of a topology on hosts, one after the other."""

    def __init__(
        self,
        desktop: Desktop,
        source: TopologyFile,
        hosts: Sequence[str] = (),
        callbacks: LaunchCallbacks | None = None,
        on_message: Callable[[str], None] = lambda message: None,
    ):
        """Creates the use case.

        Args:
            hosts: Names of hosts to measure on. By default, the script is measured on one host of each kind among the
                hosts of the topology's trainers.
            on_message: Called with messages about the progress.
        """
        self._desktop = desktop
        self._source = source
        self._hosts = tuple(hosts)
        self._callbacks = callbacks or LaunchCallbacks()
        self._on_message = on_message
        self._launch: LaunchRun | None = None
        self._is_cancelled = False

    def cancel(self) -> None:
        """Requests, from any thread, that `run` stop the measurement."""
        self._is_cancelled = True
        if self._launch is not None:
            self._launch.cancel()

    def run(self) -> tuple[Profile, ...]:
        """Measures the script on each host. Returns the new profiles, which are also stored in the desktop's cache.

        Raises:
            InvalidTopology: The topology has errors.
            UsageError: A host is unknown, or the program cannot be measured.
            RunFailed: The script failed (the message contains the end of its output), or no step was measured.
            TorchyardError: A host cannot be used.
        """
        topology = self._checked()
        snapshot = program_root(self._source, self._desktop.home)
        found = []
        for host in self._hosts or self._usual_hosts(topology):
            profile = self._measure(topology, host, snapshot)
            profile_cache(self._desktop.home).keep(workdir_of(self._source), profile)
            found.append(profile)
        return tuple(found)

    def _checked(self) -> Topology:
        from torchyard_core.engines.registry import clusters_of  # Deferred, since it loads paramiko (0.25 s).

        clusters = clusters_of(self._desktop.fleet)
        named = clusters_as_hosts(clusters, self._source.topology)
        problems = self._source.check((*self._desktop.fleet.known(), *named))
        if self._source.topology is None or has_errors(problems):
            raise InvalidTopology(problems, self._source.source)
        if not self._hosts:
            advice = "Choose a host of the same kind for the measurement (`--host`)."
            require_hosts(self._source.topology, clusters, "scripts are measured", advice)
        names = [host.name for host in self._desktop.fleet.known()]
        unknown = [host for host in self._hosts if host not in names]
        if unknown:
            raise UsageError(
                f"the fleet has no host `{unknown[0]}`.", code="unknown_host", hint=f"Its hosts: {', '.join(names)}."
            )
        return self._source.topology

    def _usual_hosts(self, topology: Topology) -> tuple[str, ...]:
        known = self._desktop.fleet.known()
        planned = plan(topology, known)
        placed = [replica.host for replica in planned.replicas if replica.trains and replica.host]
        if not placed:
            reasons = "; ".join(problem.message for problem in planned.problems) or "no host of the fleet suits them"
            raise RunFailed(f"no trainer can be placed: {reasons}.", code="no_room")
        return hosts_to_measure(placed, known)

    def _measure(self, topology: Topology, host: str, snapshot: str | None) -> Profile:
        alone = replace(self._source, topology=profile_topology(topology, host))
        self._on_message(f"Measuring on {host}, for at most {LIMIT_S:.0f} s …")
        self._launch = LaunchRun(self._desktop, alone, self._callbacks)
        if self._is_cancelled:
            self._launch.cancel()
        started = self._launch.run()
        ended = self._follow(started)
        measured = self._fetch(started)
        if measured is None:
            raise self._failure(started, ended, topology, host)
        facts = {each.name: each for each in self._desktop.fleet.known()}
        try:
            name, settings = program_name(topology.program), program_settings(topology)
            return profile_of(measured, name, snapshot, settings, facts[host], datetime.now(UTC))
        except ValueError as error:
            raise RunFailed(f"{host} sent malformed measurements: {error}.", code="malformed") from None

    def _follow(self, started: StartedRun) -> dict[str, Any]:
        """Stops the run after LIMIT_S or a cancellation, and waits for its end. Returns the run's last event."""
        follower = Follower(started.run_id, started.primary, self._desktop.fleet.link)
        began: float | None = None
        is_stopping = False
        for event in follower.events():
            if event is not None:
                self._callbacks.on_event(event)
                if event["event"] == "run_state" and event["state"] == "running":
                    began = time.monotonic()
                if event["event"] == "run_ended":
                    return event
            is_late = began is not None and time.monotonic() - began > LIMIT_S
            if (is_late or self._is_cancelled) and not is_stopping:
                is_stopping = True
                request = stop_request(started.run_id, force=True, how="after the measurement")
                self._desktop.fleet.link(started.primary.host).call("run.stop", request)
        raise RunFailed(f"the journal of run {started.run_id} ended without an end of the run.", code="journal")

    def _fetch(self, started: StartedRun) -> Any:
        """Returns the measurements, or None if the run wrote none or they are not valid JSON."""
        host = started.primary.host
        links = {host: self._desktop.fleet.link(host)}
        files, errors = list_files(started.run_id, MEASUREMENTS, (host,), links)
        for error in errors.values():
            raise error
        with tempfile.TemporaryDirectory() as folder:
            for path in fetch_files(started.run_id, files.get(host, []), Path(folder), links[host], lambda *_: None):
                try:
                    return json.loads(path.read_text(encoding="utf-8"))
                except ValueError:
                    return None
        return None

    def _failure(self, started: StartedRun, ended: dict[str, Any], topology: Topology, host: str) -> TorchyardError:
        """Returns the error for a script that could not be measured. If it failed, its last output is included."""
        name = program_name(topology.program)
        replica = started.plan.replicas[0].name
        reader = LogReader(started.run_id, replica, 0, started.primary, self._desktop.fleet.link, LAST_LINES)
        lines = [line.text for line in reader.lines(wait=False)]
        if self._is_cancelled:
            return RunFailed("the measurement was stopped.", code="interrupted")
        if ended["state"] == "stopped":
            message = f"{name} took too few steps on {host} within {LIMIT_S:.0f} s to be measured."
            return RunFailed(message, code="too_slow", hint=("Is its first step that late?", ShowLogs(started.run_id)))
        output = "".join(f"\n  {line}" for line in lines)
        reason = str(ended.get("reason") or ended["state"]).rstrip(".")
        message = f"{name} failed on {host} while it was measured: {reason}.{output}"
        return RunFailed(message, code="script_failed", hint=ShowLogs(started.run_id))
