"""Trusted host keys, from the user's known_hosts and from Torchyard's own file. Only Torchyard's file is written."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import struct
import threading
from dataclasses import dataclass
from pathlib import Path

import paramiko
from paramiko.hostkeys import HostKeyEntry, InvalidHostKey

from torchyard_core.atomic_write import replace_content
from torchyard_core.errors import KeyChanged, KeyUnknown
from torchyard_core.fleet.ssh.route import Route
from torchyard_core.home import expand_user
from torchyard_core.next_steps import TrustKey

USER_KNOWN_HOSTS = Path("~/.ssh/known_hosts")
REVOKED = "@revoked"


def fingerprint(key: paramiko.PKey) -> str:
    """Returns the fingerprint of a key in the format of ssh-keygen: `SHA256:` and unpadded base64."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")


class KnownHosts:
    """The trusted host keys. A file is read again after it has changed."""

    def __init__(self, path: Path):
        """Creates an instance. `path` is Torchyard's own known_hosts file."""
        self.path = path
        self._lock = threading.Lock()
        self._read: dict[Path, tuple[tuple[int, int], _Recorded]] = {}

    def keys_of(self, route: Route) -> dict[str, paramiko.PKey]:
        """Returns the trusted keys of a host by type. Torchyard's file takes precedence over the user's."""
        return self._named(route.key_name)

    def check(self, route: Route, key: paramiko.PKey) -> None:
        """Raises KeyUnknown or KeyChanged unless the key is trusted and not revoked."""
        for path in self._paths():
            if key.asbytes() in self._recorded(path).revoked:
                raise KeyChanged(
                    route.name,
                    f"{route.name} ({route.place}) shows the host key {fingerprint(key)}, which is revoked in {path}.",
                    fingerprint=fingerprint(key),
                    hint="Another machine may use the revoked key to pose as this host: ask the owner of the host.",
                )
        known = self.keys_of(route)
        expected = known.get(key.get_name())
        if expected == key:
            return
        if not known:
            if route.key_name.startswith("[") and self._named(route.address.lower()).get(key.get_name()) == key:
                return  # As in ssh(1), a key that is recorded for the host's name without a port is also accepted.
            message = f"the host key of {route.name} ({route.place}) is not known: {key.get_name()} {fingerprint(key)}."
            hint = ("Compare it with the host's own before you trust it.", TrustKey(route.name))
            raise KeyUnknown(route.name, message, fingerprint=fingerprint(key), hint=hint)
        on_record = fingerprint(expected or next(iter(known.values())))
        raise KeyChanged(
            route.name,
            f"the host key of {route.name} ({route.place}) has changed: it shows {fingerprint(key)}, "
            f"on record is {on_record}.",
            fingerprint=fingerprint(key),
            on_record=on_record,
        )

    def prefer_known(self, route: Route, transport: paramiko.Transport) -> None:
        """Makes the key exchange prefer host key types with a trusted key. A host may have keys of several types."""
        options = transport.get_security_options()
        known: list[str] = []
        for kind in self.keys_of(route):
            known += ["rsa-sha2-512", "rsa-sha2-256"] if kind == "ssh-rsa" else [kind]
        types = list(options.key_types)
        options.key_types = tuple(sorted(types, key=lambda kind: (kind not in known, types.index(kind))))

    def trust(self, route: Route, line: str) -> None:
        """Records a host's key, given as a known_hosts line, in Torchyard's file.

        The key replaces older keys of the host. Raises OSError if the file cannot be written.
        """
        with self._lock:
            old = self.path.read_text(errors="surrogateescape").splitlines() if self.path.exists() else []
            kept = [known for known in old if known.split(" ")[0] != route.key_name]
            replace_content(self.path, "\n".join([*kept, line]) + "\n", errors="surrogateescape")

    def _paths(self) -> tuple[Path, Path]:
        """Returns the paths of the known_hosts files: the user's, then Torchyard's, which takes precedence."""
        return expand_user(USER_KNOWN_HOSTS), self.path

    def _named(self, name: str) -> dict[str, paramiko.PKey]:
        found: dict[str, paramiko.PKey] = {}
        for path in self._paths():
            found |= self._recorded(path).named(name)
        return found

    def _recorded(self, path: Path) -> _Recorded:
        # As in ssh(1), an unreadable file is treated as missing.
        with self._lock, contextlib.suppress(OSError):
            state = path.stat()
            stamp = (state.st_mtime_ns, state.st_size)
            if path not in self._read or self._read[path][0] != stamp:
                self._read[path] = (stamp, _Recorded.of(path.read_text(errors="replace")))
            return self._read[path][1]
        return _Recorded.of("")


@dataclass(frozen=True)
class _Recorded:
    """The parsed content of one known_hosts file."""

    entries: tuple[tuple[tuple[str, ...], paramiko.PKey], ...]
    """The host names of each line, plain or hashed, and the line's key."""
    revoked: frozenset[bytes]
    """Revoked keys (`@revoked`) in SSH's wire format."""

    @staticmethod
    def of(text: str) -> _Recorded:
        """Parses a file line by line.

        Damaged lines and lines with unsupported markers (`@cert-authority`) are skipped.
        """
        entries = []
        revoked = set()
        for line in map(str.strip, text.splitlines()):
            is_revoked = line.startswith(f"{REVOKED} ")
            entry = _entry(line.removeprefix(REVOKED).strip() if is_revoked else line)
            if entry is not None and is_revoked:
                revoked.add(entry[1].asbytes())
            elif entry is not None:
                entries.append(entry)
        return _Recorded(tuple(entries), frozenset(revoked))

    def named(self, name: str) -> dict[str, paramiko.PKey]:
        """Returns the keys of a host by type. If several lines have keys of one type, the first applies."""
        found: dict[str, paramiko.PKey] = {}
        for names, key in self.entries:
            if key.get_name() not in found and any(_is_name(name, known) for known in names):
                found[key.get_name()] = key
        return found


def _entry(line: str) -> tuple[tuple[str, ...], paramiko.PKey] | None:
    """Returns the names and the key of a line, or None for a line without a key."""
    if not line or line.startswith(("#", "@")):
        return None
    try:
        entry = HostKeyEntry.from_line(line)
    except (InvalidHostKey, paramiko.SSHException, ValueError, IndexError, ArithmeticError, struct.error):
        return None
    return (tuple(entry.hostnames), entry.key) if entry is not None and entry.key is not None else None


def _is_name(name: str, known: str) -> bool:
    """Returns whether the recorded name `known`, which may be hashed, stands for `name`."""
    if not known.startswith("|1|"):
        return known == name
    try:
        return paramiko.HostKeys.hash_host(name, known) == known
    except (ValueError, IndexError, AssertionError):  # A damaged hashed name matches no host.
        return False
