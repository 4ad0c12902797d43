"""A user's computer in a test: its own Torchyard home folder, and the `torchyard` command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

from tests import REPOSITORY
from tests.lab.commands import MODULE, Commands
from tests.lab.lab import Lab

ENDS_WITHIN_S = 10.0


class Desktop:
    """A Torchyard home folder. If a lab is given, its hosts are in `fleet.yaml` and their keys in `known_hosts`.

    The command runs with a separate HOME and without an SSH agent, so it does not depend on the developer's
    configuration.
    """

    def __init__(
        self,
        directory: Path,
        lab: Lab | None = None,
        *,
        commands: Commands | None = None,
        knows_bandwidths: bool = False,
        **fleet: Any,
    ):
        """Creates the home and writes its fleet file.

        Args:
            commands: Forks the commands that `torchyard` runs to their end.
            knows_bandwidths: Whether to pretend that the bandwidths between hosts were measured today. Otherwise, a
                launch measures them, which takes half a second per pair.
            fleet: See `use`.
        """
        self.directory = directory
        self.home = directory / "torchyard"
        self.user_home = directory / "user"
        self.fleet_file = self.home / "fleet.yaml"
        self.known_hosts = self.home / "known_hosts"
        self.bandwidths = self.home / "caches" / "bandwidth.json"
        self._knows_bandwidths = knows_bandwidths
        self._commands = commands
        self._started: list[subprocess.Popen[str]] = []
        self.home.mkdir(parents=True)
        self.user_home.mkdir()
        if lab is not None:
            self.use(lab, **fleet)

    def use(self, lab: Lab, *, trust: bool = True, **fleet: Any) -> None:
        """Writes the fleet file and the known hosts for this lab; `fleet` is added to every host's entry."""
        self.fleet_file.write_text(lab.fleet_yaml(**fleet))
        self.known_hosts.write_text(lab.known_hosts if trust else "")
        if self._knows_bandwidths:
            pairs = combinations(sorted(f"{host.name}@{host.address}" for host in lab.hosts), 2)
            self.bandwidths.parent.mkdir(exist_ok=True)
            self.bandwidths.write_text(
                json.dumps({"|".join(pair): {"bytes_s": 10**9, "at": time.time()} for pair in pairs})
            )

    def torchyard(
        self,
        *arguments: str | Path,
        timeout: float = 120,
        input: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs `torchyard --home … ARGUMENTS` until it ends. A nonzero exit code does not raise an exception."""
        command, environment, folder = self.command(*arguments), self.environment(env), cwd or self.directory
        if self._commands is not None:
            done = self._commands.run(command[3:], environment, folder, input, timeout)
            if done is not None:
                return done
        return subprocess.run(
            command,
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env=environment,
            cwd=folder,
        )

    def start(
        self, *arguments: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.Popen[str]:
        """Starts `torchyard --home … ARGUMENTS` with pipes for stdout and stderr, in a new session."""
        process = subprocess.Popen(
            self.command(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment(env),
            cwd=cwd or self.directory,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def command(self, *arguments: str | Path) -> list[str]:
        """Returns the command line of `torchyard ARGUMENTS`."""
        return [sys.executable, "-m", MODULE, "--home", str(self.home), *map(str, arguments)]

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """Returns the environment of the command: this process's environment without personal settings."""
        personal = ("SSH_", "TORCHYARD_", "PYTHONDONTWRITEBYTECODE")
        ours = {name: value for name, value in os.environ.items() if not name.startswith(personal)}
        inherited = [str(Path(path).resolve()) for path in ours.get("PYTHONPATH", "").split(os.pathsep) if path]
        packages = [str(REPOSITORY / folder) for folder in ("core", "agent")]
        ours["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*packages, *inherited]))
        ours["HOME"] = str(self.user_home)
        return {**ours, **(extra or {})}

    def close(self) -> None:
        """Terminates the processes that were started with `start` and are still running."""
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        for process in self._started:
            try:
                process.communicate(timeout=ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
            except ValueError:
                # The test may have read and closed the pipes already.
                process.wait()
        self._started.clear()
