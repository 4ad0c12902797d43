"""Tests of a compromised host that reports false runs: `runs restart` relies on the desktop's own record and sends no
secret.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.running import run, topology
from tests.lab import Desktop, Lab
from torchyard_core.errors import RunFailed
from torchyard_core.launch.restart import EndedRun, allowed_secrets, confirm_foreign_run, confirm_foreign_secrets
from torchyard_core.launch.runs.history import RunRecord
from torchyard_core.topology.file import topology_from_text

FILE = """\
pools: [{name: workers, role: worker, replicas: 1, hosts: [gpu-b]}]
program: {launcher: command, command: [python3, script.py]}
"""
INVENTED = """\
version: 1
name: invented
pools: [{name: workers, role: worker, replicas: 3, placement: spread}]
program: {launcher: command, command: [sh, -c, "env > stolen"], workdir: null, secrets: [AWS_SECRET_ACCESS_KEY]}
"""


def rewrite(record: Path, change: Callable[[dict[str, Any]], None]) -> None:
    data = json.loads(record.read_text())
    change(data)
    record.write_text(json.dumps(data))


def foreign(text: str) -> EndedRun:
    source = topology_from_text(text)
    assert source.topology is not None
    return EndedRun("r", "r", "n", source, source.topology, None, {}, "gpu-b")


def test_a_foreign_run_is_shown_whole_and_cannot_forge_lines() -> None:
    question = confirm_foreign_run(foreign(INVENTED.replace("env > stolen", "x\\n  secrets: none\\e[2J")))

    assert question is not None
    assert r"command: sh -c 'x\n  secrets: none\x1b[2J'" in question.message
    assert "\n  secrets: AWS_SECRET_ACCESS_KEY\n" in question.message
    assert "hosts: any host of the fleet" in question.message
    assert confirm_foreign_run(EndedRun(**{**vars(foreign(INVENTED)), "reported_by": ""})) is None


def test_secrets_of_a_foreign_run_are_those_that_the_user_names() -> None:
    with pytest.raises(RunFailed, match="this computer did not launch it") as refused:
        allowed_secrets(foreign(INVENTED))
    assert "--secret AWS_SECRET_ACCESS_KEY" in refused.value.hint
    assert allowed_secrets(foreign(INVENTED), ["AWS_SECRET_ACCESS_KEY", "OTHER"]) == ("AWS_SECRET_ACCESS_KEY",)


def test_the_confirmation_names_secrets_hosts_and_command_of_a_foreign_run() -> None:
    question = confirm_foreign_secrets(foreign(INVENTED.replace("AWS_SECRET_ACCESS_KEY", "AWS_KEY, HF_TOKEN")))

    assert question is not None
    assert question.question == "Send AWS_KEY, HF_TOKEN to the hosts?"
    assert question.message.splitlines()[1:] == [
        "  secrets: AWS_KEY, HF_TOKEN",
        "  command: sh -c 'env > stolen'",
        "  hosts: any host of the fleet",
    ]
    assert confirm_foreign_secrets(foreign(INVENTED.replace("AWS_SECRET_ACCESS_KEY", ""))) is None
    assert confirm_foreign_secrets(EndedRun(**{**vars(foreign(INVENTED)), "reported_by": ""})) is None


def test_a_record_of_an_older_version_does_not_identify_the_code() -> None:
    assert not RunRecord("r", "n", "", "a", ("a",), "", "", topology=INVENTED).tells_what_ran
    assert RunRecord("r", "n", "", "a", ("a",), "", "", topology=INVENTED, snapshot=None).tells_what_ran


@pytest.mark.lab
def test_a_host_that_lies_about_runs_launches_nothing(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    first = run(desktop, topology(tmp_path / "program", FILE, script_py="print('mine')"))
    assert first.code == 0, first.stderr
    runs = lab3["gpu-b"].home / ".torchyard" / "hosts" / "gpu-b" / "runs"
    record = runs / first.run_id / "run.json"
    secret = {"AWS_SECRET_ACCESS_KEY": "hush-hush-9d"}

    # The host reports a different topology for a real run.
    honest = record.read_text()
    rewrite(record, lambda data: data["record"].update(topology=INVENTED))
    changed = desktop.torchyard("runs", "restart", first.run_id, "-y", env=secret)
    assert changed.returncode == 1
    assert f"the record of run {first.run_id} on gpu-b is not what this computer launched: its topology differs" in (
        changed.stderr
    )
    # The host reports different code.
    record.write_text(honest)
    rewrite(record, lambda data: data.update(snapshot="ab" * 32))
    changed = desktop.torchyard("runs", "restart", first.run_id, "-y", env=secret)
    assert "its code differs" in changed.stderr
    record.write_text(honest)

    # The host invents a newer run, which has the name of a run that the user knows.
    invented = f"20991231-235959-{first.run_id.rpartition('-')[2]}"
    shutil.copytree(runs / first.run_id, runs / invented, symlinks=True)

    def invent(data: dict[str, Any]) -> None:
        data.update(run_id=invented, snapshot=None)
        data["record"].update(topology=INVENTED)

    rewrite(runs / invented / record.name, invent)
    asked = desktop.torchyard("runs", "restart", "last", env=secret)
    assert asked.returncode == 1
    assert f"this computer did not launch run {invented}; gpu-b says that it was:" in asked.stderr
    assert "command: sh -c 'env > stolen'" in asked.stderr
    assert "secrets: AWS_SECRET_ACCESS_KEY" in asked.stderr
    answered = desktop.torchyard("runs", "restart", invented, "-y", env=secret)
    assert answered.returncode == 1
    assert "this computer did not launch it" in answered.stderr
    assert not list(lab3["gpu-a"].home.rglob("stolen"))

    # The host claims to be the primary of a run in which it did not take part.
    listed = json.loads(desktop.torchyard("runs", "list", "--json").stdout)
    shutil.copytree(runs / first.run_id, lab3["gpu-c"].home / ".torchyard/hosts/gpu-c/runs" / first.run_id)
    rewrite(
        lab3["gpu-c"].home / ".torchyard/hosts/gpu-c/runs" / first.run_id / record.name,
        lambda data: data["record"].update(primary="gpu-c", hosts=["gpu-c"], topology=INVENTED),
    )
    again = json.loads(desktop.torchyard("runs", "list", "--json").stdout)
    assert [one for one in again if one["run_id"] == first.run_id] == [
        one for one in listed if one["run_id"] == first.run_id
    ]
