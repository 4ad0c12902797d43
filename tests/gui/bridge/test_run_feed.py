"""Tests that the events of a run reach the window in order and in batches, even if connections are lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import shiboken6

from tests.core.examples import host
from tests.gui.job_threads import job_threads
from tests.gui.runs.fake_hosts import BEGAN, EPOCH, Acting, close, runs_model
from torchyard_core.formatting import utc_timestamp
from torchyard_core.home import Home
from torchyard_core.launch.runs import follower
from torchyard_gui.bridge import run_feed
from torchyard_gui.bridge.run_feed import RunFeed
from torchyard_gui.bridge.runs_model import RunsModel


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the delay before the feed reconnects."""
    monkeypatch.setattr(follower, "RETRY_S", (0.05,))
    monkeypatch.setattr("torchyard_gui.bridge.run_feed.RETRY_S", (0.05,))


@pytest.fixture
def run() -> Acting:
    return Acting((host("gpu-a", 2), host("gpu-b", 2)))


@pytest.fixture
def model(qtbot: Any, home: Home, run: Acting) -> Iterator[RunsModel]:
    run.note(home)
    made = runs_model(home, run)
    yield made
    close(made)


@pytest.fixture
def feed(model: RunsModel) -> RunFeed:
    return model.feed(model.runs[0])


class LateClock:
    """Replaces the module `time`, to simulate a window that was blocked for some time."""

    late_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.late_s

    def time(self) -> float:
        return time.time() + self.late_s

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def wait_live(qtbot: Any, feed: RunFeed, run: Acting) -> None:
    """Waits until the feed follows all hosts."""
    qtbot.waitUntil(lambda: run.is_followed)
    qtbot.waitUntil(lambda: feed.was_heard and feed.picture.state == "running")


def test_states_and_samples_arrive(qtbot: Any, feed: RunFeed, run: Acting) -> None:
    run.start()
    wait_live(qtbot, feed, run)
    run.measure(10)
    qtbot.waitUntil(lambda: len(feed.picture.tracks["worker-2"].ring) == 1)
    look = feed.live_state_of("worker-2")
    assert look.state == "running"
    assert look.metric.endswith(" %")
    assert look.meter is not None


def test_a_closed_feed_ends_its_thread_without_waiting_for_an_event(
    qtbot: Any, model: RunsModel, run: Acting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "POLL_S", 3600)
    run.start()
    feed = model.feed(model.runs[0])
    wait_live(qtbot, feed, run)
    assert job_threads("RunFeed._begin")
    feed.close()
    qtbot.waitUntil(lambda: not job_threads("RunFeed._begin"))


def test_a_feed_that_is_deleted_without_being_closed_ends_its_thread(qtbot: Any, model: RunsModel, run: Acting) -> None:
    run.start()
    feed = model.feed(model.runs[0])
    wait_live(qtbot, feed, run)
    model._feeds.clear()
    shiboken6.delete(feed)
    qtbot.waitUntil(lambda: not job_threads("RunFeed._begin"))


