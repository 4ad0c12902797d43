"""Tests that the state of a run contains only reported values.

Missing values stay unknown, and replayed events do not change current values.
"""

from __future__ import annotations

import pytest

from tests.core.examples import host
from tests.gui.runs import fake_hosts
from tests.gui.runs.fake_hosts import Acting
from torchyard_core.formatting import utc_timestamp
from torchyard_gui.bridge.run_state import RunState
from torchyard_gui.bridge.run_state_types import RunChanges, TimelineEvent, short_cause
from torchyard_gui.runs.alerts import alerts_of
from torchyard_gui.runs.labels import loss, moment_in_words

HOSTS = (host("gpu-a", 2), host("gpu-b", 2))


def picture_of(run: Acting) -> RunState:
    made = RunState(run.run_id, run.name, run.plan.primary or "", run.plan.hosts)
    made.take_record(run._record(), run.facts)
    return made


def watch(picture: RunState, run: Acting, *, begin: int = 0, seconds: int = 5, slow: str = "") -> RunChanges:
    changes = RunChanges()
    for second in range(begin, begin + seconds):
        run.step += 1
        for name in run.plan.hosts:
            sample = run.sample(name, 10.0 + second, loss=1.0, slow=slow)
            picture.take_sample(name, sample, 100.0 + second, changes)
        picture.sum_up()
    return changes


def tell(picture: RunState, run: Acting) -> RunChanges:
    changes = RunChanges()
    for entry in run.journal:
        picture.take_event(entry, changes)
    return changes


def started() -> tuple[Acting, RunState]:
    """Returns a started run, and its state after all events of its journal."""
    run = Acting(HOSTS)
    picture = picture_of(run)
    run.start()
    tell(picture, run)
    return run, picture


def test_an_interruption_by_slurm_has_the_last_metrics_before_it() -> None:
    run, picture = started()
    metrics = {"worker-1": {"step": 39, "loss": 0.5}}
    entry = {
        **run.journal[-1],
        "event": "interrupted",
        "job": "7",
        "restart": 0,
        "cause": "NODE_FAIL",
        "metrics": metrics,
    }
    picture.take_event({**entry, "seq": entry["seq"] + 1}, RunChanges())
    ring = picture.tracks["worker-1"].ring
    assert (ring.last("step"), ring.last("loss")) == (39, 0.5)


def test_a_live_run_adds_up() -> None:
    run, picture = started()
    changes = watch(picture, run)
    assert picture.state == "running"
    assert changes.replicas == {"chief-0", "worker-0", "worker-1", "worker-2"}
    throughput = picture.total("throughput")
    assert throughput == pytest.approx(4 * 74, abs=12)
    assert picture.total("step") == 5
    assert picture.meter(picture.tracks["worker-0"]) == pytest.approx(0.92, abs=0.06)
    assert alerts_of(picture) == []
    assert [moment_in_words(moment) for moment in picture.moments] == ["starting", "running"]


def test_a_sum_waits_for_those_that_run_and_were_not_heard_yet() -> None:
    run, picture = started()
    picture.take_sample("gpu-a", run.sample("gpu-a", 10.0, loss=1.0), 100.0, RunChanges())
    picture.sum_up()
    assert picture.total("throughput") is None  # Half of the replicas have not reported yet, so the sum is unknown.
    assert picture.total("gpu") is not None


def test_a_replica_without_samples_is_not_called_slow() -> None:
    run, picture = started()
    watch(picture, run, slow="worker-1")
    picture.take_event({"event": "connection", "host": "gpu-b", "state": "lost"}, RunChanges())
    assert [need.title for need in alerts_of(picture)] == ["gpu-b unknown"]


def test_a_lost_host_is_unknown_and_never_failed() -> None:
    run, picture = started()
    watch(picture, run)
    changes = RunChanges()
    picture.take_event({"event": "connection", "host": "gpu-b", "state": "lost"}, changes)
    away = picture.tracks["worker-1"]
    assert away.host == "gpu-b"
    assert away.state == "running"
    assert picture.stale_since(away) == fake_hosts.BEGAN + 14
    assert picture.stale_since(picture.tracks["chief-0"]) is None
    assert not picture.is_stale  # The primary answers, so the run's state is known, although another host is silent.
    assert picture.total("throughput") is None  # A sum of only some values would be wrong.
    assert [need.title for need in alerts_of(picture)] == ["gpu-b unknown"]
    picture.take_event({"event": "connection", "host": "gpu-b", "state": "back"}, changes)
    assert picture.stale_since(away) is None
    assert alerts_of(picture) == []


def test_without_its_primary_the_run_is_as_of_then() -> None:
    run, picture = started()
    watch(picture, run)
    picture.take_event({"event": "connection", "host": "gpu-a", "state": "lost"}, RunChanges())
    assert picture.is_stale
    assert picture.state == "running"
    assert picture.as_of == fake_hosts.BEGAN + 14
    assert picture.elapsed(fake_hosts.BEGAN + 9999) == pytest.approx(14 - 1.5)


