"""The lab: several hosts on one machine, each with its own address, name, HOME, processes and real OpenSSH server.

    with Lab(2, directory=tmp_path) as lab:
        lab.ssh(lab.hosts[0], "hostname").stdout  # "gpu-a\\n"
        lab["gpu-b"].destroy()  # like a power cut

Tests use the fixtures of `tests/lab_fixtures.py`; `python -m tests.lab` keeps a lab running in a terminal.
"""

from __future__ import annotations

from tests.lab.desktop import Desktop
from tests.lab.hosts.host import LabHost
from tests.lab.hosts.processes import HostProcess
from tests.lab.hosts.spec import HostSpec, host_names
from tests.lab.lab import Lab
from tests.lab.needs import LabBroken, LabUnavailable

__all__ = [
    "Desktop",
    "HostProcess",
    "HostSpec",
    "Lab",
    "LabBroken",
    "LabHost",
    "LabUnavailable",
    "host_names",
]