def test_a_closed_feed_ends_its_thread_between_two_attempts_to_connect(
    qtbot: Any, model: RunsModel, run: Acting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchyard_gui.bridge.run_feed.RETRY_S", (3600,))
    run.down.add("gpu-a")
    feed = model.feed(model.runs[0])
    qtbot.waitUntil(lambda: feed.error is not None)
    assert job_threads("RunFeed._begin")
    feed.close()
    qtbot.waitUntil(lambda: not job_threads("RunFeed._begin"))


def test_no_sample_is_lost_however_hosts_tick(qtbot: Any, feed: RunFeed, run: Acting) -> None:
    run.start()
    wait_live(qtbot, feed, run)
    told: list[object] = []
    feed.changed.connect(told.append)
    for second in range(4):
        run.measure(10 + second)
        qtbot.wait(700)
    ring = feed.picture.tracks["worker-2"].ring
    qtbot.waitUntil(lambda: len(ring) == 4)
    assert len(told) <= 4  # The feed reports progress at most once a second.


def test_what_was_noted_here_is_there_before_any_host_answers(qtbot: Any, feed: RunFeed) -> None:
    assert feed.picture.state == "running"
    assert feed.picture.plan is not None
    assert list(feed.picture.tracks) == ["chief-0", "worker-0", "worker-1", "worker-2"]
    assert not feed.was_heard


def test_a_flood_of_events_is_told_ten_times_a_second(qtbot: Any, feed: RunFeed, run: Acting) -> None:
    run.start()
    wait_live(qtbot, feed, run)
    told: list[object] = []
    feed.changed.connect(told.append)
    begin = time.monotonic()
    while time.monotonic() - begin < 0.5:
        run.play("report", time.monotonic() - begin + 5, replica="worker-0", step=1, loss=1.0, throughput=1.0)
        qtbot.wait(1)
    assert len(told) <= 7
    qtbot.waitUntil(lambda: bool(told))


def test_a_member_that_hangs_up_is_unknown_until_it_is_back(qtbot: Any, feed: RunFeed, run: Acting) -> None:
    run.start()
    wait_live(qtbot, feed, run)
    run.measure(10)
    qtbot.waitUntil(lambda: len(feed.picture.tracks["worker-2"].ring) == 1)
    run.down.add("gpu-b")
    run.links["gpu-b"].break_off()
    qtbot.waitUntil(lambda: feed.live_state_of("worker-2").is_unknown)
    assert not feed.live_state_of("chief-0").is_unknown
    assert not feed.picture.is_stale
    run.down.clear()
    qtbot.waitUntil(lambda: not feed.live_state_of("worker-2").is_unknown)
    run.measure(20)
    qtbot.waitUntil(lambda: len(feed.picture.tracks["worker-2"].ring) == 2)


def test_a_window_that_stood_still_itself_says_no_host_is_silent(
    qtbot: Any, feed: RunFeed, run: Acting, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.start()
    wait_live(qtbot, feed, run)
    run.measure(10)
    qtbot.waitUntil(lambda: all(len(track.ring) for track in feed.picture.tracks.values()))
    clock = LateClock()
    monkeypatch.setattr(run_feed, "time", clock)
    feed._silence_timer.setInterval(20)
    with qtbot.waitSignal(feed._silence_timer.timeout):
        clock.late_s = 60.0
    assert not feed.picture.is_stale
    assert [moment.kind for moment in feed.picture.moments] == ["run", "run"]
    # A host that is still silent becomes unknown. Its next message makes it known again.
    qtbot.waitUntil(lambda: feed.picture.is_stale)
    run.measure(20)
    qtbot.waitUntil(lambda: not feed.picture.is_stale)


def test_a_primary_that_hangs_up_leaves_the_run_as_of_then(qtbot: Any, feed: RunFeed, run: Acting) -> None:
    run.start()
    wait_live(qtbot, feed, run)
    run.down.add("gpu-a")
    run.links["gpu-a"].break_off()
    qtbot.waitUntil(lambda: feed.picture.is_stale)
    assert feed.picture.state == "running"
    run.play("run_state", 30, state="stopping", reason="by lee")
    run.down.clear()
    qtbot.waitUntil(lambda: feed.picture.state == "stopping")
    assert not feed.picture.is_stale
    states = [moment.state for moment in feed.picture.moments if moment.kind == "run"]
    assert states == ["starting", "running", "stopping"]  # No earlier event is repeated.


def test_a_primary_that_cannot_be_reached_at_first_is_tried_again(qtbot: Any, home: Home, run: Acting) -> None:
    run.note(home)
    run.start()
    run.down.add("gpu-a")
    model = runs_model(home, run)
    feed = model.feed(model.runs[0])
    qtbot.waitUntil(lambda: feed.error is not None)
    assert feed.picture.is_stale
    assert feed.picture.state == "running"  # The state comes from this computer's record.
    run.down.clear()
    qtbot.waitUntil(lambda: feed.was_heard and not feed.picture.is_stale)
    assert feed.error is None
    close(model)


def test_a_keeper_that_died_is_a_failed_run_with_its_reason(
    qtbot: Any, feed: RunFeed, run: Acting, model: RunsModel
) -> None:
    run.start()
    wait_live(qtbot, feed, run)
    run.alive = False
    run.links["gpu-a"].say("state", {"run_id": run.run_id, "entries": [], "alive": False})
    qtbot.waitUntil(lambda: feed.picture.state == "failed")
    assert "keeper" in feed.picture.reason
    assert model.runs[0].state == "failed"


def test_what_breaks_on_the_way_here_is_no_failure_of_the_run(
    qtbot: Any, feed: RunFeed, run: Acting, model: RunsModel, caplog: pytest.LogCaptureFixture
) -> None:
    run.start()
    wait_live(qtbot, feed, run)
    # This message lacks required fields. No version of the agent sends such a message.
    run.links["gpu-a"].say("state", {"run_id": run.run_id})
    qtbot.waitUntil(lambda: not feed.is_live and feed.picture.is_stale)
    assert "KeyError" in caplog.text
    assert feed.error is not None
    assert "did not foresee" in feed.error.message
    assert feed.picture.state == "running"
    assert all(look.is_unknown for look in feed.live_states.values())
    assert (model.runs[0].state, model.runs[0].is_fresh) == ("running", False)
    # Once its host answers, the run is followed again from the last event.
    run.play("run_state", 30, state="stopping", reason="by lee")
    model.refresh()
    qtbot.waitUntil(lambda: feed.picture.state == "stopping" and not feed.picture.is_stale)
    assert not any(look.is_unknown for look in feed.live_states.values())
    assert (feed.error, model.runs[0].is_fresh) == (None, True)


def test_the_end_of_a_run_is_noted_here(qtbot: Any, feed: RunFeed, run: Acting, model: RunsModel) -> None:
    run.start()
    wait_live(qtbot, feed, run)
    run.end("succeeded", "")
    qtbot.waitUntil(lambda: feed.picture.is_over)
    qtbot.waitUntil(lambda: not feed.is_live)

    def noted() -> bool:
        record = model.history.load(run.run_id)
        return record is not None and record.state == "succeeded"

    qtbot.waitUntil(noted)
    assert model.runs[0].state == "succeeded"


def test_a_feed_that_is_closed_leaves_links_as_they_were(qtbot: Any, feed: RunFeed, run: Acting) -> None:
    run.start()
    wait_live(qtbot, feed, run)
    feed.close()
    qtbot.waitUntil(lambda: not any(link.hears("telemetry") for link in run.links.values()))
    assert all(("telemetry.unsubscribe", {}) in link.asked for link in run.links.values())


def test_a_long_journal_is_read_without_holding_the_window_up(qtbot: Any, home: Home, run: Acting) -> None:
    run.note(home)
    run.start()
    report = {"event": "report", "replica": "worker-0", "step": 1, "loss": 1.0, "throughput": 1.0}
    for number in range(20_000):
        at = utc_timestamp(BEGAN + 10 + number)
        run.journal.append({**report, "epoch": EPOCH, "seq": len(run.journal) + 1, "time": at})
    model = runs_model(home, run)
    # CPU time of the thread is measured, because wall time would depend on other processes.
    longest, last = 0.0, time.thread_time()
    feed = model.feed(model.runs[0])

    def ended() -> bool:
        nonlocal longest, last
        now = time.thread_time()
        longest, last = max(longest, now - last), now
        return feed.picture.as_of == BEGAN + 10 + 19_999 and len(feed.picture.tracks["worker-0"].ring) >= 3600

    qtbot.waitUntil(ended, timeout=60_000)
    close(model)
    assert longest < 0.5
