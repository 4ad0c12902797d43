"""The processes of a host, seen from outside through /proc."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tests.lab.needs import LabBroken


class HostProcess(NamedTuple):
    """A process as seen on its host. As in ps, the argv of a zombie is ("[name] <defunct>",)."""

    pid: int
    argv: tuple[str, ...]

    def is_sshd(self, *, sessions: bool = False) -> bool:
        """Returns whether the process is the listening sshd or, if `sessions` is set, one that serves a connection."""
        # Until sshd sets its title, its original command line is visible. The server of a session is started with -R.
        listens = "[listener]" in self.argv[0] or (self.argv[0].endswith("/sshd") and "-R" not in self.argv)
        return listens or (sessions and self.argv[0].startswith("sshd: "))


def pid_namespace(pid: int) -> Path:
    """Returns the name of the PID namespace of a process."""
    return Path(f"/proc/{pid}/ns/pid").readlink()


def processes_in(namespace: Path) -> list[HostProcess]:
    """Returns every process in a PID namespace, by its process ID in the namespace."""
    found = []
    for pid in outside_pids_in(namespace):
        # A process may exit at any time.
        with suppress(FileNotFoundError, ProcessLookupError):
            found.append(_describe(Path("/proc", str(pid))))
    return sorted(found)


def outside_pids_in(namespace: Path) -> list[int]:
    """Returns the process IDs, outside a PID namespace, of all processes in it."""
    # Tests that wait call this function continuously. With paths instead of strings it takes four times as long.
    wanted, found = str(namespace), []
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            # A process may exit at any time, and this user may not be allowed to read some processes.
            with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                if os.readlink(f"/proc/{name}/ns/pid") == wanted:  # noqa: PTH115
                    found.append(int(name))
    return found


def listens(pid: int, port: int) -> bool:
    """Returns whether a process in the network namespace of `pid` listens on a TCP port, without connecting to it."""
    rows = (line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:])
    return any(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows)


def children_of_this_process() -> dict[int, str]:
    """Returns the process ID and the command line of every child of this process, including zombies."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            for pid in (task / "children").read_text().split():
                found[int(pid)] = " ".join(_describe(Path("/proc", pid)).argv)
    return found


def only_child(pid: int) -> int:
    """Returns the only child of a process."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    if len(children) != 1:
        raise LabBroken(f"Process {pid} should have the first process of a host as its child; it has {children}.")
    return int(children[0])


def _describe(entry: Path) -> HostProcess:
    status = dict(line.split(":", 1) for line in (entry / "status").read_text().splitlines() if ":" in line)
    argv = tuple((entry / "cmdline").read_text(errors="replace").rstrip("\0").split("\0"))
    if argv == ("",):
        ending = " <defunct>" if status["State"].split()[0] == "Z" else ""
        argv = (f"[{status['Name'].strip()}]{ending}",)
    return HostProcess(int(status["NSpid"].split()[-1]), argv)
