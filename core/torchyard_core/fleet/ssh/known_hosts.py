"""Which key a host may show. Those of the user's known_hosts and of ours count, and only ours is ever written."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import threading
from pathlib import Path

import paramiko

from torchyard_core.errors import KeyChanged, KeyUnknown
from torchyard_core.fleet.ssh.route import Route

USER_KNOWN_HOSTS = Path("~/.ssh/known_hosts")


def fingerprint(key: paramiko.PKey) -> str:
    """As ssh-keygen shows it: `SHA256:` and unpadded base64."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")


class KnownHosts:
    """The keys that are known now. The files are read again when they have changed."""

    def __init__(self, path: Path):
        """`path` is the file of ours."""
        self.path = path
        self._lock = threading.Lock()
        self._read: dict[Path, tuple[tuple[int, int], paramiko.HostKeys]] = {}

    def keys_of(self, route: Route) -> dict[str, paramiko.PKey]:
        """Known keys by their type. Our file's word counts before the user's: it is what was trusted last."""
        return self._named(route.key_name)

    def check(self, route: Route, key: paramiko.PKey) -> None:
        """Raises KeyUnknown or KeyChanged, unless this is a key on record."""
        known = self.keys_of(route)
        expected = known.get(key.get_name())
        if expected == key:
            return
        if not known:
            if route.key_name.startswith("[") and self._named(route.address.lower()).get(key.get_name()) == key:
                return  # as ssh(1): the same key on record without its port will do
            raise KeyUnknown(
                route.name,
                f"the host key of {route.name} ({route.place}) is not known: {key.get_name()} {fingerprint(key)}.",
                fingerprint=fingerprint(key),
                hint=f"Compare it with the host's own, then run `torchyard hosts trust {route.name}`.",
            )
        raise KeyChanged(
            route.name,
            f"the host key of {route.name} ({route.place}) has changed: it shows {fingerprint(key)}, "
            f"on record is {fingerprint(expected or next(iter(known.values())))}.",
            fingerprint=fingerprint(key),
            hint="The host was reinstalled, or somebody stands between you and it. If its owner confirms the new key, "
            f"run `torchyard hosts trust {route.name}`.",
        )

    def prefer_known(self, route: Route, transport: paramiko.Transport) -> None:
        """Lets the host show a key of a type that we know, where it has several."""
        options = transport.get_security_options()
        known: list[str] = []
        for kind in self.keys_of(route):
            known += ["rsa-sha2-512", "rsa-sha2-256"] if kind == "ssh-rsa" else [kind]
        types = list(options.key_types)
        options.key_types = tuple(sorted(types, key=lambda kind: (kind not in known, types.index(kind))))

    def trust(self, route: Route, line: str) -> None:
        """Records a host's key in our file, in place of any that we had for it."""
        with self._lock:
            old = self.path.read_text().splitlines() if self.path.exists() else []
            kept = [known for known in old if known.split(" ")[0] != route.key_name]
            self.path.parent.mkdir(parents=True, exist_ok=True)
            scratch = self.path.with_name(f"{self.path.name}.{os.getpid()}")
            scratch.write_text("\n".join([*kept, line]) + "\n")
            scratch.replace(self.path)

    def _named(self, name: str) -> dict[str, paramiko.PKey]:
        found: dict[str, paramiko.PKey] = {}
        for path in (USER_KNOWN_HOSTS.expanduser(), self.path):
            found |= dict((self._keys(path).lookup(name) or {}).items())
        return found

    def _keys(self, path: Path) -> paramiko.HostKeys:
        # Unreadable or partly garbled files: what can be read counts, as with ssh(1).
        with self._lock, contextlib.suppress(OSError):
            state = path.stat()
            stamp = (state.st_mtime_ns, state.st_size)
            if path not in self._read or self._read[path][0] != stamp:
                keys = paramiko.HostKeys()
                with contextlib.suppress(paramiko.SSHException):
                    keys.load(str(path))
                self._read[path] = (stamp, keys)
            return self._read[path][1]
        return paramiko.HostKeys()
