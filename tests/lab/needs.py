"""The lab's requirements on this machine, and a check for missing requirements."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache

TOOLS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mount": "mount",
    "bash": "bash",
}
"""Programs that the lab runs, with the Debian package of each."""

SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The system's usual PATH, with which hosts are built and booted regardless of the PATH of the tests."""


class LabUnavailable(Exception):
    """Raised when this machine cannot create hosts; names what is missing."""


class LabBroken(Exception):
    """Raised when a host cannot be created or used although the machine meets the requirements."""


@cache
def missing() -> tuple[str, ...]:
    """Returns the missing requirements; empty if hosts can be created."""
    if not sys.platform.startswith("linux"):
        return ("Linux",)
    lacks = []
    if os.geteuid() != 0:
        lacks.append("root")
    for tool, package in TOOLS.items():
        if shutil.which(tool, path=SEARCH_PATH) is None:
            lacks.append(f"{tool} (Debian package {package})")
    if not lacks:
        namespaces = ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "true"]
        attempt = subprocess.run(namespaces, env={"PATH": SEARCH_PATH}, capture_output=True, text=True, check=False)
        if attempt.returncode:
            lacks.append(f"the right to make namespaces ({attempt.stderr.strip()})")
    return tuple(lacks)


def require(*programs: str) -> None:
    """Raises LabUnavailable unless this machine can create hosts and `programs` (absolute paths) exist."""
    lacks = [*missing(), *(program for program in programs if not os.access(program, os.X_OK))]
    if lacks:
        raise LabUnavailable(f"This machine cannot make lab hosts; it lacks: {', '.join(lacks)}.")
