"""Creates a lab of several hosts, and removes it."""

from __future__ import annotations

import atexit
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from tests.lab.hosts import boot
from tests.lab.hosts.files import HostFiles
from tests.lab.hosts.host import LabHost
from tests.lab.hosts.spec import HostSpec, host_names
from tests.lab.keys import make_key
from tests.lab.needs import LabBroken, require
from tests.lab.network import Network
from tests.lab.subnet import Subnet, claim_subnet

FIRST_OCTET = 11


class Lab:
    """Hosts with a real sshd, which this machine can reach by their addresses while the context is active.

    Args:
        hosts: Names or specifications; by default `count` plain hosts called gpu-a, gpu-b, …
        shared_home: Whether each user has the same HOME on all hosts, as over NFS.
        directory: Folder for all files, which must not be below /run; the caller owns the folder.

    Raises:
        LabUnavailable: This machine cannot create hosts.
    """

    open_labs: list[Lab] = []  # noqa: RUF012 - one list for the process is intended

    def __init__(
        self,
        count: int = 3,
        *,
        directory: Path,
        hosts: Sequence[HostSpec | str] | None = None,
        shared_home: bool = False,
    ):
        wanted = host_names(count) if hosts is None else hosts
        self.specs = [HostSpec(host) if isinstance(host, str) else host for host in wanted]
        self.directory = directory.resolve()
        self.shared_home = shared_home
        self.hosts: list[LabHost] = []
        self.identity_file = self.directory / "id_ed25519"
        self._subnet: Subnet | None = None
        self._network: Network | None = None

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getitem__(self, name: str) -> LabHost:
        """Returns the host with this name."""
        for host in self.hosts:
            if host.name == name:
                return host
        raise KeyError(name)

    def open(self) -> Self:
        """Creates the hosts, and returns when each host's sshd is listening. Removes the hosts if that fails."""
        require(*(spec.login_shell for spec in self.specs), *_pythons(self.specs))
        atexit.register(self.close)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            authorized = make_key(self.identity_file, "torchyard-lab")
            self._subnet = claim_subnet()
            Lab.open_labs.append(self)
            self._network = Network(self._subnet)
            addresses = self._addresses(self._subnet)
            self._network.build(addresses)
            for spec in self.specs:
                folder = self.directory / spec.name
                home = self.directory / "home" if self.shared_home else folder / "home"
                homes = self.directory if self.shared_home else folder
                host = LabHost(spec, addresses[spec.name], HostFiles(folder, home, homes), self._network)
                self.hosts.append(host)
                host.boot(authorized)
            for host in self.hosts:
                host.wait_until_ready()
        except BaseException:  # This also applies to Ctrl-C, because no host may outlive its lab.
            self.close()
            raise
        return self

    def close(self) -> None:
        """Removes every process, namespace and interface of the lab, but no files. Idempotent."""
        for host in self.hosts:
            host.kill()
        for host in self.hosts:
            host.wait_until_gone()
        if self._network is not None:
            self._network.remove()
            self._network = None
        if self._subnet is not None:
            self._subnet.release()
            self._subnet = None
        with suppress(ValueError):
            Lab.open_labs.remove(self)
        atexit.unregister(self.close)

    @property
    def whole(self) -> bool:
        """Whether every host is alive."""
        return bool(self.hosts) and all(host.alive for host in self.hosts)

    @property
    def known_hosts(self) -> str:
        """Returns the hosts' actual keys as lines of a known-hosts file."""
        return "".join(host.known_hosts for host in self.hosts)

    def fleet_yaml(self, *, python: str | None = sys.executable, **extra: Any) -> str:
        """Returns a fleet file that contains these hosts.

        `python` and `extra` apply to every host; None leaves a key out.
        """
        return yaml.safe_dump(
            {"version": 1, "hosts": [self.fleet_entry(host, python=python, **extra) for host in self.hosts]},
            sort_keys=False,
        )

    def fleet_entry(self, host: LabHost, **extra: Any) -> dict[str, Any]:
        """Returns the fleet file's entry of one host."""
        entry = {
            "name": host.name,
            "address": host.address,
            "port": host.port,
            "user": host.user,
            "identity_file": str(self.identity_file),
            **extra,
        }
        return {key: value for key, value in entry.items() if value is not None}

    def ssh(
        self,
        host: LabHost,
        command: str,
        *,
        user: str | None = None,
        identity_file: Path | None = None,
        options: Sequence[str] = (),
        timeout: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command line on a host with the system's `ssh`.

        The call uses the host's actual key and the lab's identity, but no user configuration; `options` take precedence
        over these settings.
        """
        known_hosts = self.directory / "known_hosts"
        known_hosts.write_text(self.known_hosts)
        settings = [f"UserKnownHostsFile={known_hosts}", "StrictHostKeyChecking=yes", "BatchMode=yes"]
        settings += ["IdentitiesOnly=yes", "IdentityAgent=none", f"Port={host.port}"]
        return subprocess.run(
            ["ssh", "-F", "none", "-i", str(identity_file or self.identity_file), *options]
            + [part for setting in settings for part in ("-o", setting)]
            + [f"{user or host.user}@{host.address}", command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def _addresses(self, subnet: Subnet) -> dict[str, str]:
        fixed = {spec.last_octet for spec in self.specs}
        free = (octet for octet in range(FIRST_OCTET, 255) if octet not in fixed)
        addresses = {spec.name: subnet.address(spec.last_octet or next(free)) for spec in self.specs}
        if len(set(addresses.values())) != len(self.specs):
            raise LabBroken(f"Each host needs a name and an address of its own: {self.specs}.")
        return addresses


def open_host_pids() -> set[int]:
    """Returns the PIDs of those children of this process that hold the hosts of open labs."""
    return {host.outer_pid for lab in Lab.open_labs for host in lab.hosts if host.outer_pid is not None}


def _pythons(specs: Sequence[HostSpec]) -> list[str]:
    return [str(boot.old_python()) for spec in specs if spec.python == boot.OLD_PYTHON][:1]
