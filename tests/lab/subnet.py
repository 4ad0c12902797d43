"""A subnet for one lab, claimed with a lock file, so that the labs of several test runs never share a subnet.

The claim is a `flock` on a file that is named after the subnet. The kernel releases the lock when the owner exits. An
unlocked file therefore belongs to a lab whose owner has exited, and the next lab removes it.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
from contextlib import suppress
from ipaddress import IPv4Network, ip_network
from pathlib import Path

from tests.lab.needs import SEARCH_PATH, LabBroken

CLAIMS = Path("/run/torchyard-lab")
"""The folder of the lock files, one per subnet."""
COUNT = 256
"""Subnets that can be claimed: 10.213.0.0/24 to 10.213.255.0/24."""


class Subnet:
    """A claimed /24 subnet, in which the desktop has address .1 and hosts have the other addresses.

    Names of the lab's interfaces and namespaces begin with `tag`.
    """

    def __init__(self, number: int, claim: int):
        self.number = number
        self.network = IPv4Network(f"10.213.{number}.0/24")
        self.tag = tag(os.getpid(), number)
        self._claim = claim

    def address(self, last_octet: int) -> str:
        """Returns the address in this subnet with the given last octet."""
        return str(self.network[last_octet])

    def release(self) -> None:
        """Releases the claim; every interface and namespace with the tag must already have been removed."""
        _claim_file(self.number).unlink(missing_ok=True)
        os.close(self._claim)


def tag(owner: int, number: int) -> str:
    """The name of the desktop's interface and the prefix of namespaces; Linux limits such a name to 15 characters."""
    return f"ty{owner}n{number}"


def claim_subnet() -> Subnet:
    """Calls `sweep`, and claims a subnet that no other lab holds and no route of this machine covers."""
    CLAIMS.mkdir(mode=0o755, parents=True, exist_ok=True)
    sweep()
    taken = _routes()
    first = os.getpid()
    for step in range(COUNT):
        number = (first + step) % COUNT
        if any(network.overlaps(IPv4Network(f"10.213.{number}.0/24")) for network in taken):
            continue
        claim = _lock(number)
        if claim is not None:
            os.pwrite(claim, tag(os.getpid(), number).encode(), 0)
            return Subnet(number, claim)
    raise LabBroken(f"All {COUNT} subnets for labs are taken; see the files in {CLAIMS}.")


def sweep() -> None:
    """Removes the labs whose owners have exited."""
    for path in CLAIMS.glob("*.lock"):
        number = int(path.stem)
        claim = _lock(number)
        if claim is None:
            continue
        left_by_the_dead = os.pread(claim, 64, 0).decode()
        if left_by_the_dead:
            remove_tagged(left_by_the_dead)
        path.unlink(missing_ok=True)
        os.close(claim)


def remove_tagged(name: str) -> None:
    """Removes the interface, the namespaces and the processes in the namespaces, if their names carry this tag."""
    if Path("/sys/class/net", name).exists():
        _run("ip", "link", "delete", name)
    for namespace in sorted(Path("/run/netns").glob(f"{name}-*")):
        for pid in _run("ip", "netns", "pids", namespace.name).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        _run("ip", "netns", "delete", namespace.name)


def _claim_file(number: int) -> Path:
    return CLAIMS / f"{number}.lock"


def _lock(number: int) -> int | None:
    """Returns a descriptor that holds the lock of this subnet, or None if another process holds it."""
    path = _claim_file(number)
    claim = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The previous owner may have released the claim and removed the file before this process locked it.
        if os.fstat(claim).st_ino == path.stat().st_ino:
            return claim
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(claim)
    return None


def _routes() -> list[IPv4Network]:
    networks = []
    for route in json.loads(_run("ip", "-4", "-json", "route", "show", "table", "all") or "[]"):
        with suppress(ValueError):
            network = ip_network(route["dst"])
            if isinstance(network, IPv4Network) and network.prefixlen:
                networks.append(network)
    return networks


def _run(*command: str) -> str:
    done = subprocess.run(command, env={"PATH": SEARCH_PATH}, capture_output=True, text=True, check=False)
    return done.stdout
