"""Installs the agent's files on hosts, unpacked and compiled, without starting a daemon.

Without these files, each host would unpack and compile the agent in each test, which takes three seconds of CPU time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

from tests.lab.lab import Lab
from torchyard_agent.daemon import bytecode
from torchyard_agent.protocol import paths
from torchyard_core.fleet.agent_archive import build_archive


class InstalledAgent:
    """This installation's agent, unpacked and compiled once into a new folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, lab: Lab) -> None:
        """Hard-links the files into the home folder of root, on each host where the agent runs as root with the usual
        Python. Hosts never write to these files.
        """
        homes = {host.home for host in lab.hosts if host.user == "root" and host.spec.python == "usual"}
        for home in homes:
            self._put(home)

    def _put(self, home: Path) -> None:
        archive = build_archive()
        if not self._folder.exists():
            self._make(json.loads(zlib.decompress(archive.data)))
        target = Path(paths.archive_dir(str(home / ".torchyard"), archive.sha256))
        for parent, _, names in os.walk(self._folder):
            there = target / Path(parent).relative_to(self._folder)
            there.mkdir(mode=0o700, parents=True)
            for name in names:
                os.link(Path(parent, name), there / name)

    def _make(self, sources: dict[str, str]) -> None:
        for name, text in sources.items():
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        usual = Path("/usr/bin/python3")  # Agents on hosts run with this interpreter if it exists.
        python = usual if usual.exists() else sys.executable
        subprocess.run([python, "-I", "-S", bytecode.__file__, self._folder], check=True, timeout=120)
