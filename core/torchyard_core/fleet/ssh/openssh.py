"""The system's `ssh` as transport: how it is called, and what its complaints mean.

It does its own checking of host keys, against the user's file and, given as a further global one, ours.
"""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from pathlib import Path

from torchyard_core.errors import HostError, KeyChanged, KeyUnknown, LoginRefused, Unreachable
from torchyard_core.fleet.channel import Channel, ProcessChannel
from torchyard_core.fleet.inventory import Host
from torchyard_core.fleet.ssh.login_throttle import Doors

GLOBAL_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
_UNREACHABLE = (
    "Connection refused",
    "Connection timed out",
    "Could not resolve hostname",
    "No route to host",
    "Network is unreachable",
    "Connection reset",
    "Connection closed by",
    "kex_exchange_identification",
)


CONFIGURATION_WITHIN_S = 10.0
"""`ssh -G` opens nothing; a `Match exec` may take its time."""


def open_ssh(host: Host, known_hosts: Path, remote: str, doors: Doors) -> Channel:
    """Runs `remote` on `host`, once it is its turn at the first sshd on the way. Raises OSError."""
    with ExitStack() as turn:
        turn.enter_context(doors[_first_stop(host, known_hosts)].passing())
        return _InTurn(ProcessChannel(ssh_command(host, known_hosts, remote)), turn.pop_all())


class _InTurn:
    """A channel that lets the next one in when the host has said its first word, or nothing will come any more."""

    def __init__(self, channel: Channel, turn: ExitStack):
        self._channel = channel
        self._turn = turn
        self.send = channel.send
        self.errors = channel.errors

    def receive(self, timeout_s: float | None) -> bytes:
        data = self._channel.receive(timeout_s)
        self._turn.close()
        return data

    def close(self) -> None:
        self._turn.close()
        self._channel.close()


def _first_stop(host: Host, known_hosts: Path) -> str:
    """What stands for the first sshd on the way, in ssh's own reading of its configuration."""
    try:
        command = ["ssh", "-G", *ssh_command(host, known_hosts, "")[1:-1]]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=CONFIGURATION_WITHIN_S, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return host.place
    found = dict(line.partition(" ")[::2] for line in done.stdout.splitlines())
    jump = found.get("proxyjump", "none").split(",")[0]
    command_through = found.get("proxycommand", "none")
    if jump != "none":
        return f"jump {jump}"
    if command_through != "none":
        return f"command {command_through}"
    return f"{found.get('hostname', host.place)}:{found.get('port', '')}"


def ssh_command(host: Host, known_hosts: Path, remote: str) -> list[str]:
    """The command line that runs `remote` on `host` without ever asking anything."""
    options = ["-o", "BatchMode=yes", "-o", f'GlobalKnownHostsFile="{known_hosts}" {GLOBAL_KNOWN_HOSTS}', "-T"]
    options += ["-p", str(host.port)] if host.port else []
    options += ["-l", host.user] if host.user else []
    options += ["-i", host.identity_file] if host.identity_file else []
    options += ["-J", host.proxy_jump] if host.proxy_jump else []
    return ["ssh", *options, "--", host.address or host.name, remote]


def explain(host: str, said: str) -> HostError | None:
    """What `ssh` said on its standard error, as one of our errors; None where the complaint is not about the way."""
    text = " ".join(said.split())[-300:]
    if "HOST IDENTIFICATION HAS CHANGED" in said:
        return KeyChanged(
            host,
            f"the host key of {host} has changed, says ssh.",
            fingerprint=_fingerprint(said),
            hint="The host was reinstalled, or somebody stands between you and it. If its owner confirms the new key, "
            f"run `torchyard hosts trust {host}`.",
        )
    if "Host key verification failed" in said:
        return KeyUnknown(
            host,
            f"the host key of {host} is not known, says ssh.",
            fingerprint=_fingerprint(said),
            hint=f"Run `torchyard hosts trust {host}` to see it, and compare it with the host's own.",
        )
    if "Permission denied" in said or "Too many authentication failures" in said:
        return LoginRefused(
            host,
            f"ssh could not log in on {host}: {text}.",
            hint=f"`ssh {host}` with the same settings must work without a question.",
        )
    if any(words in said for words in _UNREACHABLE):
        return Unreachable(host, f"ssh cannot reach {host}: {text}.", hint="Is it up, and is the address right?")
    return None


def _fingerprint(said: str) -> str:
    return next((word.rstrip(".") for word in said.split() if word.startswith("SHA256:")), "")
