"""Tests of what a launch reports if a host's agent has a different version, or the topology does not fit."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from torchyard_core.errors import HostError
from torchyard_core.launch.checks.check import Check
from torchyard_core.topology.file import topology_from_text
from torchyard_gui.bridge.launch_job import LaunchJob, _without_file
from torchyard_gui.launch.checklist_model import Checklist

NEWER = "gpu-a: its agent is newer than this desktop's (0.1.0) and was kept: 0.2.0."


@dataclass
class OpenLink:
    remark: str


def test_a_newer_agent_is_an_amber_line_of_the_checklist(qtbot: Any) -> None:
    links = {"gpu-a": OpenLink(NEWER), "gpu-b": OpenLink("")}
    model: Any = SimpleNamespace(fleet=SimpleNamespace(open_link=links.get), inventory=SimpleNamespace(clusters=()))
    job = LaunchJob(topology_from_text("version: 1"), model)
    found = {host: Check("host", host, True, "agent 0.2.0 on Python 3.11") for host in ("gpu-a", "gpu-b", "gpu-c")}

    said = job._with_remark(found["gpu-a"])

    assert (said.severity, NEWER in said.message) == ("amber", True)
    assert job._with_remark(found["gpu-b"]) is found["gpu-b"]
    assert job._with_remark(found["gpu-c"]) is found["gpu-c"]
    disk = Check("disk", "gpu-a", True, "120 GB free")
    assert job._with_remark(disk) is disk


def test_a_problem_of_the_topology_is_shown_without_the_line_of_its_file() -> None:
    error = HostError("hpc", "digits.yaml:9: error no-room worker-0 needs 8 GPUs", hint="Ask for fewer nodes.")
    assert _without_file(error) is error
    error.topology_problem = "worker-0 needs 8 GPUs"
    shown = _without_file(error)
    assert (shown.message, shown.code, shown.hint) == (error.topology_problem, "topology_problems", error.hint)
    assert Checklist().fail("", shown.message, shown.advice, shown.code).name == "topology"
