"""The system's `ssh` as transport: its command line and the interpretation of its error output.

`ssh` checks host keys against the user's known_hosts, Torchyard's known_hosts (passed as an additional global file) and
the system's global files.
"""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from pathlib import Path

from torchyard_core.errors import HostError, KeyChanged, KeyUnknown, LoginRefused, Unreachable
from torchyard_core.fleet.channel import Channel, ProcessChannel
from torchyard_core.fleet.inventory import Host
from torchyard_core.fleet.ssh.login_throttle import LoginThrottle
from torchyard_core.next_steps import TrustKey

GLOBAL_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
_UNREACHABLE = (
    *("Connection refused", "Connection timed out", "Could not resolve hostname", "No route to host"),
    *("Network is unreachable", "Connection reset", "Connection closed by", "kex_exchange_identification"),
)
CONFIGURATION_WITHIN_S = 10.0
"""Timeout in seconds for `ssh -G`, which opens no connection but may run the command of a `Match exec`."""


def open_ssh(host: Host, known_hosts: Path, remote: str, throttle: LoginThrottle) -> Channel:
    """Waits for a login slot of the route's first sshd, then runs the command `remote` on `host`.

    Raises OSError if `ssh` cannot be started.
    """
    with ExitStack() as slot:
        slot.enter_context(throttle[_first_hop(host, known_hosts)].slot())
        return _SlotChannel(ProcessChannel(ssh_command(host, known_hosts, remote)), slot.pop_all())


class _SlotChannel:
    """A channel that holds a login slot until the host's first output.

    The slot is also released if the channel ends or is closed before any output.
    """

    def __init__(self, channel: Channel, slot: ExitStack):
        self._channel = channel
        self._slot = slot
        self.send = channel.send
        self.errors = channel.errors

    def receive(self, timeout_s: float | None) -> bytes:
        data = self._channel.receive(timeout_s)
        self._slot.close()
        return data

    def close(self) -> None:
        self._slot.close()
        self._channel.close()


def _first_hop(host: Host, known_hosts: Path) -> str:
    """Returns a key that identifies the first sshd of the route, as determined by `ssh -G`."""
    try:
        command = ["ssh", "-G", *ssh_command(host, known_hosts, "")[1:-1]]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=CONFIGURATION_WITHIN_S, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return host.place
    found = dict(line.partition(" ")[::2] for line in done.stdout.splitlines())
    jump = found.get("proxyjump", "none").split(",")[0]
    proxy_command = found.get("proxycommand", "none")
    if jump != "none":
        return f"jump {jump}"
    if proxy_command != "none":
        return f"command {proxy_command}"
    return f"{found.get('hostname', host.place)}:{found.get('port', '')}"


def ssh_command(host: Host, known_hosts: Path, remote: str) -> list[str]:
    """Returns the command line that runs `remote` on `host` without prompts."""
    return ["ssh", "-o", "BatchMode=yes", "-T", *_options(host, known_hosts), "--", host.address or host.name, remote]


def terminal_command(host: Host, known_hosts: Path) -> list[str]:
    """Returns the command that opens a login shell on `host` in a terminal, where ssh may prompt the user."""
    return ["ssh", *_options(host, known_hosts), "--", host.address or host.name]


def _options(host: Host, known_hosts: Path) -> list[str]:
    options = ["-o", f'GlobalKnownHostsFile="{known_hosts}" {GLOBAL_KNOWN_HOSTS}']
    options += ["-p", str(host.port)] if host.port else []
    options += ["-l", host.user] if host.user else []
    options += ["-i", host.identity_file] if host.identity_file else []
    options += ["-J", host.proxy_jump] if host.proxy_jump else []
    return options


def explain(host: str, output: str) -> HostError | None:
    """Converts the error output of `ssh` to a HostError. Returns None if it does not report a connection error."""
    text = " ".join(output.split())[-300:]
    if "HOST IDENTIFICATION HAS CHANGED" in output:
        return KeyChanged(host, f"the host key of {host} has changed, says ssh.", fingerprint=_fingerprint(output))
    if "Host key verification failed" in output:
        message = f"the host key of {host} is not known, says ssh."
        hint = ("Compare it with the host's own before you trust it.", TrustKey(host))
        return KeyUnknown(host, message, fingerprint=_fingerprint(output), hint=hint)
    if "Permission denied" in output or "Too many authentication failures" in output:
        message = f"ssh could not log in on {host}: {text}."
        return LoginRefused(host, message, hint=f"`ssh {host}` with the same settings must work without a prompt.")
    if any(words in output for words in _UNREACHABLE):
        return Unreachable(host, f"ssh cannot reach {host}: {text}.", hint="Is it up, and is the address right?")
    return None


def _fingerprint(output: str) -> str:
    return next((word.rstrip(".") for word in output.split() if word.startswith("SHA256:")), "")
