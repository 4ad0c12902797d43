"""Tests that `torchyard settings` lists, sets and resets settings, and refuses unknown keys and time zones."""

from __future__ import annotations

import json

from tests.core.cli.command_runner import torchyard
from tests.lab import Desktop


def test_a_setting_is_listed_set_and_reset(desktop: Desktop) -> None:
    file = desktop.home / "settings.yaml"
    assert "(this computer's)" in torchyard(desktop, "settings", "list").stdout
    assert torchyard(desktop, "settings", "set", "zone", "Asia/Seoul").stdout == "zone is Asia/Seoul now.\n"
    assert file.read_text() == "zone: Asia/Seoul\n"
    listed = json.loads(torchyard(desktop, "settings", "list", "--json").stdout)
    assert listed["zone"] == {"value": "Asia/Seoul", "is_set": True}
    assert listed["keep_after_failure"] == {"value": "30min", "is_set": False}
    answer = json.loads(torchyard(desktop, "settings", "reset", "zone", "--json").stdout)
    assert answer == {"key": "zone", "value": None, "before": "Asia/Seoul"}
    assert file.read_text() == ""


def test_an_unknown_zone_or_key_is_refused(desktop: Desktop) -> None:
    assert "did you mean `Asia/Seoul`" in torchyard(desktop, "settings", "set", "zone", "Asia/Seul", code=2).stderr
    assert "did you mean `zone`" in torchyard(desktop, "settings", "reset", "zones", code=2).stderr
    assert not (desktop.home / "settings.yaml").exists()
