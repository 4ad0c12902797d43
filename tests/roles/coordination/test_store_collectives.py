"""Tests of collective calls through the join store: missing trainers, and worker groups that restart."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.roles.join_stores import KEY, Served, serve_in_a_process
from tests.waiting import wait_until
from torchyard_roles.coordination import store_collectives
from torchyard_roles.coordination.join_store_client import JoinStore
from torchyard_roles.coordination.store_collectives import StoreCollectives
from torchyard_roles.environment import Environment, Peers, TrainerAddress
from torchyard_roles.errors import PeerLost, StoreTimeout, UsageProblem

DEADLINE_S = 60


@pytest.fixture
def served() -> Iterator[Served]:
    served = serve_in_a_process()
    yield served
    served.end()


class Run:
    """Two worker groups of `size` ranks each; `alive` creates a rank's collectives in a generation of its group."""

    def __init__(self, served: Served, size: int = 1) -> None:
        self.size = size
        self._served = served
        self._pool = ThreadPoolExecutor(8)
        self._stores: list[JoinStore] = []
        self.watcher = self.store()

    def store(self) -> JoinStore:
        self._stores.append(JoinStore.connect(self._served.address, KEY, "test"))
        return self._stores[-1]

    def alive(self, group: int, rank: int = 0, generation: int = 0) -> StoreCollectives:
        places = [
            TrainerAddress(f"worker-{number}", f"10.0.0.{number}", 4000, 1, number // self.size)
            for number in range(2 * self.size)
        ]
        environment = Environment(
            strategy="downpour",
            rank=group * self.size + rank,
            world_size=2 * self.size,
            group=group,
            groups=2,
            group_rank=rank,
            group_size=self.size,
            generation=generation,
            peers=Peers(trainers=tuple(places)),
        )
        return StoreCollectives(self.store(), environment)

    def begin(self, who: StoreCollectives, value: bytes, site: str = "line 1") -> Future[list[bytes]]:
        return self._pool.submit(who.exchange, value, site, "mean")

    def close(self) -> None:
        for store in self._stores:
            store.close()
        self._pool.shutdown()


@pytest.fixture
def run(served: Served) -> Iterator[Run]:
    run = Run(served)
    yield run
    run.close()


@pytest.fixture
def run_of_pairs(served: Served) -> Iterator[Run]:
    run = Run(served, size=2)
    yield run
    run.close()


def got(*calls: Future[list[bytes]]) -> list[list[bytes]]:
    return [call.result(timeout=DEADLINE_S) for call in calls]


def meet(run: Run, ranks: list[StoreCollectives], value: bytes, site: str = "line 1") -> list[bytes]:
    found = got(*[run.begin(rank, value + str(number).encode(), site) for number, rank in enumerate(ranks)])
    assert all(each == found[0] for each in found)
    return found[0]


def test_each_meeting_has_the_values_of_all_and_leaves_few_keys(run_of_pairs: Run) -> None:
    ranks = [run_of_pairs.alive(group, rank) for group in range(2) for rank in range(2)]
    keys = []
    for _ in range(12):
        assert meet(run_of_pairs, ranks, b"x" * 100_000) == [b"x" * 100_000 + str(rank).encode() for rank in range(4)]
        keys.append(run_of_pairs.watcher.count())
    assert keys[-1] == keys[5]


def test_a_group_that_was_started_again_joins_the_meeting_that_is_open(run_of_pairs: Run) -> None:
    run = run_of_pairs
    ranks = [run.alive(group, rank) for group in range(2) for rank in range(2)]
    meet(run, ranks, b"first ")
    waiting = [run.begin(ranks[rank], b"second") for rank in range(2)]
    died = run.begin(ranks[2], b"of a rank whose group dies before the other has come")
    again = [run.alive(1, rank, generation=1) for rank in range(2)]
    came = [run.begin(rank, b"anew") for rank in again]
    assert got(*waiting, *came) == [[b"second"] * 2 + [b"anew"] * 2] * 4
    died.result(timeout=DEADLINE_S)
    assert meet(run, [*ranks[:2], *again], b"third ") == [b"third %d" % rank for rank in range(4)]


def test_a_call_that_the_others_have_behind_them_has_the_result_it_had(run: Run) -> None:
    chief, worker = run.alive(0), run.alive(1)
    assert meet(run, [chief, worker], b"loss ", "line 1") == [b"loss 0", b"loss 1"]
    waiting = run.begin(chief, b"accuracy 0", "line 2")
    wait_until(lambda: run.watcher.try_get("meet/run/1/0") is not None)
    again = run.alive(1, generation=1)
    assert got(run.begin(again, b"another loss", "line 1")) == [[b"loss 0", b"loss 1"]]
    assert not waiting.done()
    both = got(run.begin(again, b"accuracy 1", "line 2"), waiting)
    assert both == [[b"accuracy 0", b"accuracy 1"]] * 2
    assert meet(run, [chief, again], b"loss ", "line 1") == [b"loss 0", b"loss 1"]


def test_a_resumed_script_does_not_give_what_epochs_that_are_over_come_to(run: Run) -> None:
    chief, worker = run.alive(0), run.alive(1)
    for _ in range(3):
        meet(run, [chief, worker], b"loss ")
    again = run.alive(1, generation=1)
    for _ in range(3):  # The restarted rank makes the calls of its completed epochs again.
        assert again.exchange(b"0", "line 1", "mean", resuming=True) == [b"loss 0", b"loss 1"]
    assert meet(run, [chief, again], b"fourth ") == [b"fourth 0", b"fourth 1"]


def test_what_the_earlier_life_gave_to_the_open_meeting_counts(run: Run) -> None:
    worker = run.begin(run.alive(1), b"before its death")
    wait_until(lambda: run.watcher.try_get("meet/run/0/1") is not None)
    again = run.begin(run.alive(1, generation=1), b"anew")
    assert got(run.begin(run.alive(0), b"chief"), again, worker) == [[b"chief", b"before its death"]] * 3


def test_one_that_has_ended_without_the_call_is_named(run: Run) -> None:
    waiting = run.begin(run.alive(0), b"")
    run.alive(1).leave(stopped=False)
    with pytest.raises(PeerLost, match=r"worker-1 on 10\.0\.0\.1 is gone: it has ended without calling mean\(\)"):
        got(waiting)


def test_a_rank_of_ones_own_group_that_has_ended_is_named(run_of_pairs: Run) -> None:
    waiting = run_of_pairs.begin(run_of_pairs.alive(0), b"")
    run_of_pairs.alive(0, 1).leave(stopped=False)
    with pytest.raises(PeerLost, match="worker-1 on"):
        got(waiting)


def test_after_a_restart_groups_that_have_ended_are_not_waited_for(run: Run) -> None:
    chief, worker = run.alive(0), run.alive(1)
    meet(run, [chief, worker], b"")
    again = run.alive(1, generation=1)
    meet(run, [chief, again], b"")
    chief.leave(stopped=False)
    assert got(run.begin(again, b"one call more")) == [[b"one call more"]]


def test_in_a_run_that_is_stopped_those_that_have_left_are_not_waited_for(run: Run) -> None:
    waiting = run.begin(run.alive(0), b"own")
    run.alive(1).leave(stopped=True)
    assert got(waiting) == [[b"own"]]


def test_one_that_does_not_come_in_time_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_collectives, "MEET_WITHIN_S", 0.1)
    with pytest.raises(StoreTimeout, match=r"worker-1 did not call mean\(\) within 0\.1 s"):
        got(run.begin(run.alive(0), b""))


def test_a_value_that_is_too_large_for_the_store_is_refused(run: Run) -> None:
    with pytest.raises(UsageProblem, match=r"got 16\.0 MiB, but .* at most 16 MiB"):
        run.alive(0).exchange(bytes(store_collectives.LARGEST + 1), "line 1", "gather")
