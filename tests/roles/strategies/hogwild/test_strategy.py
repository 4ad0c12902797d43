"""Tests of distributed Hogwild with real processes over the loopback interface and a join store."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from tests.roles.join_stores import KEY, Served, serve_in_a_process
from tests.roles.processes import (
    DEADLINE_S,
    ROOT,
    Keeper,
    Start,
    free_port,
    output_of,
    outputs_of,
    trainer_environment,
    wait_for,
)
from torchyard_roles.environment import Environment
from torchyard_roles.peers import Peers, TrainerAddress
from torchyard_roles.strategies.hogwild import strategy as hogwild_strategy
from torchyard_roles.strategies.hogwild.strategy import Hogwild

pytestmark = pytest.mark.train

PROGRAM = Path(__file__).parents[2] / "programs" / "counts_updates.py"
PAIRS = Path(__file__).parents[2] / "programs" / "counts_pairs.py"
DIGITS = ROOT / "examples" / "digits"
SYNC_EVERY = 4


@pytest.fixture
def store() -> Iterator[Served]:
    store = serve_in_a_process()
    yield store
    store.end()


class Groups:
    """Worker groups of the given sizes; each replica has one rank."""

    def __init__(self, start: Start, store: Served, *sizes: int, **options: object) -> None:
        self._start = start
        self._store = store
        self._sizes = sizes
        self._options: dict[str, object] = {
            "kind": "hogwild",
            "worker_groups": len(sizes),
            "sync_every": SYNC_EVERY,
            **options,
        }
        self._masters = [free_port() for _ in sizes]
        self._places = [(group, rank) for group, size in enumerate(sizes) for rank in range(size)]
        trainers = [
            (f"worker-{number}", "127.0.0.1", free_port(), 1, group) for number, (group, _) in enumerate(self._places)
        ]
        self._peers = json.dumps({"trainers": trainers})

    def start(self, number: int, *arguments: object, generation: int = 0, **more: str) -> subprocess.Popen[str]:
        group, group_rank = self._places[number]
        environment = trainer_environment(number, len(self._places), self._masters[group])
        environment |= {
            "RANK": str(group_rank),
            "WORLD_SIZE": str(self._sizes[group]),
            "TORCHYARD_STRATEGY": self._options["kind"],
            "TORCHYARD_OPTIONS": json.dumps(self._options),
            "TORCHYARD_GROUP": str(group),
            "TORCHYARD_GROUPS": str(len(self._sizes)),
            "TORCHYARD_GROUP_RANK": str(group_rank),
            "TORCHYARD_GROUP_SIZE": str(self._sizes[group]),
            "TORCHYARD_GENERATION": str(generation),
            "TORCHYARD_PEERS": self._peers,
            "TORCHYARD_STORE": self._store.address,
            "TORCHYARD_KEY": KEY.hex(),
        }
        return self._start(*arguments, environment={**environment, **more})

    def start_all(self, *arguments: object, **more: str) -> list[subprocess.Popen[str]]:
        return [self.start(number, *arguments, **more) for number in range(len(self._places))]


def done(folder: Path, rank: int) -> int:
    try:
        return int((folder / str(rank)).read_text() or 0)
    except OSError:
        return 0


def received(folder: Path, to: int, *others: int) -> float:
    """Returns a lower bound for the number of updates that rank `to` has received, excluding its own and those of
    `others`.
    """
    try:
        updates, most = (folder / f"values.{to}").read_text().split()
    except (OSError, ValueError):
        return 0
    # The other ranks' counts are read after the values, so they are at least as high as when the values were written.
    return -float(most) - int(updates) - sum(done(folder, rank) for rank in others)


def last_line(output: str) -> dict[str, float]:
    result: dict[str, float] = json.loads(output.splitlines()[-1])
    return result


def test_every_update_of_every_group_counts_once_and_its_ranks_stay_equal(
    start: Start, store: Served, tmp_path: Path, keeper: Keeper
) -> None:
    """Only updates with NaN do not count. All ranks of the group skip them and report that they did."""
    groups = Groups(start, store, 2, 1, on_nan="skip")
    keeper.listen()
    updates = {0: 60, 1: 60, 2: 35}
    spoilt = {0: (), 1: (7, 30), 2: (12,)}
    processes = [
        groups.start(rank, PROGRAM, tmp_path, count, 0.005, *spoilt[rank], TORCHYARD_REPORT=keeper.address)
        for rank, count in updates.items()
    ]
    results = [last_line(output) for output in outputs_of(*processes)]
    total = -float(updates[0] - 2 + updates[2] - 1)
    for rank in (0, 1):  # Both ranks belong to the chief's group, which ends last.
        assert results[rank] == {"rank": rank, "least": total, "most": total, "rest": 0.0}
    assert results[2]["rest"] == 0.0  # Frozen parameters and buffers have the chief's values from the start.
    reports = keeper.received()
    skipped = {
        name: max(metrics.get("skipped", 0) for other, _, metrics in reports if other == name) for name, _, _ in reports
    }
    assert skipped == {"worker-0": 2, "worker-1": 2, "worker-2": 1}
    metrics = [metrics for _, _, metrics in reports]
    assert max(each.get("staleness", -1) for each in metrics) >= 0
    assert all(each["exchange_s"] >= 0 for each in metrics if "exchange_s" in each)


@pytest.mark.parametrize("duration_s", [0.0, 0.3])
def test_the_first_rank_announces_the_end_of_the_last_exchanges(
    monkeypatch: pytest.MonkeyPatch, duration_s: float
) -> None:
    """The first rank must announce the end even if the exchanges end before it waits for them.

    Otherwise, the other ranks would abort.
    """
    trainers = TrainerAddress("worker-0", "127.0.0.1", 1, 2, 0), TrainerAddress("worker-1", "127.0.0.1", 1, 1, 1)
    environment = Environment(world_size=3, group_size=2, groups=2, peers=Peers(trainers=trainers), key=KEY)
    strategy = Hogwild(environment)
    group = Mock()
    group.drain.side_effect = lambda: time.sleep(duration_s)
    flags: list[bool] = []
    monkeypatch.setattr(strategy, "_group", group)
    monkeypatch.setattr(strategy, "_broadcast_flags", flags.extend)
    monkeypatch.setattr(strategy, "_broadcast_shards", lambda shards: None)
    monkeypatch.setattr(hogwild_strategy, "wait_for_all_ranks", lambda: None)
    monkeypatch.setattr(hogwild_strategy, "BEAT_S", 0.1)
    start_thread = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        start_thread(thread)
        if not duration_s:
            thread.join()

    monkeypatch.setattr(threading.Thread, "start", start)
    strategy._drain_inside()
    assert flags == [*([False] * (len(flags) - 1)), True]


@pytest.mark.parametrize("how", ["calls", "lists", "halves"])
def test_every_update_of_several_optimizers_counts_once(start: Start, store: Served, how: str) -> None:
    updates = 13
    processes = Groups(start, store, 2, 1, sync_every=2).start_all(PAIRS, how, updates)
    results = [last_line(output) for output in outputs_of(*processes)]
    for each in results[:2]:  # Both ranks belong to the chief's group, which ends last.
        assert each == {"steps": updates, "values": [[-2.0 * updates], [-4.0 * updates]], "rest": 0.0}
    assert results[2]["rest"] == 0.0


def test_a_group_is_killed_and_comes_back_while_the_others_go_on(start: Start, store: Served, tmp_path: Path) -> None:
    groups = Groups(start, store, 1, 1, 1)
    chief, killed, third = groups.start_all(PROGRAM, tmp_path, 100_000, 0.01)
    wait_for(lambda: min(done(tmp_path, rank) for rank in range(3)) >= 40, "40 updates", chief, killed, third)
    exchanged = []
    wait_for(
        lambda: exchanged.append(received(tmp_path, 2, 0)) or exchanged[-1] >= 20,
        "exchanges",
        chief,
        killed,
        third,
    )
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=DEADLINE_S)
    first_life = done(tmp_path, 1)
    before = [done(tmp_path, rank) for rank in (0, 2)]
    wait_for(
        lambda: all(done(tmp_path, rank) >= count + 40 for rank, count in zip((0, 2), before, strict=True)),
        "the others to go on",
        chief,
        third,
    )
    (tmp_path / "1").unlink(missing_ok=True)
    again = groups.start(1, PROGRAM, tmp_path, 100_000, 0.01, generation=1)
    wait_for(lambda: done(tmp_path, 1) >= 40, "40 updates of its second life", chief, again, third)
    (tmp_path / "enough").touch()
    outputs = outputs_of(chief, again, third)
    assert "worker-1 on 127.0.0.1 is gone" in outputs[0]
    assert "worker-1 is back." in outputs[0]
    assert "worker-1 on 127.0.0.1 is gone" in outputs[2]
    of_the_living = sum(done(tmp_path, rank) for rank in range(3))
    result = last_line(outputs[0])
    # The result contains all updates of the other groups and of the restarted group. Updates that were made before the
    # restart and that no other group had received are lost.
    assert -of_the_living - first_life <= result["least"]
    assert result["most"] <= -of_the_living - exchanged[-1]


def test_the_chiefs_group_is_killed_and_goes_on_with_what_the_others_have(
    start: Start, store: Served, tmp_path: Path
) -> None:
    groups = Groups(start, store, 1, 1)
    chief, other = groups.start_all(PROGRAM, tmp_path, 100_000, 0.01)
    wait_for(lambda: min(done(tmp_path, rank) for rank in range(2)) >= 40, "40 updates", chief, other)
    exchanged = []
    wait_for(lambda: exchanged.append(received(tmp_path, 1)) or exchanged[-1] >= 20, "exchanges", chief, other)
    chief.send_signal(signal.SIGKILL)
    chief.communicate(timeout=DEADLINE_S)
    first_life = done(tmp_path, 0)
    (tmp_path / "0").unlink(missing_ok=True)
    again = groups.start(0, PROGRAM, tmp_path, 100_000, 0.01, generation=1)
    wait_for(lambda: done(tmp_path, 0) >= 40, "40 updates of its second life", again, other)
    (tmp_path / "enough").touch()
    result = last_line(outputs_of(again, other)[0])
    of_the_living = done(tmp_path, 0) + done(tmp_path, 1)
    assert -of_the_living - first_life <= result["least"]
    assert result["most"] <= -of_the_living - exchanged[-1]


def test_a_stop_ends_all_groups_in_good_order_and_soon(start: Start, store: Served, tmp_path: Path) -> None:
    groups = Groups(start, store, 1, 1)
    processes = groups.start_all(PROGRAM, tmp_path, 100_000, 0.01)
    wait_for(lambda: min(done(tmp_path, rank) for rank in range(2)) >= 10, "10 updates", *processes)
    began = time.monotonic()
    for process in processes:
        process.send_signal(signal.SIGTERM)
    for process in processes:
        assert "stopped after step" in output_of(process)
    assert time.monotonic() - began < 30


def test_one_group_is_a_single_process_to_the_last_bit(start: Start, store: Served, tmp_path: Path) -> None:
    arguments = (DIGITS / "train.py", "--epochs", "1")
    alone = start(*arguments, "--out", tmp_path / "alone.pt")
    single = Groups(start, store, 1).start(0, *arguments, "--out", tmp_path / "single.pt")
    assert output_of(alone) == output_of(single)
    by_itself, in_a_group = (torch.load(tmp_path / f"{name}.pt") for name in ("alone", "single"))
    assert by_itself.keys() == in_a_group.keys()
    assert all(torch.equal(by_itself[name], in_a_group[name]) for name in by_itself)
