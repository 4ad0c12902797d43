"""One host of the lab: its processes, its power, its SSH server and its network cable."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tests.fork_server import ForkServer
from tests.lab.hosts import boot
from tests.lab.hosts.files import HostFiles
from tests.lab.hosts.machine import Machine
from tests.lab.hosts.processes import HostProcess
from tests.lab.hosts.spec import HostSpec
from tests.lab.keys import fingerprint, known_hosts_line, make_key
from tests.lab.needs import SEARCH_PATH, LabBroken
from tests.lab.network import Network
from tests.waiting import NotInTime, wait_until
from tests.warm_python import write_client

READY_WITHIN_S = 20.0


class LabHost:
    """A host of a `Lab`.

    `home` and `tmp` are the host's /root and /tmp on this machine, so tests can read files in these folders; `inside`
    returns the path of such a file on the host.
    """

    port = 22

    def __init__(self, spec: HostSpec, address: str, files: HostFiles, network: Network):
        self.spec = spec
        self.name = spec.name
        self.address = address
        self.user = spec.user
        self.home = files.home
        self.tmp = files.tmp
        self.folder = files.folder
        self.inside = files.inside
        self.home_of = files.home_of
        self.log = files.log
        self.public_key = ""
        self._files = files
        self._network = network
        self._machine: Machine | None = None

    def __repr__(self) -> str:
        return f"<LabHost {self.name} {self.address}>"

    # Methods that boot and destroy the host

    def boot(self, authorized: str) -> None:
        """Writes the host's files and starts it; `wait_until_ready` waits until the host answers."""
        self._files.write(self.spec, self.port, authorized)
        self.public_key = make_key(self.folder / "host_key", f"root@{self.name}")
        namespace = self._network.namespace(self.name)
        self._machine = Machine(self.name, namespace, self.folder / "boot.sh", self.folder / "boot.log")

    def wait_until_ready(self) -> None:
        """Waits until the host's sshd is listening."""

        def listens() -> bool:
            if not self.alive:
                raise LabBroken(f"Host {self.name} ended while booting: {self.log()}")
            return self._running.listens(self.port)

        self._until(listens, "sshd does not listen", READY_WITHIN_S)

    @property
    def alive(self) -> bool:
        """Whether the host is running."""
        return self._machine is not None and self._machine.alive

    @property
    def outer_pid(self) -> int | None:
        """The PID of this process's child that keeps the host's namespaces alive; None before boot."""
        return self._machine.outer_pid if self._machine else None

    def destroy(self, *, silently: bool = True) -> None:
        """Destroys the host and all of its processes, like a power cut. Idempotent; returns once the host is gone.

        With `silently=False` the network stays connected, so the kernel closes the connections of dying processes.
        """
        if self.alive and silently:
            self._network.cut(self.name)
        self.kill()
        self.wait_until_gone()

    def kill(self) -> None:
        """Starts to shut the host down if it is running; the kernel then kills all of the host's processes."""
        if self._machine is not None and self._machine.alive:
            self._machine.kill()

    def wait_until_gone(self) -> None:
        """Waits until the host is gone after `kill`."""
        if self._machine is not None:
            self._machine.wait_until_gone()

    # Methods that run and list processes on the host

    def exec(
        self,
        argv: Sequence[str],
        user: str = "root",
        *,
        input: str | None = None,
        timeout: float = 60,
        check: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program on the host without SSH, and returns its output.

        If `check` is set, a failure raises an exception.
        """
        done = subprocess.run(
            self._running.entering(argv, self._uid(user)),
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env=self._environment(user, env),
        )
        if check and done.returncode:
            raise LabBroken(f"{argv} on {self.name} ended with {done.returncode}: {done.stderr.strip()}")
        return done

    def start(
        self, argv: Sequence[str], user: str = "root", *, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Starts a program on the host, with pipes for stdin and stdout. stderr is part of stdout."""
        return subprocess.Popen(
            self._running.entering(argv, self._uid(user)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._environment(user, env),
        )

    def processes(self) -> list[HostProcess]:
        """Returns every process on the host by process ID, including those that `exec` has started."""
        return self._machine.processes() if self._machine else []

    def clean(self) -> None:
        """Restores the state at boot time: the cable is connected, sshd is running, and there are no other processes or
        files.
        """
        self.mend_cable()
        self.unshape()
        if self.spec.ssh_environment:
            self.set_ssh_environment({})
        if len(self.processes()) > 2 or not self._sshd():
            # kill(-1) signals all processes except PID 1 and the shell itself.
            self.exec(["sh", "-c", "kill -KILL -1"])
            self._until(lambda: len(self.processes()) == 1, "processes do not end")
            self.start_sshd()
        self._files.wipe(self.spec)

    @property
    def pid_namespace(self) -> Path:
        """The name of the PID namespace in which the host's processes run."""
        return self._running.pid_namespace

    def fork_scripts_from(self, fork_server: ForkServer) -> str:
        """Installs a `python` on the host that runs scripts by forking `fork_server`; returns its path on the host."""
        fork_server.serve(write_client(self.folder), self._running.first_pid)
        return f"{boot.INSIDE}/python"

    # Methods that control the SSH server

    def start_sshd(self) -> None:
        """Starts sshd, and returns once it is listening."""
        self.exec(["sh", "-c", boot.START_SSHD], check=True)
        self.wait_until_ready()

    def stop_sshd(self, *, sessions: bool = False) -> None:
        """Stops sshd, so connections are refused. Open sessions continue unless `sessions` is set."""
        ended: set[int] = set()

        def is_gone() -> bool:
            if found := self._sshd(sessions=sessions) - ended:
                self.exec(["sh", "-c", f"kill -KILL {' '.join(map(str, found))}"])
                ended.update(found)
            # Processes are found by PID, because an exiting process loses its title before it closes its sockets, and
            # by port, because a new process does not yet have a title.
            left = ended & {process.pid for process in self.processes()}
            return not left and not self._running.listens(self.port)

        self._until(is_gone, "sshd does not end")

    def restart_sshd(self) -> None:
        """Stops and starts sshd; open sessions continue."""
        self.stop_sshd()
        self.start_sshd()

    @property
    def host_key_fingerprint(self) -> str:
        """The fingerprint of the host's key, as SHA256:…."""
        return fingerprint(self.public_key)

    @property
    def known_hosts(self) -> str:
        """Returns the known-hosts line for the host's actual key."""
        return known_hosts_line(self.address, self.port, self.public_key) + "\n"

    def change_host_key(self) -> None:
        """Gives the host a new key, as if it had been reinstalled."""
        self.public_key = make_key(self.folder / "host_key", f"root@{self.name}")
        self.restart_sshd()

    def set_ssh_environment(self, environment: Mapping[str, str]) -> None:
        """Replaces the environment variables of future SSH sessions."""
        self.spec = replace(self.spec, ssh_environment=dict(environment))
        self._files.write_sshd_config(self.spec, self.port)
        self.restart_sshd()

    # Methods that control the network cable

    def cut_cable(self) -> None:
        """Pulls the network cable: packets are dropped without an error."""
        self._network.cut(self.name)

    def mend_cable(self) -> None:
        """Puts the network cable back."""
        self._network.mend(self.name)

    def shape(self, rate: str = "200mbit", after: str | None = None) -> None:
        """Limits the cable's rate in each direction.

        With `after`, such as 4mb, the limit applies only after this amount of data has passed at full speed.
        """
        self._network.shape(self.name, rate, after)

    def unshape(self) -> None:
        """Removes the cable's rate limit."""
        self._network.unshape(self.name)

    @property
    def bytes_sent(self) -> int:
        """The number of bytes that the host has sent through its network interface since it booted."""
        return self._running.counter(8)

    @property
    def bytes_received(self) -> int:
        """The number of bytes that the host has received through its network interface since it booted."""
        return self._running.counter(0)

    @property
    def _running(self) -> Machine:
        if self._machine is None:
            raise LabBroken(f"Host {self.name} was not booted.")
        return self._machine

    def _uid(self, user: str) -> int:
        return 0 if user == "root" else boot.FIRST_UID + self.spec.accounts().index(user)

    def _environment(self, user: str, extra: Mapping[str, str] | None) -> dict[str, str]:
        home = "/root" if user == "root" else f"/home/{user}"
        plain = {"PATH": SEARCH_PATH, "HOME": home, "USER": user, "LOGNAME": user, "LANG": "C.UTF-8"}
        return {**plain, **self.spec.ssh_environment, **(extra or {})}

    def _sshd(self, *, sessions: bool = False) -> set[int]:
        return {process.pid for process in self.processes() if process.is_sshd(sessions=sessions)}

    def _until(self, condition: Callable[[], bool], complaint: str, within_s: float = 10.0) -> None:
        try:
            wait_until(condition, within_s)
        except NotInTime:
            raise LabBroken(f"{self.name}: {complaint}; running: {self.processes()}; {self.log()}") from None
