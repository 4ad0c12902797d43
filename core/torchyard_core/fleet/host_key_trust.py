"""Shows host keys that are not yet trusted, and records them as trusted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchyard_core.errors import HostError, UsageError
from torchyard_core.fleet.inventory import Host, Inventory, login_host

if TYPE_CHECKING:
    from torchyard_core.fleet.ssh import SshDialer


@dataclass(frozen=True)
class ShownKey:
    """The key that a host presents, and the fingerprint of the key that is trusted for the host so far."""

    host: Host
    kind: str
    """Key type, such as `ssh-ed25519`."""
    fingerprint: str
    line: str
    """The line for a known-hosts file."""
    on_record: str | None
    """Fingerprint of the trusted key of this type, if any."""

    @property
    def is_trusted(self) -> bool:
        return self.on_record == self.fingerprint

    @property
    def has_changed(self) -> bool:
        """Whether another key of the same type is trusted."""
        return self.on_record not in (None, self.fingerprint)


def show_key(inventory: Inventory, name: str, dialer: SshDialer) -> ShownKey:
    """Reads the key of a host or bastion.

    Raises:
        UsageError: The host is unknown, or is this computer, which has no key.
        HostError: The host does not answer.
    """
    host, behind = _to_trust(inventory, name, dialer)
    try:
        fingerprint, line = dialer.host_key(host)
    except HostError as error:
        # `torchyard_core.fleet.ssh` imports paramiko, which the window must not import before its first paint.
        from torchyard_core.fleet.ssh.login_errors import with_jump_of

        raise with_jump_of(behind.name, error) from error
    kind = line.split()[1]
    return ShownKey(host, kind, fingerprint, line, dialer.known_keys(host).get(kind))


def record_key(key: ShownKey, dialer: SshDialer) -> None:
    """Records the key as trusted. Raises UsageError if Torchyard's known-hosts file cannot be written."""
    try:
        dialer.trust(key.host, key.line)
    except OSError as error:
        path = error.filename or dialer.known_hosts
        message = f"the key cannot be recorded: {error.strerror}: {path}."
        hint = "Check the rights of the file and of its folder, and whether there is room."
        raise UsageError(message, code="unwritable", hint=hint) from error


def _to_trust(inventory: Inventory, name: str, dialer: SshDialer) -> tuple[Host, Host]:
    """Returns the machine with this name (host, login node or bastion), and the host whose route contains it."""
    logins = [login_host(cluster) for cluster in inventory.clusters]
    for login in logins:
        if login.name == name and not login.local:
            return login, login
    if all(host.name != name for host in inventory.hosts):
        for host in (host for host in (*inventory.hosts, *logins) if not host.local):
            for bastion in dialer.bastions(host):
                if bastion.name == name:
                    return bastion, host
    host = inventory.host(name)
    if host.local:
        raise UsageError(f"{name} is this computer, reached without SSH: there is no key to trust.", code="local_host")
    return host, host
