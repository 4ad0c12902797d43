"""Tests of the join store client with the keeper's server: wrong keys, lost connections and torch's process groups."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.roles.join_stores import KEY, SECRET, Served, serve_in_a_process
from tests.roles.processes import ROOT, bare_environment
from tests.waiting import wait_until
from torchyard_agent.protocol import authenticated_transport
from torchyard_roles.coordination import join_store_client as store_module
from torchyard_roles.coordination.join_store_client import JoinStore
from torchyard_roles.environment import Environment
from torchyard_roles.errors import EnvironmentProblem, StoreLost, StoreTimeout, UsageProblem

Connect = Callable[..., JoinStore]


@pytest.fixture
def served() -> Iterator[Served]:
    served = serve_in_a_process()
    yield served
    served.end()


@pytest.fixture
def connect(served: Served) -> Iterator[Connect]:
    made: list[JoinStore] = []

    def make(who: str = "worker-0", address: str = "") -> JoinStore:
        made.append(JoinStore.connect(address or served.address, KEY, who))
        return made[-1]

    yield make
    for one in made:
        one.close()


class Cable:
    """A proxy between clients and the store that can cut connections in the middle of a frame."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._door = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._door.getsockname()[1]}"
        self._ends: list[socket.socket] = []
        self.swallows_answers = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._door.accept()
                far = socket.create_connection(self._target)
            except OSError:
                return
            self._ends += [near, far]
            threading.Thread(target=self._pass, args=(near, far, False), daemon=True).start()
            threading.Thread(target=self._pass, args=(far, near, True), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        try:
            while data := source.recv(65536):
                if not (answers and self.swallows_answers):
                    sink.sendall(data)
        except OSError:
            pass

    def cut(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self.cut()
        for end in (self._door, *self._ends):
            end.close()


@pytest.fixture
def cable(served: Served) -> Iterator[Cable]:
    cable = Cable(served.host_and_port)
    yield cable
    cable.close()


def test_what_one_rank_sets_another_gets(connect: Connect) -> None:
    one, other = connect("chief-0"), connect("ps-0")
    one.set("place/ps-0", b"10.0.0.1\x00\xff")
    assert other.get("place/ps-0", 5.0) == b"10.0.0.1\x00\xff"
    assert other.try_get("place/ps-1") is None
    assert one.delete("place/ps-0")
    assert not one.delete("place/ps-0")
    assert other.count() == 0


def test_a_get_waits_until_the_key_is_set(connect: Connect) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(connect("ps-0").get, "model", 10.0)
        connect("chief-0").set("model", b"here")
        assert waiting.result() == b"here"


def test_one_client_serves_many_threads_while_one_of_them_waits(connect: Connect) -> None:
    store = connect()
    with ThreadPoolExecutor(9) as pool:
        waiting = pool.submit(store.wait, [f"turn/{number}" for number in range(8)], 10.0)
        numbers = list(pool.map(lambda number: (store.set(f"turn/{number}", b""), store.add("count", 1))[1], range(8)))
        waiting.result()
    assert sorted(numbers) == list(range(1, 9))


def test_a_timeout_names_the_missing_keys(connect: Connect) -> None:
    store = connect()
    store.set("there", b"")
    with pytest.raises(StoreTimeout, match=r"gone was not set in the join store within 0\.1 s"):
        store.wait(["there", "gone"], 0.1)
    with pytest.raises(StoreTimeout, match="gone was not set"):
        store.get("gone", 0.0)


def test_only_one_compare_and_set_wins(connect: Connect) -> None:
    stores = [connect(f"worker-{number}") for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        names = [b"worker-%d" % number for number in range(4)]
        won = set(pool.map(lambda store, name: store.compare_set("leader", None, name), stores, names))
    assert len(won) == 1
    [leader] = won
    assert stores[0].compare_set("leader", b"another", b"me") == leader
    assert stores[0].compare_set("leader", leader, b"me") == b"me"
    assert stores[0].compare_set("not set", b"expected", b"me") == b""


def test_every_change_of_a_watched_key_is_delivered_in_order(connect: Connect) -> None:
    watcher, other = connect("worker-0"), connect("chief-0")
    other.set("save", b"before")
    seen: list[bytes] = []
    watcher.watch("save", seen.append)
    for step in range(50):
        other.set("save", b"%d" % step)
    wait_until(lambda: len(seen) == 51)
    assert seen == [b"before", *(b"%d" % step for step in range(50))]


def test_a_watcher_may_use_the_store_and_a_failing_one_stops_no_other(
    connect: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    store = connect()
    store.watch("save", lambda value: store.set("echo", value))
    store.watch("save", lambda value: 1 // 0)
    store.set("save", b"one")
    assert store.get("echo", 5.0) == b"one"
    store.set("save", b"two")
    wait_until(lambda: store.try_get("echo") == b"two")
    assert "failed on a change in the join store: ZeroDivisionError" in capsys.readouterr().err


def test_a_second_watcher_of_a_key_gets_its_current_value(connect: Connect) -> None:
    store = connect()
    first: list[bytes] = []
    second: list[bytes] = []
    store.watch("save", first.append)
    store.set("save", b"12")
    wait_until(lambda: first == [b"12"])
    store.watch("save", second.append)
    wait_until(lambda: second == [b"12"])


def test_what_is_too_much_is_refused_and_the_store_goes_on(connect: Connect) -> None:
    store = connect()
    with pytest.raises(UsageProblem, match="at most 65536 bytes, not 65537"):
        store.set("big", bytes(65537))
    with pytest.raises(UsageProblem, match="1 to 256 bytes, not 257"):
        store.set("k" * 257, b"")
    with pytest.raises(UsageProblem, match="holds no number"):
        store.add("word", 1) if store.set("word", b"no") is None else None
    store.set("big", bytes(65536))
    assert len(store.get("big", 1.0)) == 65536


def test_a_broken_connection_is_made_again_and_nothing_is_done_twice(connect: Connect, cable: Cable) -> None:
    store, direct = connect("worker-0", cable.address), connect("chief-0")
    seen: list[bytes] = []
    store.watch("news", seen.append)
    assert store.add("count", 1) == 1
    cable.swallows_answers = True
    with ThreadPoolExecutor(3) as pool:
        added = pool.submit(store.add, "count", 1)
        waiting = pool.submit(store.get, "later", 20.0)
        wait_until(lambda: direct.try_get("count") == b"2")  # The server executes the request, but its answer is lost.
        cable.swallows_answers = False
        cable.cut()
        assert added.result() == 2
        assert direct.try_get("count") == b"2"
        direct.set("news", b"after the break")
        direct.set("later", b"now")
        assert waiting.result() == b"now"
    wait_until(lambda: seen == [b"after the break"])


def test_a_lost_store_ends_all_waiting_calls(served: Served, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "RECONNECT_S", 1.0)
    store = connect()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(store.get, "never", 60.0)
        served.end()
        with pytest.raises(StoreLost, match=rf"join store at {served.address} cannot be reached.*Connection refused"):
            waiting.result(timeout=60)
    with pytest.raises(StoreLost):
        store.set("a", b"")


def test_closing_ends_waiting_calls_and_the_threads(connect: Connect) -> None:
    store = connect()
    store.watch("a", lambda value: None)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(store.get, "never", 60.0)
        wait_until(lambda: not waiting.done() and bool(store._open))
        store.close()
        with pytest.raises(StoreLost, match="has closed its connection"):
            waiting.result(timeout=60)
    wait_until(lambda: not [one for one in store._threads if one.is_alive()])


def test_a_wrong_key_is_refused(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "RECONNECT_S", 0.3)
    with pytest.raises(StoreLost, match="cannot be reached"):
        JoinStore.connect(served.address, bytes(32), "stranger-0")
    assert "the caller does not know the run's secret" in served.log()


def test_the_exchange_key_opens_the_store_and_never_the_gang_link(served: Served) -> None:
    """A caller's rights depend on its key and not on what it says about itself, so a rank cannot pretend to be a
    keeper.
    """
    for key, welcome in ((KEY, {"store": "ready"}), (SECRET, {"keeper": "b"})):
        link = store_module._Link(served.host_and_port, key, {"host": "b", "got": 0}, time.monotonic() + 5)
        assert link.welcome == welcome
        link.close()


def test_silent_callers_delay_no_other(served: Served, connect: Connect) -> None:
    silent = [socket.create_connection(served.host_and_port) for _ in range(20)]
    began = time.monotonic()
    connect().set("a", b"1")
    assert time.monotonic() - began < 4.5, "before the first of them is turned away"
    silent[0].settimeout(60)
    assert len(silent[0].recv(1000)) == authenticated_transport.HELLO_BYTES
    assert silent[0].recv(1000) == b""  # The server closes a connection that has been silent for five seconds.
    for one in silent:
        one.close()


@pytest.mark.parametrize(
    "frame", [{}, {"id": 1}, {"id": "x", "done": 0, "op": "set"}, {"id": [], "done": 1, "op": "count"}]
)
def test_a_frame_that_is_no_question_ends_only_its_own_connection(
    served: Served, connect: Connect, frame: dict[str, Any]
) -> None:
    link = store_module._Link(served.host_and_port, KEY, {"store": "odd-0"}, time.monotonic() + 5)
    link.send(frame)
    with pytest.raises((EOFError, OSError)):
        link.receive()
    link.close()
    connect().set("a", b"1")


def test_a_question_that_makes_no_sense_is_answered_with_a_sentence(served: Served) -> None:
    link = store_module._Link(served.host_and_port, KEY, {"store": "odd-0"}, time.monotonic() + 5)
    for number, words in enumerate(
        [{"op": "dance"}, {"op": "set", "key": "a"}, {"op": "set", "key": "a", "value": "€"}]
    ):
        link.send({"id": number, "done": 0, **words})
        answer = link.receive()
        assert answer["id"] == number
        assert "does not understand" in answer["error"]
    link.close()


def test_a_reader_that_takes_nothing_is_dropped_and_the_store_stays_small(served: Served, connect: Connect) -> None:
    link = store_module._Link(served.host_and_port, KEY, {"store": "idle-0"}, time.monotonic() + 5)
    link.send({"id": 1, "done": 1, "op": "watch", "key": "big"})
    writer = connect()
    for _ in range(200):
        writer.set("big", bytes(64 * 1024))
    read = 0
    with contextlib.suppress(EOFError, OSError):
        while read < 300:
            link.receive()
            read += 1
    assert read < 200
    link.close()


def test_the_environment_has_the_address_of_the_store(served: Served) -> None:
    with pytest.raises(EnvironmentProblem, match="downpour needs the run's join store"):
        JoinStore.of(Environment(strategy="downpour"))
    store = JoinStore.of(Environment(replica="ps-0", role="ps", rank=None, store=served.address, key=KEY))
    store.set("a", b"1")
    store.close()


def test_the_store_is_used_without_torch() -> None:
    script = "import sys, torchyard_roles.coordination.join_store_client; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=bare_environment(), check=True)


WORLD = """
import sys, torch, torch.distributed as dist
from torchyard_roles.coordination.join_store_client import JoinStore
from torchyard_roles.coordination.torch_store import TorchStore
rank = int(sys.argv[2])
store = JoinStore.connect(sys.argv[1], bytes.fromhex(sys.argv[3]), f"worker-{rank}", rank)
for generation in range(2):
    dist.init_process_group("gloo", store=TorchStore(store, f"world/{generation}/"), rank=rank, world_size=2)
    total = torch.full((3,), rank + 1.0)
    dist.all_reduce(total)
    pair = dist.new_group([0, 1])
    dist.barrier(pair)
    assert total.tolist() == [3.0] * 3
    dist.destroy_process_group()
plain = TorchStore(store, "plain/")
if rank == 0:
    prefixed = dist.PrefixStore("p", plain)
    prefixed.set("a", "1")
    assert prefixed.get("a") == b"1" and prefixed.check(["a"]) and not prefixed.check(["b"])
    assert prefixed.compare_set("c", "", "v") == b"v" and prefixed.compare_set("c", "x", "w") == b"v"
    prefixed.append("q", "ab"); prefixed.append("q", "cd")
    prefixed.multi_set(["k", "l"], ["1", "2"])
    assert prefixed.multi_get(["k", "l", "q"]) == [b"1", b"2", b"abcd"]
    assert prefixed.delete_key("a") and prefixed.num_keys() > 3
store.close()
print("well")
"""


@pytest.mark.train
def test_torch_s_process_groups_meet_through_it_one_generation_after_the_other(served: Served) -> None:
    pytest.importorskip("torch", reason="process groups are torch's")
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", WORLD, served.address, str(rank), KEY.hex()],
            cwd=ROOT,
            env=bare_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    assert all("well" in output for output in outputs)
