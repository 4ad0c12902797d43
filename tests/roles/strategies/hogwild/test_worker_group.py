"""Tests of Hogwild's invariant: once all deltas are exchanged, each replica has the initial value plus all deltas,
despite faults.
"""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
import torch

from tests.ports import free_port
from tests.roles.strategies.hogwild.worker_groups import (
    KEY,
    Trained,
    at_once,
    groups_of,
    largest_difference,
    peers_of,
    sum_of,
    values,
)
from tests.waiting import wait_until
from torchyard_roles.errors import PeerLost, ProtocolError, RolesError
from torchyard_roles.exchange import tensor_connection
from torchyard_roles.exchange.parameter_layout import LARGEST_CHUNK, Layout
from torchyard_roles.strategies.hogwild import delta_client, delta_server, shard_exchange, worker_group
from torchyard_roles.strategies.hogwild.shard_copy import ShardCopy

SIZES = [(300, 7), (1,), (41,), (2, 3, 50), (5000,)]
ROUNDING = 1e-10
"""The largest difference between float64 sums of a few hundred numbers of size 1 that are added in different orders."""


@pytest.fixture
def slow_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delays each message by up to 20 ms in both directions."""
    rolls = random.Random(3)
    pause = threading.Event()
    send = delta_server.send_chunks

    def send_late(connection: tensor_connection.Connection, tensors: list[torch.Tensor]) -> None:
        pause.wait(rolls.random() * 0.02)
        send(connection, tensors)

    monkeypatch.setattr(delta_server, "send_chunks", send_late)
    monkeypatch.setattr(delta_client, "send_chunks", send_late)
    monkeypatch.setattr(shard_exchange, "send_chunks", send_late)


def versions(groups: list[Trained]) -> int:
    masters: dict[int, int] = {}
    for each in groups:
        for shard, master in each.group.holdings.masters.items():
            masters[shard] = max(masters.get(shard, 0), master.version)
    return sum(masters.values())


def test_all_groups_start_from_the_chiefs_parameters() -> None:
    with groups_of(3, SIZES) as groups:
        start = values(groups[0])
        assert [largest_difference(values(each), start) for each in groups] == [0, 0, 0]


def test_no_delta_is_lost_while_others_are_in_flight(slow_network: None) -> None:
    with groups_of(3, SIZES) as groups:
        start = values(groups[0])
        at_once(*(lambda each=each: each.train(300, 0.003) for each in groups))
        while sum(each.exchanges for each in groups) <= 9 * 20:
            at_once(*(lambda each=each: each.train(30, 0.003) for each in groups))
        at_once(*(each.group.exchange_all for each in groups))  # The first exchange sends all deltas to the masters.
        at_once(*(each.group.exchange_all for each in groups))  # The second exchange distributes the sums.
        total = sum_of(start, *groups)
        assert [largest_difference(values(each), total) <= ROUNDING for each in groups] == [True, True, True]
        assert [largest_difference(values(each), values(groups[0])) for each in groups] == [0, 0, 0]
        assert versions(groups) == sum(each.exchanges for each in groups)


class Interrupted(ShardCopy):
    """A copy whose answer arrives right after `has_arrived` has been read, unless a lock prevents it."""

    def __init__(self, *arguments: Any) -> None:
        self.may_arrive, self._has_come = threading.Event(), threading.Event()
        self.may_arrive.set()
        super().__init__(*arguments)

    def arrive(self, *answer: Any) -> None:
        assert self.may_arrive.wait(30)
        super().arrive(*answer)
        self._has_come.set()

    @property
    def has_arrived(self) -> bool:
        read = self._has_arrived
        if self.under_way and not self.may_arrive.is_set():
            may_write = []

            def try_to_write() -> None:
                if self.changed.acquire(blocking=False):
                    self.changed.release()
                    may_write.append(True)

            at_once(try_to_write)
            self.may_arrive.set()
            assert not may_write or self._has_come.wait(30)
        return read

    @has_arrived.setter
    def has_arrived(self, value: bool) -> None:
        self._has_arrived = value


@pytest.mark.parametrize("act", ["boundary", "exchange_within"])
def test_an_answer_that_comes_while_training_looks_for_it_is_not_taken_away_from_the_others(
    monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    monkeypatch.setattr(worker_group, "ShardCopy", Interrupted)
    with groups_of(2, SIZES) as groups:
        start = values(groups[0])
        chief, other = groups
        other.update()
        other.group.exchange_all()
        for copy in chief.group.copies:
            copy.may_arrive.clear()  # type: ignore[attr-defined]  # Only the subclass has this attribute.
        chief.train(1)
        chief.update()
        chief.group.boundary() if act == "boundary" else chief.group.exchange_within(30)
        assert all(copy.may_arrive.is_set() for copy in chief.group.copies)  # type: ignore[attr-defined]  # Only the subclass has this attribute.
        at_once(*(each.group.drain for each in groups))
        assert largest_difference(values(chief), sum_of(start, *groups)) <= ROUNDING


def test_the_chief_has_the_sum_of_all_when_groups_end_at_different_times(slow_network: None) -> None:
    with groups_of(3, SIZES) as groups:
        start = values(groups[0])

        def run(each: Trained, updates: int) -> None:
            each.train(updates, 0.003)
            each.group.drain()
            if each is not groups[0]:
                each.group.close()

        at_once(*(lambda each=each, n=n: run(each, n) for each, n in zip(groups, (100, 20, 250), strict=True)))
        assert largest_difference(values(groups[0]), sum_of(start, *groups)) <= ROUNDING
        assert groups[0].group.holdings.hosts == [0, 0, 0]
        assert versions(groups[:1]) == sum(each.exchanges for each in groups)


def test_connections_that_break_at_any_moment_make_no_delta_count_twice(slow_network: None) -> None:
    with groups_of(3, SIZES) as groups:
        start = values(groups[0])
        over, broken = threading.Event(), 0

        def break_connections() -> None:
            nonlocal broken
            rolls = random.Random(11)
            while not over.wait(0.02):
                those = rolls.choice(groups).group._server._connections
                with those._lock:
                    connections = list(those._open)
                if connections:
                    rolls.choice(connections).close()
                    broken += 1

        breaking = threading.Thread(target=break_connections)
        breaking.start()
        try:
            at_once(*(lambda each=each: each.train(300, 0.006) for each in groups))
            while broken < 20:
                at_once(*(lambda each=each: each.train(30, 0.006) for each in groups))
        finally:
            over.set()
            breaking.join()
        at_once(*(each.group.drain for each in groups))
        assert largest_difference(values(groups[0]), sum_of(start, *groups)) <= ROUNDING
        assert versions(groups[:1]) == sum(each.exchanges for each in groups)


def test_a_host_of_a_shard_that_dies_and_comes_back_takes_nothing_of_the_others_along(
    slow_network: None, capfd: pytest.CaptureFixture[str]
) -> None:
    with groups_of(3, SIZES) as groups:
        start = values(groups[0])
        chief, host, third = groups
        back: list[Trained] = []

        def die_and_come_back() -> None:
            wait_until(lambda: host.group.holdings.masters[1].version >= 20)
            # The host's master copy includes the deltas that the host has just received. The host has no deltas itself.
            host.group._server.close()
            for link in host.group._exchanges:
                link.close()
            wait_until(lambda: 1 in chief.group.holdings.gone)
            again = Trained(1, host.group.peers, SIZES, generation=1)
            back.append(again)
            again.group.start()
            again.train(50, 0.003)

        def train_meanwhile(each: Trained) -> None:
            while not back:
                each.train(20, 0.006)
            each.train(20, 0.006)

        at_once(die_and_come_back, *(lambda each=each: train_meanwhile(each) for each in (chief, third)))
        again = back[0]
        try:
            at_once(*(each.group.drain for each in (chief, again, third)))
        finally:
            again.group.close()
        total = sum_of(start, chief, again, third)
        assert largest_difference(values(chief), total) <= ROUNDING
        assert again.group.generation == 1
    log = capfd.readouterr().err
    assert "worker-1 on 127.0.0.1 is gone" in log
    assert "exchanges with worker group 1 wait for it" in log
    assert "worker-1 is back" in log


@pytest.mark.parametrize("moved", [0, 1], ids=["the chief's", "another"])
def test_a_group_that_goes_on_without_its_first_host_is_found_at_its_new_address(moved: int) -> None:
    """The other groups have not been restarted, so they know only the old address."""
    with groups_of(3, SIZES) as groups:
        start = values(groups[0])
        groups[moved].group.close()
        places = [*groups[moved].group.peers]
        places[moved] = tensor_connection.Peer("worker-9", "127.0.0.1", free_port())
        again = Trained(moved, places, SIZES, generation=1)
        try:
            again.group.start()
            now = [again if number == moved else each for number, each in enumerate(groups)]
            at_once(*(lambda each=each: each.train(20, 0.003) for each in now))
            at_once(*(each.group.drain for each in now))
            assert largest_difference(values(now[0]), sum_of(start, *now)) <= ROUNDING
            assert {each.group.peers[moved] for each in now} == {places[moved]}
            assert now[0].group.holdings.hosts == [0, 0, 0]
        finally:
            again.group.close()


def test_a_failed_call_to_the_old_address_does_not_mark_a_moved_group_as_gone(
    capfd: pytest.CaptureFixture[str],
) -> None:
    peers = peers_of(3)
    holdings = delta_server.Holdings(0, peers, [[], [], []])
    moved = tensor_connection.Peer("worker-9", "127.0.0.1", free_port())
    holdings.meet(2, moved, 1)
    holdings.meet(2, peers[2], 0)  # A message with the old address of the group is read late.
    assert holdings.peers == [*peers[:2], moved]

    holdings.lose(2, PeerLost("worker-2", "127.0.0.1", "connection timed out"))
    assert not holdings.gone
    holdings.lose(2, PeerLost("worker-9", "127.0.0.1", "connection timed out"))
    assert list(holdings.gone) == [2]
    assert "worker-2" not in capfd.readouterr().err


def test_a_group_that_starts_during_a_request_answers_without_a_lineage_or_completely() -> None:
    """An answer with a lineage but no versions would be useless to a starting group, which chooses a view by the
    versions.
    """
    holdings = delta_server.Holdings(0, peers_of(3), [[], [], []])

    class Begins(list[Any]):
        """A list of copies during whose iteration the lineage is published."""

        def __iter__(self) -> Any:
            holdings.lineage = "begun"
            return iter(())

    holdings.copies = Begins()
    assert holdings.about()["lineage"] == ""


def test_a_delta_whose_answer_died_with_its_host_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chief received the delta as part of the host's value. The sender received no answer, so it sends the delta
    again.
    """
    with groups_of(3, SIZES) as groups:
        start = values(groups[0])
        chief, host, third = groups
        send_value = delta_server.send_value

        def lose_the_thirds(connection: tensor_connection.Connection, *value: Any) -> None:
            if connection.peer == "worker-2":
                connection.close()
            send_value(connection, *value)

        monkeypatch.setattr(delta_server, "send_value", lose_the_thirds)
        third.update()
        third.group.boundary()
        wait_until(lambda: host.group.holdings.masters[1].version >= 1)  # The delta is applied, and the answer is lost.
        chief.group.copies[1].begin()
        assert chief.group.copies[1].wait(60)
        assert chief.group.copies[1].applied == {2: 1, 0: 1}
        assert third.group.copies[1].under_way
        host.group.close()
        monkeypatch.undo()
        again = Trained(1, host.group.peers, SIZES, generation=1)
        try:
            again.group.start()
            assert again.group.holdings.masters[1].version >= 2
            at_once(*(each.group.drain for each in (chief, again, third)))
        finally:
            again.group.close()
        assert largest_difference(values(chief), sum_of(start, third)) <= ROUNDING


