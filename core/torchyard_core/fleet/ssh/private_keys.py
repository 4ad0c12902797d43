"""Private keys for logins, from key files and from an ssh-agent, and the order in which they are tried."""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import paramiko
from paramiko.agent import AgentKey, AgentSSH
from paramiko.pkey import UnknownKeyType

from torchyard_core.fleet.ssh.route import Route, existing_identities
from torchyard_core.home import expand_user

AGENT_TIMEOUT_S = 30.0
"""Timeout in seconds for answers of the ssh-agent. It may ask the user to confirm the use of a key."""
_OPENSSH = b"openssh-key-v1\0"


@dataclass(frozen=True)
class KeyFile:
    """Properties of a key file that are known without decrypting the key."""

    path: Path
    public: bytes
    """The public key in SSH's wire format; empty if unknown."""
    encrypted: bool
    private: bool
    """Whether the file may hold a private key. False for a public key, which selects a key of the ssh-agent."""

    @property
    def display_path(self) -> str:
        """The path for messages, in which `~` stands for the home folder."""
        with contextlib.suppress(ValueError):
            return f"~/{self.path.relative_to(expand_user('~'))}"
        return str(self.path)

    def open(self, passphrase: str | None = None) -> paramiko.PKey:
        """Loads the key, and a certificate stored next to the key file.

        Raises BadKey for an unusable file, or WrongPassphrase.
        """
        try:
            secret = None if passphrase is None else passphrase.encode()
            return paramiko.PKey.from_path(self.path, secret)  # type: ignore[arg-type]  # The library cryptography accepts bytes.
        except UnknownKeyType as error:
            raise BadKey(
                f"the key {self.display_path} is of a type that the built-in SSH client does not support"
            ) from error
        except OSError as error:
            raise BadKey(f"the key {self.display_path} cannot be read: {error.strerror}") from error
        except (paramiko.SSHException, ValueError, TypeError, IndexError, struct.error) as error:
            if self.encrypted and passphrase is not None:
                raise WrongPassphrase(f"the passphrase does not open the key {self.display_path}") from error
            raise BadKey(f"the key {self.display_path} is malformed") from error


class BadKey(Exception):
    """Raised for an unusable key file. The message contains the reason."""


class WrongPassphrase(BadKey):
    """Raised if the passphrase does not decrypt the key."""


def inspect_key_file(path: Path) -> KeyFile:
    """Returns a key file's public key and whether its private key is encrypted.

    The public key is read from the file or from the `.pub` file next to it. The file may be unreadable or have any
    content.
    """
    try:
        text = path.read_bytes()
    except OSError:
        text = b""
    beside = _public_line(path.with_name(f"{path.name}.pub"))
    if b"PRIVATE KEY" not in text:
        own = _public_blob(text)
        return KeyFile(path, own or beside, encrypted=False, private=bool(text and not own))
    if b"BEGIN OPENSSH PRIVATE KEY" in text:
        public, encrypted = _openssh(text)
        return KeyFile(path, public or beside, encrypted, private=True)
    return KeyFile(path, beside, encrypted=b"ENCRYPTED" in text, private=True)


def _openssh(text: bytes) -> tuple[bytes, bool]:
    """Returns the public key, and whether the private key is encrypted, from a file in OpenSSH's format.

    The header of this format is never encrypted (PROTOCOL.key).
    """
    try:
        data = base64.b64decode(b"".join(line for line in text.splitlines() if line and b"-----" not in line))
        fields, at = [], len(_OPENSSH)
        # The fields are cipher, KDF, KDF options, the number of keys, and the first public key.
        for number in range(4):
            at += 4 if number == 3 else 0
            length = struct.unpack_from(">I", data, at)[0]
            fields.append(data[at + 4 : at + 4 + length])
            at += 4 + length
    except (binascii.Error, struct.error):
        return b"", False
    return fields[3], fields[0] != b"none"


def _public_line(path: Path) -> bytes:
    with contextlib.suppress(OSError):
        return _public_blob(path.read_bytes())
    return b""


def _public_blob(line: bytes) -> bytes:
    """Returns the key of a line such as `ssh-ed25519 AAAA… comment`, or an empty value for other text."""
    words = line.split(None, 2)
    if len(words) < 2 or not words[0].startswith((b"ssh-", b"ecdsa-", b"sk-")):
        return b""
    try:
        return base64.b64decode(words[1], validate=True)
    except binascii.Error:
        return b""


class _Agent(AgentSSH):
    """A connection to an ssh-agent whose socket path is given (IdentityAgent)."""

    def __init__(self, path: str):
        super().__init__()
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(AGENT_TIMEOUT_S)
        try:
            connection.connect(path)
            self._connect(connection)  # type: ignore[attr-defined]  # The type stubs lack this attribute.
        except BaseException:  # The socket is also closed after KeyboardInterrupt.
            connection.close()
            raise


@contextmanager
def agent_keys(route: Route) -> Iterator[list[AgentKey]]:
    """Yields the keys of the ssh-agent, or an empty list if there is no ssh-agent.

    The keys can be used only inside the `with` block.
    """
    agent: AgentSSH | None = None
    try:
        with contextlib.suppress(OSError, paramiko.SSHException):
            path = os.environ.get("SSH_AUTH_SOCK", "") if route.agent is None else route.agent
            if path and hasattr(socket, "AF_UNIX"):
                agent = _Agent(path)
            elif route.agent is None:
                agent = paramiko.Agent()  # On Windows, this call finds Pageant and OpenSSH's agent.
        yield list(agent.get_keys()) if agent is not None else []
    finally:
        if agent is not None:
            agent._close()  # type: ignore[attr-defined]  # The type stubs lack this attribute.


def ordered_keys(route: Route, held: Sequence[AgentKey]) -> tuple[list[AgentKey | KeyFile], list[KeyFile]]:
    """Returns the keys for a login in the order in which they are tried. Keys that need no prompt come first.

    The first list contains the keys that need no prompt: keys of the ssh-agent whose files are configured, unencrypted
    key files, and other keys of the ssh-agent. The second list contains the encrypted files whose keys the ssh-agent
    does not hold.

    Args:
        route: The login.
        held: The keys of the ssh-agent.
    """
    files = [inspect_key_file(path) for path in existing_identities(route)]
    named = {file.public for file in files if file.public} if route.identity_files else set()
    in_agent = {key.asbytes() for key in held}
    others = [] if route.identities_only else [key for key in held if key.asbytes() not in named]
    left = [file for file in files if file.private and not (file.public and file.public in in_agent)]
    first = [key for key in held if key.asbytes() in named]
    return [*first, *(file for file in left if not file.encrypted), *others], [file for file in left if file.encrypted]
