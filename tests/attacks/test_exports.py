"""Tests that topology files of other users export neither folders nor credentials unless the user confirms it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.running import run, topology
from tests.lab import Desktop, Lab
from torchyard_core.launch.confirmations import confirm_outside_folder
from torchyard_core.launch.snapshots.excluded_files import CREDENTIALS
from torchyard_core.launch.snapshots.snapshot import take_snapshot


def test_credentials_are_not_sent_unless_the_file_includes_them(tmp_path: Path) -> None:
    for pattern in CREDENTIALS:
        name = pattern.replace("*", "deploy")
        path = tmp_path / "deep" / (f"{name}config" if name.endswith("/") else name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("hush")
    (tmp_path / "train.py").write_text("")
    (tmp_path / ".envrc").write_text("")

    assert [entry["path"] for entry in take_snapshot(tmp_path).manifest] == [".envrc", "deep", "train.py"]
    sent = [entry["path"] for entry in take_snapshot(tmp_path, ("!.env",)).manifest]
    assert sent == [".envrc", "deep/.env", "train.py"]


def test_a_folder_outside_the_files_own_is_asked_about(tmp_path: Path) -> None:
    own = tmp_path / "shared"
    (own / "code").mkdir(parents=True)
    (own / "link").symlink_to(tmp_path)
    assert confirm_outside_folder(own.resolve(), own) is None
    assert confirm_outside_folder((own / "code").resolve(), own) is None
    assert confirm_outside_folder((own / "..").resolve(), own) is not None
    assert confirm_outside_folder((own / "link").resolve(), own) is not None
    assert confirm_outside_folder((tmp_path / "shared-too").resolve(), own) is not None


@pytest.mark.lab
def test_a_colleagues_file_is_asked_about_once(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    text = """\
        pools: [{name: workers, role: worker, replicas: 1, hosts: [gpu-b]}]
        program: {launcher: command, command: ["true"], workdir: .., secrets: [TOKEN]}
    """
    (tmp_path / "home").mkdir()
    file = topology(tmp_path / "home" / "shared", text)
    secret = {"TOKEN": "hush-hush-3c"}

    refused = run(desktop, file, env=secret)
    assert refused.code == 1
    assert refused.error["code"] == "workdir_outside"
    assert "sends the secret TOKEN to the hosts" in refused.stderr
    assert not list(lab3["gpu-b"].home.rglob("topology.yaml"))

    assert run(desktop, file, "-y", env=secret).code == 0
    again = run(desktop, file, env=secret)
    assert again.code == 0
    assert "sends the secret" not in again.stderr
