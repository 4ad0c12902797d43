"""Tests of the ranks in assignments, including the ranks of replicas that are added to a running gang."""

from __future__ import annotations

from typing import Any

from tests.agent.keeper.keeper_cluster import CLUSTER, replica
from torchyard_agent.keeper.assignments import Assignments

OPTIONS = {"kind": "all_reduce", "on_worker_loss": "continue"}


def assignments() -> Assignments:
    """Returns the assignments of two workers and an evaluator, all on host a."""
    plans = [replica("worker-0", "a"), replica("worker-1", "a"), replica("evaluator-0", "a")]
    start: Any = {
        "members": [{"host": "a", "address": "10.0.0.1", "gang_port": 4000}],
        "cluster": {**CLUSTER, "options": OPTIONS},
        "replicas": plans,
        "policy": {"host_wait_s": 600.0, "max_restarts": 2},
        "setup": [],
        "secrets": {},
        "spare_imports": [],
    }
    return Assignments(start, replicates=False)


def place(made: Assignments, name: str, generation: int = 0, attempt: int = 1) -> tuple[str | None, ...]:
    """Returns variables of a started replica: its rank, the world size, and the first world size of the generation."""
    [[share]] = made.of_gang([name], generation, (), attempt).values()
    env = share["ranks"][0]["env"]
    return env["TORCHYARD_RANK"], env["TORCHYARD_WORLD_SIZE"], env.get("TORCHYARD_STARTED_WITH")


def test_added_replicas_have_the_ranks_after_all_others_which_keep_theirs() -> None:
    made = assignments()
    made.add([replica("worker-2", "b"), replica("worker-3", "b")])  # type: ignore[list-item]  # Tests give plans as dictionaries.
    assert place(made, "worker-2") == ("2", "4", "2")
    assert place(made, "worker-3") == ("3", "4", "2")
    assert place(made, "worker-1") == ("1", "2", None)
    assert made.seats("trainers", ()) == [(f"worker-{number}", 1) for number in range(4)]


def test_in_the_next_generation_members_have_usual_ranks_and_others_come_last() -> None:
    made = assignments()
    made.add([replica("worker-2", "b"), replica("worker-3", "b")])  # type: ignore[list-item]  # Tests give plans as dictionaries.
    made.begin_generation(["worker-2"])  # Of the two added workers, only worker-3 is a member of the gang now.
    assert place(made, "worker-3", 1, 0) == ("2", "3", None)
    assert place(made, "worker-2", 1) == ("3", "4", "3")
    assert made.seats("trainers", ()) == [("worker-0", 1), ("worker-1", 1), ("worker-3", 1), ("worker-2", 1)]


def test_a_new_host_starts_no_ranks_before_it_is_told_to() -> None:
    made = assignments()
    made.add([replica("worker-2", "b")])  # type: ignore[list-item]  # Tests give plans as dictionaries.
    assert made.of_host("b").replicas == []
    assert [one["name"] for one in made.of_host("a").replicas] == ["worker-0", "worker-1", "evaluator-0"]