def test_an_answer_of_a_host_that_has_been_started_again_meanwhile_confirms_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The restarted host read this group's view before the answer arrived, so its master copy does not include the
    delta.
    """
    with groups_of(3, SIZES) as groups:
        start = values(groups[0])
        chief, host, third = groups
        receive_chunks = shard_exchange.receive_chunks  # type: ignore[attr-defined]  # The module imports the function, but does not export it.
        has_come, goes_on = threading.Event(), threading.Event()

        def receive_and_stand_still(connection: tensor_connection.Connection, tensors: list[torch.Tensor]) -> None:
            receive_chunks(connection, tensors)
            if connection.peer == "worker-1" and not has_come.is_set():
                has_come.set()
                assert goes_on.wait(60)

        monkeypatch.setattr(shard_exchange, "receive_chunks", receive_and_stand_still)
        third.update()
        third.group.boundary()
        assert has_come.wait(60)
        assert host.group.holdings.masters[1].applied == {2: 1}
        host.group.close()
        again = Trained(1, host.group.peers, SIZES, generation=1)
        try:
            again.group.start()
            assert again.group.holdings.masters[1].applied == {}
            goes_on.set()
            at_once(*(each.group.drain for each in (chief, again, third)))
        finally:
            goes_on.set()
            again.group.close()
        assert largest_difference(values(chief), sum_of(start, third)) <= ROUNDING


def test_the_chiefs_group_comes_back_to_what_the_others_have(slow_network: None) -> None:
    with groups_of(3, SIZES) as groups:
        start = values(groups[0])
        chief, *others = groups
        back: list[Trained] = []

        def die_and_come_back() -> None:
            wait_until(lambda: versions(others) >= 10)
            chief.group.close()
            again = Trained(0, chief.group.peers, SIZES, generation=1)
            back.append(again)
            again.group.start()

        at_once(die_and_come_back, *(lambda each=each: each.train(200, 0.006) for each in others))
        try:
            at_once(*(each.group.drain for each in (back[0], *others)))
            assert largest_difference(values(back[0]), sum_of(start, *others)) <= ROUNDING
            assert back[0].group.holdings.lineage == others[0].group.holdings.lineage
        finally:
            back[0].group.close()


def test_a_shard_whose_group_never_comes_back_is_hosted_by_the_chiefs_group(
    slow_network: None, capfd: pytest.CaptureFixture[str]
) -> None:
    with groups_of(3, SIZES) as groups:
        start = values(groups[0])
        chief, gone, third = groups
        at_once(*(lambda each=each: each.train(20, 0.003) for each in (chief, third)))
        gone.group.close()
        at_once(*(lambda each=each: each.train(100, 0.003) for each in (chief, third)))
        chief.group.host_wait_s = 0.5
        wait_until(lambda: chief.group.holdings.hosts[1] == 0)
        chief.group.host_wait_s = 20.0  # The timeout must be long enough for the third group, which is slow.
        at_once(third.group.drain)
        chief.group.host_wait_s = 0.5
        at_once(chief.group.drain)
        assert chief.group.holdings.hosts == [0, 0, 0]
        assert largest_difference(values(chief), sum_of(start, chief, third)) <= ROUNDING
    assert "worker-1 did not come back: this group hosts its shard from now on." in capfd.readouterr().err


def test_at_its_end_the_chiefs_group_does_not_wait_anew_for_one_that_has_been_gone_for_long() -> None:
    with groups_of(2, SIZES, host_wait_s=600.0) as (chief, gone):
        start = values(chief)
        gone.group.close()
        chief.group.adopt_orphan(1)
        chief.train(5)
        chief.group.holdings.lose(1, PeerLost("worker-1", "127.0.0.1", "silence"))
        chief.group.holdings.gone[1] -= 601
        at_once(chief.group.drain)
        assert largest_difference(values(chief), sum_of(start, chief)) <= ROUNDING


def test_bytes_are_those_of_the_table() -> None:
    count, updates, sync_every = 4, 40, 4
    with groups_of(count, [(1000, 300), (77,), (50_000,)], dtype=torch.float32, sync_every=sync_every) as groups:
        size = sum(parameter.numel() * 4 for parameter in groups[0].parameters)
        for each in groups:  # All connections must be complete before the traffic is measured.
            each.group.exchange_all()
        before = [each.group.traffic() for each in groups]
        for _ in range(updates):
            for each in groups:
                each.update()
                each.group.boundary()
                for copy in each.group.copies:
                    assert copy.wait(60)
        after = [each.group.traffic() for each in groups]
    due = updates * 2 * size * (count - 1) / (count * sync_every)
    for (sent, received), (sent_before, received_before) in zip(after, before, strict=True):
        assert sent - sent_before == pytest.approx(due, rel=0.02)
        assert received - received_before == pytest.approx(due, rel=0.02)


def test_several_dtypes_and_more_groups_than_numbers() -> None:
    with groups_of(3, [(1,)]) as groups:
        start = values(groups[0])
        at_once(*(lambda each=each: each.train(10) for each in groups))
        at_once(*(each.group.drain for each in groups))
        assert largest_difference(values(groups[0]), sum_of(start, *groups)) <= ROUNDING


def test_parameters_of_half_precision_and_other_memory_order_add_up() -> None:
    peers = peers_of(2)
    models = []
    for _ in peers:
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3), torch.nn.Linear(64, 64).to(torch.bfloat16))
        models.append(model.to(memory_format=torch.channels_last))
    groups = []
    for number, model in enumerate(models):
        layout, parameters = Layout.of(model, torch.optim.SGD(model.parameters(), lr=1.0))
        listener = tensor_connection.listen(peers[number].address, peers[number].port)
        shards = layout.by_shard(len(peers), LARGEST_CHUNK)
        groups.append(worker_group.WorkerGroup(number, peers, listener, KEY, layout.fingerprint(), shards, parameters))
    try:
        assert not models[0][0].weight.is_contiguous()
        at_once(*(group.start for group in groups))
        start = [parameter.detach().clone() for parameter in models[0].parameters()]
        for number, model in enumerate(models):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.25 * (number + 1))
        at_once(*(group.drain for group in groups))
        for parameter, first in zip(models[0].parameters(), start, strict=True):
            tolerance = 0.02 if parameter.dtype is torch.bfloat16 else 1e-6
            assert (parameter - first - 0.75).abs().max().item() <= tolerance
    finally:
        for group in groups:
            group.close()


def test_a_caller_with_another_key_is_refused_and_training_goes_on(capfd: pytest.CaptureFixture[str]) -> None:
    with groups_of(2, SIZES) as groups:
        with pytest.raises(ProtocolError, match="another key"):
            tensor_connection.Connection.connect(groups[0].group.peers[0], bytes(32), {"name": "stranger"}, 2)
        at_once(*(each.group.exchange_all for each in groups))
    assert "was refused" in capfd.readouterr().err


def test_another_model_is_refused_with_a_sentence() -> None:
    peers = peers_of(2)
    chief, other = Trained(0, peers, SIZES), Trained(1, peers, [*SIZES, (2,)])
    try:
        chief.group.start()
        with pytest.raises(ProtocolError, match="The model of worker-1 differs from the one of worker-0"):
            other.group.start()
    finally:
        chief.group.close()
        other.group.close()


def test_a_value_of_another_size_changes_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with groups_of(2, SIZES) as groups:
        before = values(groups[0])
        connection = groups[1].group.calls.connect(0, 2)
        lineage = groups[0].group.holdings.lineage
        connection.send({"op": "exchange", "shard": 0, "number": 9, "base": 0, "lineage": lineage})
        connection.send({"chunk": 0}, torch.ones(3, dtype=torch.float64))
        with pytest.raises(PeerLost):
            connection.receive()
        connection.close()
        at_once(*(each.group.exchange_all for each in groups))
        assert largest_difference(values(groups[0]), before) == 0
    assert "announced 24 bytes of float64" in capfd.readouterr().err


def test_a_group_that_closes_while_one_of_its_links_connects_exchanges_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with groups_of(2, SIZES) as (chief, other):
        link, connect = chief.group._exchanges[1], chief.group.calls.connect
        joins, join = threading.Event(), link.join

        def join_and_notify(timeout: float) -> None:
            joins.set()
            join(timeout)

        def connect_late(*arguments: Any) -> tensor_connection.Connection:
            connection = connect(*arguments)
            threading.Thread(target=link.close, daemon=True).start()
            # close() is now waiting for the link's thread, so it cannot close this new connection itself.
            assert joins.wait(30)
            return connection

        monkeypatch.setattr(link, "join", join_and_notify)
        monkeypatch.setattr(chief.group.calls, "connect", connect_late)
        chief.update()
        chief.group.boundary()
        wait_until(lambda: not link.is_alive())
        assert other.group.holdings.masters[1].version == 0


def test_what_is_not_finite_is_never_sent() -> None:
    with groups_of(2, SIZES) as groups:
        before = values(groups[0])
        groups[1].parameters[0].data[0] = float("nan")
        with pytest.raises(RolesError, match="worker group 1 are no longer finite"):
            groups[1].group.exchange_all()
        groups[0].group.exchange_all()
        assert largest_difference(values(groups[0]), before) == 0


def test_a_probe_of_a_group_that_ends_does_not_unmark_its_end() -> None:
    with groups_of(2, SIZES) as groups:
        chief, other = (each.group for each in groups)
        at_once(chief.exchange_all, other.exchange_all)
        other.drain()
        chief.calls.ask(1, {"op": "about"})  # A group that is ending still answers.
        other.calls.ask(0, {"op": "about"})
        assert 1 in chief.holdings.ended
        at_once(chief.drain)


def test_a_group_that_ends_gets_its_answer_before_the_chief_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    with groups_of(2, SIZES) as groups:
        chief, other = (each.group for each in groups)
        end, is_closed = chief.holdings.end, threading.Event()

        def end_and_pause(*arguments: Any) -> None:
            end(*arguments)
            assert is_closed.wait(30)

        def drain_and_close() -> None:
            chief.drain()
            monkeypatch.setattr(chief._server._connections, "close", lambda: (connections_close(), is_closed.set()))
            chief.close()

        connections_close = chief._server._connections.close
        monkeypatch.setattr(chief.holdings, "end", end_and_pause)
        at_once(drain_and_close, other.drain)
