"""Tests of reading a process's role, rank and peers from its environment variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.roles.processes import trainer_environment
from torchyard_roles.environment import Environment, Options, PeerAddress, Peers, TrainerAddress, read
from torchyard_roles.errors import EnvironmentProblem


def test_without_any_variable_it_is_one_process_of_its_own() -> None:
    assert read({}) == Environment()
    assert not read({}).is_torchyard


def test_a_trainer_of_torchyard_has_its_replica_and_rank() -> None:
    environment = read(trainer_environment(2, 3, 29500, TORCHYARD_REPORT="@torchyard/1"))
    assert (environment.role, environment.index, environment.rank, environment.world_size) == ("worker", 2, 2, 3)
    assert environment.master == "127.0.0.1:29500"
    assert environment.report_address == "@torchyard/1"
    assert environment.is_torchyard


def test_under_plain_torchrun_ranks_are_torchruns() -> None:
    environment = read({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"})
    assert (environment.role, environment.index, environment.rank, environment.world_size) == ("worker", 1, 1, 2)
    assert (environment.local_rank, environment.local_world_size) == (1, 2)
    assert not environment.is_torchyard


def test_in_asynchronous_kinds_the_rank_is_torchyards_not_the_groups() -> None:
    given = trainer_environment(0, 2, 29500, TORCHYARD_RANK="3", TORCHYARD_WORLD_SIZE="4", TORCHYARD_REPLICA="worker-3")
    environment = read(given)
    assert (environment.rank, environment.world_size) == (3, 4)


def test_a_torchrun_inside_a_replica_makes_the_world() -> None:
    given = trainer_environment(3, 4, 29500, TORCHYARD_RANK="1", TORCHYARD_WORLD_SIZE="2", TORCHELASTIC_RUN_ID="none")
    environment = read(given)
    assert (environment.rank, environment.world_size) == (3, 4)


def test_a_scheduler_shortens_the_time_for_a_stop_and_never_extends_it(tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    environment = read({"TORCHYARD_REPLICA": "worker-0", "TORCHYARD_STOP": str(stop), "TORCHYARD_OPTIONS": "{}"})
    assert environment.stop_grace_s == 30.0
    for content, expected in (("3.750", 3.75), ("600.000", 30.0), ("", 30.0)):
        stop.write_text(content)
        assert environment.stop_grace_s == expected


def test_an_evaluator_has_no_rank_and_sees_how_many_train() -> None:
    environment = read({"TORCHYARD_REPLICA": "evaluator-0", "TORCHYARD_ROLE": "evaluator", "TORCHYARD_WORLD_SIZE": "3"})
    assert (environment.rank, environment.world_size, environment.trains) == (None, 3, False)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"RANK": "0"}, "RANK is 0, but WORLD_SIZE is not set"),
        ({"RANK": "3", "WORLD_SIZE": "3"}, "RANK is 3, but there are only 3 ranks"),
        ({"RANK": "-1", "WORLD_SIZE": "3"}, "RANK is '-1', but it must be a whole number"),
        ({"RANK": "two", "WORLD_SIZE": "3"}, "RANK is 'two'"),
        ({"TORCHYARD_ROLE": "boss"}, "TORCHYARD_ROLE is 'boss', but the roles are chief, worker"),
        ({"TORCHYARD_REPLICA": "worker"}, "a replica's name is like worker-3"),
    ],
)
def test_variables_that_contradict_each_other_are_named(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(EnvironmentProblem, match=sentence.replace("(", r"\(")):
        read(given)


def test_what_a_strategy_goes_by_has_defaults_without_torchyard() -> None:
    by_hand, by_torchrun = read({}), read({"RANK": "1", "WORLD_SIZE": "2"})
    assert (by_hand.options, by_hand.peers, by_hand.store, by_hand.key) == (Options(), Peers(), "", b"")
    assert (by_hand.group_rank, by_hand.group_size, by_hand.checkpoints) == (0, 1, "")
    assert (by_torchrun.group, by_torchrun.groups, by_torchrun.group_rank, by_torchrun.group_size) == (0, 1, 1, 2)
    assert (by_torchrun.gang, by_torchrun.name) == ("trainers", "worker-1")
    assert read({"TORCHYARD_STRATEGY": "hogwild"}).options.kind == "hogwild"


def test_a_trainer_has_its_group_its_peers_and_its_store() -> None:
    environment = read(
        trainer_environment(
            3,
            4,
            29500,
            TORCHYARD_STRATEGY="downpour",
            TORCHYARD_OPTIONS='{"kind": "downpour", "push_every": 4, "checkpoint_every_s": 5.5, "later": 1}',
            TORCHYARD_GROUP="1",
            TORCHYARD_GROUPS="2",
            TORCHYARD_GROUP_RANK="1",
            TORCHYARD_GROUP_SIZE="2",
            TORCHYARD_GENERATION="3",
            TORCHYARD_PEERS='{"ps": [["ps-0", "10.0.0.1", 4001]], "trainers": [["worker-2", "10.0.0.2", 4002, 2, 1]]}',
            TORCHYARD_STORE="10.0.0.1:4000",
            TORCHYARD_KEY="ab" * 32,
            TORCHYARD_RUN_DIR="/runs/1/outputs",
        )
    )
    assert (environment.options.push_every, environment.options.checkpoint_every_s) == (4, 5.5)
    assert (environment.group, environment.groups, environment.group_rank, environment.group_size) == (1, 2, 1, 2)
    assert (environment.generation, environment.gang) == (3, "group-1")
    assert environment.peers == Peers(
        ps=(PeerAddress("ps-0", "10.0.0.1", 4001),), trainers=(TrainerAddress("worker-2", "10.0.0.2", 4002, 2, 1),)
    )
    assert environment.store == "10.0.0.1:4000"
    assert environment.key == bytes([0xAB]) * 32
    assert environment.checkpoints == "/runs/1/outputs/checkpoints"


def test_the_key_is_in_no_text_that_is_made_of_the_environment() -> None:
    assert "ab" * 32 not in repr(read({"TORCHYARD_KEY": "ab" * 32}))
    with pytest.raises(EnvironmentProblem) as raised:
        read({"TORCHYARD_KEY": "c0ffee"})
    assert "c0ffee" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TORCHYARD_OPTIONS", "[1]"),
        ("TORCHYARD_OPTIONS", "{"),
        ("TORCHYARD_OPTIONS", '{"push_every": "often"}'),
        ("TORCHYARD_OPTIONS", '{"max_staleness": -1}'),
        ("TORCHYARD_PEERS", '{"ps": [["ps-0"]]}'),
        ("TORCHYARD_PEERS", "x"),
        ("TORCHYARD_GROUP_RANK", "5"),
    ],
)
def test_values_that_cannot_be_are_named(name: str, value: str) -> None:
    with pytest.raises(EnvironmentProblem, match=name):
        read(trainer_environment(0, 2, 29500, TORCHYARD_GROUP_SIZE="2", **{name: value}))
