"""Tests that the timeline names the users who launched and stopped a run."""

from __future__ import annotations

from tests.core.examples import host
from tests.gui.bridge.test_run_state import picture_of, tell
from tests.gui.runs.fake_hosts import Acting
from torchyard_gui.runs.labels import moment_in_words, moment_mark

HOSTS = (host("gpu-a", 2), host("gpu-b", 2))


def asked(run: Acting, what: str, user: str, at: float, **more: bool) -> None:
    desktop = {"kim": "laptop", "lee": "tower"}.get(user, "")
    run.play("asked", at, **{"by": user, "from": desktop, "what": what, "uid": 1000, **more})


def words_of(run: Acting) -> list[str]:
    picture = picture_of(run)
    changes = tell(picture, run)
    assert changes.moments == picture.moments
    return [moment_in_words(moment) for moment in picture.moments]


def test_one_launches_and_others_stop() -> None:
    run = Acting(HOSTS)
    asked(run, "launch", "kim", 0.5)
    run.start()
    asked(run, "stop", "lee", 20, force=False)
    run.play("run_state", 20, state="stopping", reason="stopped by lee@tower")
    asked(run, "stop", "kim", 21, force=True)
    asked(run, "stop", "lee", 22, force=True)
    run.end("stopped", "stopped by lee@tower")
    assert words_of(run) == [
        "launched by kim@laptop",
        "starting",
        "running",
        "stop requested by lee@tower",
        "stopping: stopped by lee@tower",
        "immediate stop requested by kim@laptop",
        "immediate stop requested by lee@tower",
        "stopped by lee@tower",
    ]


def test_a_desktop_that_did_not_say_is_another_user_and_an_unknown_request_is_shown_unchanged() -> None:
    run = Acting(HOSTS)
    asked(run, "stop", "", 20, force=False)
    asked(run, "pause", "kim", 30)
    assert words_of(run) == ["stop requested by another user", "kim@laptop: pause"]


def test_each_has_a_mark() -> None:
    run = Acting(HOSTS)
    asked(run, "launch", "kim", 0.5)
    asked(run, "stop", "lee", 20, force=False)
    picture = picture_of(run)
    tell(picture, run)
    assert [moment_mark(moment) for moment in picture.moments] == ["planned", "stopping"]
