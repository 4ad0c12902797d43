"""Tests of a fleet file that lists one machine under two names."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.end_to_end.running import topology
from tests.lab import Desktop, Lab

pytestmark = pytest.mark.lab


def test_a_run_on_two_names_of_one_machine_is_refused_and_other_commands_work(
    desktop: Desktop, lab3: Lab, tmp_path: Path
) -> None:
    fleet = yaml.safe_load(desktop.fleet_file.read_text())
    first = fleet["hosts"][0]
    desktop.fleet_file.write_text(yaml.safe_dump({**fleet, "hosts": [first, {**first, "name": "again"}]}))
    file = topology(
        tmp_path / "program",
        """\
        pools: [{name: workers, role: worker, replicas: 2, placement: spread}]
        program: {launcher: command, command: [sh, -c, "echo hi"]}
        """,
    )
    done = desktop.torchyard("run", file)
    assert done.returncode == 1
    assert "again is the same machine as gpu-a, with the same user: a run can use it only once." in done.stderr
    assert "hosts remove again`" in done.stderr
    assert desktop.torchyard("runs", "list").stdout == "No runs are known.\n"
    assert desktop.torchyard("status").returncode == 0
