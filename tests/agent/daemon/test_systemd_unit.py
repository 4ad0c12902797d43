"""Tests of the systemd unit that starts the daemon after a reboot."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from pathlib import Path

import pytest

from torchyard_agent.daemon import systemd_unit

SHA256 = "ab" * 32


def lingering(root: Path) -> str:
    """Creates the files that show that systemd has booted the host and that lingering is enabled for this user."""
    (root / "run/systemd/system").mkdir(parents=True)
    (root / "var/lib/systemd/linger").mkdir(parents=True)
    (root / "var/lib/systemd/linger" / pwd.getpwuid(os.getuid()).pw_name).touch()
    return str(root)


def test_the_unit_starts_the_daemon_of_the_archive_and_is_enabled(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert systemd_unit.install("/home/lee/my agent", SHA256, lingering(tmp_path), str(home))
    [file] = (home / ".config/systemd/user").glob("*.service")
    start = next(line for line in file.read_text().splitlines() if line.startswith("ExecStart="))
    assert start.endswith(f'/store/{SHA256}/torchyard_agent/__main__.py" daemon "/home/lee/my agent" {SHA256}')
    assert (home / ".config/systemd/user/default.target.wants" / file.name).resolve() == file.resolve()
    systemd_unit.remove("/home/lee/my agent", str(home))
    assert not [path for path in (home / ".config").rglob("*") if not path.is_dir()]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    home = tmp_path / "home"
    systemd_unit.install("/home/lee/100 % agent", SHA256, lingering(tmp_path), str(home))
    [file] = (home / ".config/systemd/user").glob("*.service")
    checked = subprocess.run(["systemd-analyze", "verify", str(file)], capture_output=True, text=True, check=False)
    assert file.name not in checked.stderr, checked.stderr


def test_a_newer_archive_replaces_the_older(tmp_path: Path) -> None:
    root, home = lingering(tmp_path), str(tmp_path / "home")
    systemd_unit.install("/agent", SHA256, root, home)
    systemd_unit.install("/agent", "cd" * 32, root, home)
    [file] = (tmp_path / "home/.config/systemd/user").glob("*.service*")
    assert "cd" * 32 in file.read_text()
    assert SHA256 not in file.read_text()


def test_no_unit_is_written_if_systemd_would_not_start_it(tmp_path: Path) -> None:
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    assert not systemd_unit.install("/agent", SHA256, str(tmp_path), str(tmp_path / "home"))
    assert not (tmp_path / "home").exists()
