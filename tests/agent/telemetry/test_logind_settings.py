"""Tests of detecting hosts that kill a user's processes when the user logs out."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchyard_agent.telemetry.logind_settings import ends_with_login


def systemd(root: Path, settings: str = "", **drop_ins: str) -> str:
    """Creates the files of a host booted by systemd, with the given logind.conf and drop-ins."""
    (root / "run/systemd/system").mkdir(parents=True)
    folder = root / "etc/systemd/logind.conf.d"
    folder.mkdir(parents=True)
    (root / "etc/systemd/logind.conf").write_text(f"[Login]\n{settings}\n")
    for name, text in drop_ins.items():
        (folder / f"{name}.conf").write_text(f"[Login]\n{text}\n")
    return str(root)


KILLS = "#KillUserProcesses=no\nKillUserProcesses=yes"


def test_a_host_that_kills_user_processes_is_found(tmp_path: Path) -> None:
    assert ends_with_login(systemd(tmp_path, KILLS), "lee")


def test_a_lingering_user_is_spared(tmp_path: Path) -> None:
    root = systemd(tmp_path, KILLS)
    (tmp_path / "var/lib/systemd/linger").mkdir(parents=True)
    (tmp_path / "var/lib/systemd/linger/lee").touch()
    assert not ends_with_login(root, "lee")
    assert ends_with_login(root, "kim")


def test_by_default_no_user_is_affected_and_root_is_excluded(tmp_path: Path) -> None:
    assert not ends_with_login(systemd(tmp_path / "a"), "lee")
    assert not ends_with_login(systemd(tmp_path / "b", KILLS), "root")


def test_a_drop_in_overrides_the_main_file(tmp_path: Path) -> None:
    root = systemd(tmp_path, KILLS, keep="KillUserProcesses=no")
    assert not ends_with_login(root, "lee")


@pytest.mark.parametrize(("rule", "kills"), [("KillOnlyUsers=kim", False), ("KillExcludeUsers=lee", False)])
def test_settings_for_users_are_applied(tmp_path: Path, rule: str, kills: bool) -> None:
    assert ends_with_login(systemd(tmp_path, f"{KILLS}\n{rule}"), "lee") is kills


def test_a_host_without_systemd_kills_nothing(tmp_path: Path) -> None:
    assert not ends_with_login(str(tmp_path), "lee")
