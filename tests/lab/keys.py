"""SSH keys of a lab, made with ssh-keygen: one pair for the desktop, one for each host."""

from __future__ import annotations

import base64
import hashlib
import subprocess
from pathlib import Path

from tests.lab.needs import SEARCH_PATH


def make_key(path: Path, comment: str, passphrase: str = "") -> str:
    """Creates an ed25519 key pair at `path` and `path.pub`, replacing existing files; returns the public key's line."""
    public = path.with_name(path.name + ".pub")
    path.unlink(missing_ok=True)
    public.unlink(missing_ok=True)
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", comment, "-f", str(path)]
    subprocess.run(command, env={"PATH": SEARCH_PATH}, check=True, capture_output=True)
    return public.read_text().strip()


def fingerprint(public_line: str) -> str:
    """Returns the fingerprint of a public key, as SHA256:…."""
    digest = hashlib.sha256(base64.b64decode(public_line.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def known_hosts_line(address: str, port: int, public_line: str) -> str:
    """Returns the line that a known-hosts file needs for an address, a port and a key."""
    place = address if port == 22 else f"[{address}]:{port}"
    return f"{place} {' '.join(public_line.split()[:2])}"