def test_a_host_that_falls_silent_without_hanging_up_is_unknown() -> None:
    run, picture = started()
    watch(picture, run)
    changes = RunChanges()
    picture.look_for_silence(104.0 + 5, fake_hosts.BEGAN + 20, changes)
    assert not changes
    sample = run.sample("gpu-a", 30.0, loss=1.0)
    picture.take_sample("gpu-a", sample, 120.0, RunChanges())
    picture.look_for_silence(121.0, fake_hosts.BEGAN + 31, changes)
    assert list(picture.lost) == ["gpu-b"]
    picture.take_sample("gpu-b", run.sample("gpu-b", 31.0, loss=1.0), 121.5, changes)
    assert picture.lost == {}


def test_a_primary_that_was_silent_is_back_with_its_next_word_and_one_that_hung_up_with_its_journal() -> None:
    run, picture = started()
    watch(picture, run)
    picture.look_for_silence(120.0, fake_hosts.BEGAN + 30, RunChanges())
    assert picture.is_stale
    changes = RunChanges()
    picture.take_sample("gpu-a", run.sample("gpu-a", 31.0, loss=1.0), 121.0, changes)
    assert not picture.is_stale
    assert changes.run
    picture.look_for_silence(130.0, fake_hosts.BEGAN + 40, RunChanges())
    picture.take_event({"event": "connection", "host": "gpu-a", "state": "lost"}, RunChanges())
    picture.take_sample("gpu-a", run.sample("gpu-a", 41.0, loss=1.0), 131.0, RunChanges())
    assert picture.is_stale
    picture.take_event({"event": "connection", "host": "gpu-a", "state": "back"}, RunChanges())
    assert not picture.is_stale


def test_the_past_of_a_run_comes_from_its_journal() -> None:
    run = Acting(HOSTS)
    run.start()
    run.play("report", 3.0, replica="worker-0", step=1, loss=2.0, throughput=50, first=True)
    for second in range(5, 60, 5):
        for replica in run.plan.replicas:
            numbers = {"step": second, "loss": 10 / second, "throughput": 70}
            run.play("report", float(second), replica=replica.name, **numbers)
    run.fail("worker-1", "exited with 1: ValueError: bad")
    picture = picture_of(run)
    shown = run._shown()
    picture.take_shown(shown["state"], shown["reason"], shown["as_of"], shown["replicas"])
    changes = RunChanges()
    for entry in run.journal:
        picture.take_event(entry, changes)
        assert picture.state == "failed"  # Replayed events must not change the current state.
    assert len(picture.totals) == 12
    assert picture.totals.last("throughput") == 4 * 70
    assert picture.elapsed(0) == pytest.approx(60.1 - 1.5)
    words = [moment_in_words(moment) for moment in picture.moments]
    assert words == [
        "starting",
        "running",
        "first step",
        "worker-1 on gpu-b failed: exited with 1: ValueError: bad",
        "failed: worker-1 exited with 1: ValueError: bad",
    ]
    assert alerts_of(picture)[0].title == "worker-1 failed"


def test_a_journal_that_is_told_twice_changes_nothing() -> None:
    run, picture = started()
    before = list(picture.moments)
    assert not tell(picture, run)
    assert picture.moments == before


def test_who_holds_the_others_up_is_named() -> None:
    run, picture = started()
    watch(picture, run, slow="worker-1")
    assert picture.slow == {"worker-1": pytest.approx(1.8)}
    assert [need.title for need in alerts_of(picture)] == ["worker-1 is slow"]
    watch(picture, run, begin=5)
    assert picture.slow == {}


def test_a_run_of_which_only_its_line_is_known_has_no_picture() -> None:
    picture = RunState("id", "name", "gpu-a", ["gpu-a"])
    picture.take_shown("running", "", utc_timestamp(fake_hosts.BEGAN), [])
    assert picture.plan is None
    assert picture.tracks == {}
    assert picture.elapsed(fake_hosts.BEGAN + 5) is None


@pytest.mark.parametrize(
    ("reason", "code", "short"),
    [
        ("exited with 1: RuntimeError: CUDA out of memory. Tried", 1, "out of memory"),
        ("was killed by SIGKILL (the host ran out of memory)", None, "out of memory"),
        ("exited with 1: ValueError: no such column", 1, "ValueError"),
        ("was killed by SIGSEGV", None, "SIGSEGV"),
        ("exited with 3 and printed nothing", 3, "exit 3"),
        ("", None, ""),
    ],
)
def test_a_chip_has_room_for_a_word_or_two(reason: str, code: int | None, short: str) -> None:
    assert short_cause(reason, code) == short


