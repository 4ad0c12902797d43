"""Who a process is follows from its variables alone."""

from __future__ import annotations

import pytest

from tests.roles.processes import trainer_environment
from torchyard_roles.environment import Environment, read
from torchyard_roles.errors import EnvironmentProblem


def test_without_any_variable_it_is_one_process_of_its_own() -> None:
    assert read({}) == Environment()
    assert not read({}).is_torchyard


def test_a_trainer_of_torchyard_knows_its_replica_and_rank() -> None:
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
