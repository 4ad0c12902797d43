"""The specification of a host: its name and how it differs from a plain host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from string import ascii_lowercase
from typing import Literal

Python = Literal["usual", "none", "3.6"]
"""The Python interpreters of a host: those of this machine, none, or only a Python 3.6."""


@dataclass(frozen=True)
class HostSpec:
    """Specification of one host.

    Attributes:
        login_shell: Shell that sshd runs for commands.
        noisy: Whether start-up files and the server print text on stdout and stderr before every command.
        ssh_environment: Variables set in every SSH session, and in no other process.
        last_octet: Last part of the address, for tests that depend on the order of addresses.
        users: Accounts in addition to root, with the same key.
        user: The account named in the fleet file.
        sshd: First lines of sshd's configuration.
        passwords: Passwords by account, which PAM requests with "Password: " if `sshd` allows such logins.
        login_takes_s: Seconds that the server takes to look up a key.
    """

    name: str
    last_octet: int | None = None
    login_shell: str = "/bin/bash"
    noisy: bool = False
    python: Python = "usual"
    user: str = "root"
    users: tuple[str, ...] = ()
    ssh_environment: Mapping[str, str] = field(default_factory=dict)
    sshd: tuple[str, ...] = ()
    passwords: Mapping[str, str] = field(default_factory=dict)
    login_takes_s: float = 0.0

    def accounts(self) -> tuple[str, ...]:
        """Returns every account other than root that has its own HOME."""
        wanted = dict.fromkeys((*self.users, self.user))
        return tuple(name for name in wanted if name != "root")


def host_names(count: int) -> list[str]:
    """Returns `count` host names: gpu-a, gpu-b, …; at most 26."""
    if count > len(ascii_lowercase):
        raise ValueError(f"A lab has names for {len(ascii_lowercase)} hosts, not for {count}.")
    return [f"gpu-{letter}" for letter in ascii_lowercase[:count]]