def test_what_scripts_report_by_names_of_their_own_is_kept_of_the_journal_and_of_telemetry() -> None:
    run, picture = started()
    event = {"event": "report", "epoch": "e", "time": utc_timestamp(20.0), "replica": "worker-0", "step": 1}
    custom = {"accuracy": 0.5, "gpu": -1.0, "bad name": 1.0}
    picture.take_event({**event, "seq": 1000, "custom": custom}, RunChanges())
    ring = picture.tracks["worker-0"].ring
    assert ring.own == ["accuracy", "gpu"]
    assert (ring.last("own.accuracy"), ring.last("gpu")) == (0.5, None)
    sample = run.sample("gpu-a", 30.0, loss=1.0)
    replica = next(key.partition("/")[2] for key in sample["reports"])
    sample["reports"][f"{run.run_id}/{replica}"]["perplexity"] = 9.0
    picture.take_sample("gpu-a", sample, 100.0, RunChanges())
    assert picture.tracks[replica].ring.last("own.perplexity") == 9.0


def test_a_loss_that_is_not_finite_is_shown_and_not_the_last_finite_one() -> None:
    run, picture = started()
    event = {"event": "report", "epoch": "e", "replica": "worker-0", "throughput": None}
    picture.take_event({**event, "seq": 1000, "time": utc_timestamp(20.0), "step": 1, "loss": 0.5}, RunChanges())
    ring = picture.tracks["worker-0"].ring
    unknown = {**event, "seq": 1001, "time": utc_timestamp(21.0), "step": 2, "loss": None}
    picture.take_event(unknown, RunChanges())
    assert loss(ring.last("loss")) == "0.5000"
    picture.take_event({**unknown, "seq": 1002, "time": utc_timestamp(22.0), "not_finite": ["loss"]}, RunChanges())
    assert loss(ring.last("loss")) == "NaN"
    sample = run.sample("gpu-a", 30.0, loss=1.0)
    key = next(iter(sample["reports"]))
    replica = key.partition("/")[2]
    picture.take_sample("gpu-a", sample, 100.0, RunChanges())
    assert picture.tracks[replica].ring.last("loss") == pytest.approx(1.0, abs=0.1)
    sample = run.sample("gpu-a", 32.0, loss=1.0)
    sample["reports"][key]["loss"] = None
    picture.take_sample("gpu-a", sample, 102.0, RunChanges())
    assert loss(picture.tracks[replica].ring.last("loss")) == loss(picture.total("loss")) == "NaN"


def test_the_state_is_not_repeated_before_a_reason_that_begins_with_it() -> None:
    words = [moment_in_words(TimelineEvent(0.0, "run", "stopped", reason=reason)) for reason in ("stopped by kim", "")]
    assert words == ["stopped by kim", "stopped"]
    assert moment_in_words(TimelineEvent(0.0, "run", "failed", reason="no GPU")) == "failed: no GPU"


def test_a_wait_is_one_event_with_its_newest_reason() -> None:
    run = Acting((host("hpc.1", 2), host("hpc.2", 2)))
    picture = RunState(run.run_id, run.name, "hpc.1", run.plan.hosts, "hpc")
    reasons = ("", ": Resources", ": Resources; Slurm expects its start at 2026-11-28T14:00:00Z")
    for at, reason in enumerate(reasons):
        run.play("run_state", at=float(at), state="waiting", reason=f"job 7 waits in the queue{reason}")
    run.play("run_state", at=8.0, state="running")
    run.play("run_state", at=9.0, state="waiting", reason="PREEMPTED; job 7 waits in the queue")
    assert tell(picture, run).moments
    waits = [moment for moment in picture.moments if moment.state == "waiting"]
    assert [moment.reason.partition("; Slurm")[0] for moment in waits] == [
        "job 7 waits in the queue: Resources",
        "PREEMPTED; job 7 waits in the queue",
    ]
    assert waits[0].time == fake_hosts.BEGAN


def test_the_nodes_of_a_run_on_a_cluster_are_known_while_it_does_not_wait() -> None:
    run = Acting((host("hpc.1", 2), host("hpc.2", 2)))
    picture = RunState(run.run_id, run.name, "hpc.1", run.plan.hosts, "hpc")
    picture.take_record(run._record(), ())
    assert [(one.cluster, one.node) for one in picture.plan_hosts] == [("hpc", ""), ("hpc", "")]
    run.play("run_state", state="waiting", reason="job 7 waits in the queue: Resources")
    run.play("run_state", at=2.0, state="starting")
    tell(picture, run)
    changes = RunChanges()
    picture.take_nodes({"hpc.1": "n7", "hpc.2": "n9"}, changes)
    assert changes.shown
    assert [one.node for one in picture.plan_hosts] == ["n7", "n9"]
    assert (picture.place_of("hpc.2"), picture.with_node("hpc.2")) == ("n9", "hpc.2 (n9)")
    assert (picture.place_of("gpu-a"), picture.with_node("gpu-a")) == ("gpu-a", "gpu-a")
    run.play("run_state", at=3.0, state="waiting", reason="job 7 waits in the queue: BeginTime")
    assert tell(picture, run).shown
    assert [one.node for one in picture.plan_hosts] == ["", ""]
    assert (picture.place_of("hpc.2"), picture.with_node("hpc.2")) == ("hpc.2", "hpc.2")
