"""What `~/.ssh/config` says of a host: read when first asked, so that a mistake in it stops only who needs it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import paramiko

from torchyard_core.errors import FileProblem
from torchyard_core.fleet.ssh.route import Settings
from torchyard_core.fleet.ssh_config import USER_CONFIG, config_text
from torchyard_core.topology.paths import expanded


class _Unexpanded(paramiko.SSHConfig):
    """Leaves tokens to the route, which knows what the fleet file has changed about address, port and user."""

    TOKENS_BY_CONFIG_KEY = {"match-exec": paramiko.SSHConfig.TOKENS_BY_CONFIG_KEY["match-exec"]}  # noqa: RUF012 - paramiko's own


class UserConfig:
    """The user's configuration, includes and all. Safe to use from several threads."""

    def __init__(self, path: Path = USER_CONFIG):
        self._path = path
        self._lock = threading.Lock()
        self._config: paramiko.SSHConfig | None = None

    def lookup(self, alias: str) -> Settings:
        """Keywords for the host that one would type after `ssh`. Raises FileProblem."""
        with self._lock:
            try:
                if self._config is None:
                    self._config = _Unexpanded.from_text(config_text(expanded(self._path)))
                found: dict[str, Any] = dict(self._config.lookup(alias))
            except (paramiko.ConfigParseError, paramiko.SSHException, ValueError, KeyError) as error:
                raise FileProblem(
                    f"{self._path} cannot be understood: {error}.",
                    code="ssh_config",
                    hint="`ssh -G HOST` may say more. Hosts with `transport: openssh` or `local: true` go without it.",
                ) from error
        return {key: value for key, value in found.items() if value is not None}
