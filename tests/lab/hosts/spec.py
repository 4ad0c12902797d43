"""Specification of a host: its name and its differences from a plain host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from string import ascii_lowercase
from typing import Literal

Python = Literal["usual", "none", "3.6"]
"""Interpreters of a host: this machine's, none, or only a 3.6."""


@dataclass(frozen=True)
class HostSpec:
    """Specification of one host.

    `login_shell` is what sshd hands commands to; `noisy` makes start-up files and the server talk, on stdout and
    stderr, before every command. `ssh_environment` is set in every SSH session, and nowhere else. `last_octet`
    fixes the end of the address, for tests that depend on the order of addresses. `users` are further accounts
    beside root, with the same key; `user` is the one that the fleet file names.

    Logins: `sshd` are the first lines of its configuration. `passwords` (by account) are requested by PAM, with
    "Password: ", if `sshd` allows such logins. With `login_takes_s` the server takes this many seconds to look up a
    key.
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
        """Every account with a HOME of its own besides root."""
        wanted = dict.fromkeys((*self.users, self.user))
        return tuple(name for name in wanted if name != "root")


def host_names(count: int) -> list[str]:
    """gpu-a, gpu-b, … for `count` hosts (26 at most)."""
    if count > len(ascii_lowercase):
        raise ValueError(f"A lab has names for {len(ascii_lowercase)} hosts, not for {count}.")
    return [f"gpu-{letter}" for letter in ascii_lowercase[:count]]
