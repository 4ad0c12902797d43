"""A host's namespaces and the two processes that keep them alive: one outside, and the first process inside."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.lab.hosts.processes import HostProcess, listens, only_child, pid_namespace, processes_in
from tests.lab.needs import SEARCH_PATH, LabBroken

NAMESPACES = ("--mount", "--uts", "--ipc", "--pid", "--fork", "--mount-proc", "--kill-child")


class Machine:
    """A running set of namespaces, which exists until `kill` is called or this process exits for any reason."""

    def __init__(self, name: str, network_namespace: str, script: Path, log: Path):
        self._name = name
        with log.open("w") as output:
            self._outer = subprocess.Popen(
                ["ip", "netns", "exec", network_namespace, "unshare", *NAMESPACES, "bash", str(script)],
                # The script reads from this pipe, which remains open until this process exits.
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={"PATH": SEARCH_PATH, "LANG": "C.UTF-8"},
                cwd="/",
                text=True,
                # Ctrl-C on the terminal must interrupt the tests but not the hosts.
                start_new_session=True,
            )
        self._first: int | None = None

    @property
    def alive(self) -> bool:
        """Whether the machine is running."""
        return self._outer.poll() is None

    @property
    def outer_pid(self) -> int:
        """The PID of the child of this process that holds the namespaces."""
        return self._outer.pid

    @property
    def first_pid(self) -> int:
        """The PID, outside the machine, of the machine's first process. Raises LabBroken if it is not running."""
        if not self.alive:
            raise LabBroken(f"Host {self._name} is not running.")
        if self._first is None:
            self._first = only_child(self._outer.pid)
        return self._first

    @property
    def pid_namespace(self) -> Path:
        """The name of the PID namespace in which the machine's processes run."""
        return pid_namespace(self.first_pid)

    def kill(self) -> None:
        """Kills the machine's first process without waiting; the kernel then kills all of the machine's processes."""
        try:
            # The first process exits only after all other processes of the machine, and the outer process waits for it.
            os.kill(self.first_pid, signal.SIGKILL)
        except (LabBroken, OSError):
            with suppress(ProcessLookupError):
                self._outer.kill()

    def wait_until_gone(self) -> None:
        """Waits until the machine is gone after `kill`."""
        if self._outer.stdin:
            self._outer.stdin.close()
        self._outer.wait(timeout=30)

    def entering(self, argv: Sequence[str], uid: int = 0) -> list[str]:
        """Returns the command that runs `argv` in the machine."""
        identity = ["--setuid", str(uid), "--setgid", str(uid)] if uid else []
        namespaces = ["--mount", "--uts", "--ipc", "--net", "--pid"]
        return ["nsenter", "--target", str(self.first_pid), *namespaces, "--wd=/", *identity, "--", *argv]

    def processes(self) -> list[HostProcess]:
        """Returns every process in the machine, or none once the machine is gone."""
        return processes_in(self.pid_namespace) if self.alive else []

    def listens(self, port: int) -> bool:
        """Returns whether a process in the machine is listening on this TCP port."""
        with suppress(LabBroken, OSError):
            return listens(self.first_pid, port)
        return False

    def counter(self, column: int) -> int:
        """Returns a number from eth0's line in /proc/net/dev: index 0 is bytes received, 8 is bytes sent."""
        for line in Path(f"/proc/{self.first_pid}/net/dev").read_text().splitlines():
            device, _, numbers = line.partition(":")
            if device.strip() == "eth0":
                return int(numbers.split()[column])
        raise LabBroken(f"Host {self._name} has no eth0.")
