"""The imports of `torchyard` commands and the archive that they send, for the fork server of the tests."""

from __future__ import annotations

import paramiko  # noqa: F401  # Commands import these modules only when they need them.

import torchyard_core.launch.launch
import torchyard_core.launch.runs.known_runs  # noqa: F401
from torchyard_core.cli.root_command import LazyCommands
from torchyard_core.fleet.agent_archive import build_archive

list(LazyCommands().values())

# Compressing the archive takes a third of the CPU time of a command that connects to a host.
build_archive()
