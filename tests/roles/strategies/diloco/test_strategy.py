"""Tests of DiLoCo with real processes over the loopback interface and a join store, compared with its definition."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.roles.join_stores import Served, serve_in_a_process
from tests.roles.processes import Start, outputs_of, wait_for
from tests.roles.programs import averages, rounds
from tests.roles.strategies.hogwild.test_strategy import Groups

pytestmark = pytest.mark.train

PROGRAMS = Path(__file__).parents[2] / "programs"
PROGRAM = PROGRAMS / "rounds.py"
AVERAGING = {"outer_lr": 1.0, "outer_momentum": 0.0}
STREAMING = {"fragments": 2, "overlap_steps": 1, "mixing": 0.5, "wire": "int8"}
FORMS = [pytest.param({}, id="blocking", marks=pytest.mark.proof), pytest.param(STREAMING, id="streaming")]


@pytest.fixture
def store() -> Iterator[Served]:
    store = serve_in_a_process()
    yield store
    store.end()


def groups_of(start: Start, store: Served, *sizes: int, **options: object) -> Groups:
    return Groups(start, store, *sizes, **{"kind": "diloco", **options})


def results(folder: Path, *processes: subprocess.Popen[str]) -> list[dict[str, Any]]:
    outputs_of(*processes)
    return [json.loads((folder / f"result.{rank}").read_text()) for rank in range(len(processes))]


def done(folder: Path, rank: int) -> int:
    try:
        return int((folder / str(rank)).read_text())
    except OSError:
        return 0


def alone(
    workers: Sequence[dict[str, Any]], every: int, lr: float, momentum: float, warmup: int = 0
) -> tuple[list[list[list[float]]], list[float]]:
    """Computes the definition in one process, with torch.optim.SGD as the outer optimizer.

    Returns:
        The parameters of each worker before each step, and the parameters at the end.
    """
    dataset = averages.data()
    models = [rounds.Model() for _ in workers]
    outer = rounds.Model()
    start = torch.tensor(workers[0]["before"][0], dtype=torch.float64)
    for model in (*models, outer):
        torch.nn.utils.vector_to_parameters(start[:-3].clone(), model.inner.parameters())
    optimizers = [averages.optimizer_of(model.inner) for model in models]
    plain = torch.optim.SGD(outer.inner.parameters(), lr=1.0)
    nesterov = torch.optim.SGD(outer.inner.parameters(), lr=lr, momentum=momentum, nesterov=momentum > 0)
    before: list[list[list[float]]] = [[] for _ in workers]
    samples = [0] * len(workers)
    steps = [len(worker["fed"]) for worker in workers]
    begun, due = 0, 1 if warmup else every
    for number in range(max(steps)):
        for seen, model, optimizer, worker in zip(before, models, optimizers, workers, strict=True):
            at = len(seen)
            seen.append(rounds.values(model))
            inputs, targets, _ = dataset[worker["fed"][at]]
            averages.step(model, optimizer, inputs, targets)
            samples[models.index(model)] += len(inputs)
        if number + 1 == begun + due or number + 1 == max(steps):
            outer_step(outer, models, samples, plain if number < warmup else nesterov)
            samples = [0] * len(workers)
            begun, due = number + 1, 1 if number + 1 < warmup else every
    return before, rounds.values(outer)


@torch.no_grad()  # type: ignore[untyped-decorator]  # mypy does not analyse torch.
def outer_step(
    outer: rounds.Model, models: list[rounds.Model], samples: list[int], optimizer: torch.optim.Optimizer
) -> None:
    shares = [count / sum(samples) for count in samples]
    each_models = [list(model.inner.parameters()) for model in models]
    for position, parameter in enumerate(outer.inner.parameters()):
        parameter.grad = sum(
            share * (parameter - each[position]) for share, each in zip(shares, each_models, strict=True)
        )
    outer.mean.copy_(sum(share * model.mean for share, model in zip(shares, models, strict=True)))
    optimizer.step()
    for model in models:
        model.load_state_dict({**outer.state_dict(), "frozen": model.frozen})


class Streamed:
    """A reference implementation of streaming in one process, with one fragment per linear module.

    The buffer belongs to the second fragment.
    """

    def __init__(self, workers: Sequence[dict[str, Any]], every: int, overlap: int, mixing: float) -> None:
        self.workers, self.every, self.overlap, self.mixing = workers, every, overlap, mixing
        self.models = [rounds.Model() for _ in workers]
        self.outer = rounds.Model()
        start = torch.tensor(workers[0]["before"][0], dtype=torch.float64)
        for model in (*self.models, self.outer):
            torch.nn.utils.vector_to_parameters(start[:-3].clone(), model.inner.parameters())
        self.optimizers = [averages.optimizer_of(model.inner) for model in self.models]
        self.steppers = [
            torch.optim.SGD(list(self.outer.inner[at].parameters()), lr=0.7, momentum=0.9, nesterov=True)
            for at in (0, 2)
        ]
        self.samples = [[0, 0] for _ in workers]

    def train(self) -> tuple[list[list[list[float]]], list[float]]:
        dataset = averages.data()
        before: list[list[list[float]]] = [[] for _ in self.workers]
        merge_at, sent = 0, 0
        for number in range(1, len(self.workers[0]["fed"]) + 1):
            for at, (model, optimizer, worker) in enumerate(
                zip(self.models, self.optimizers, self.workers, strict=True)
            ):
                before[at].append(rounds.values(model))
                inputs, targets, _ = dataset[worker["fed"][number - 1]]
                averages.step(model, optimizer, inputs, targets)
                self.samples[at] = [count + len(inputs) for count in self.samples[at]]
            if number == merge_at:
                self.merge(sent, self.mixing)
            for fragment in (0, 1):
                if number % self.every == (fragment + 1) * self.every // 2 % self.every:
                    self.average(fragment)
                    merge_at, sent = number + self.overlap, fragment
                    if not self.overlap:
                        self.merge(fragment, self.mixing)
        if merge_at > number:
            self.merge(sent, self.mixing)
        for fragment in (1 - sent, sent):
            self.average(fragment)
            self.merge(fragment, 0.0)
        return before, rounds.values(self.outer)

    @torch.no_grad()  # type: ignore[untyped-decorator]  # mypy does not analyse torch.
    def average(self, fragment: int) -> None:
        weights = [counts[fragment] for counts in self.samples]
        for counts in self.samples:
            counts[fragment] = 0
        if not sum(weights):
            return
        shares = [weight / sum(weights) for weight in weights]
        each_models = [list(model.inner[2 * fragment].parameters()) for model in self.models]
        for at, parameter in enumerate(self.outer.inner[2 * fragment].parameters()):
            parameter.grad = sum(
                share * (parameter - each[at]) for share, each in zip(shares, each_models, strict=True)
            )
        self.steppers[fragment].step()
        if fragment == 1:
            self.outer.mean.copy_(sum(share * each.mean for share, each in zip(shares, self.models, strict=True)))

    @torch.no_grad()  # type: ignore[untyped-decorator]  # mypy does not analyse torch.
    def merge(self, fragment: int, mixing: float) -> None:
        for model in self.models:
            pairs = list(
                zip(model.inner[2 * fragment].parameters(), self.outer.inner[2 * fragment].parameters(), strict=True)
            )
            pairs += [(model.mean, self.outer.mean)] if fragment == 1 else []
            for own, outer in pairs:
                own.copy_(mixing * own + (1 - mixing) * outer)


def double(numbers: Any) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def check(workers: list[dict[str, Any]], expected: tuple[list[list[list[float]]], list[float]]) -> None:
    before, after = expected
    for worker, seen in zip(workers, before, strict=True):
        assert torch.allclose(double(worker["before"]), double(seen), rtol=0, atol=1e-12)
        assert torch.allclose(double(worker["after"]), double(after), rtol=0, atol=1e-12)
        assert worker["after"] == workers[0]["after"]
        assert worker["frozen"] == workers[0]["frozen"]


def test_with_a_step_per_round_it_equals_all_reduce(start: Start, store: Served) -> None:
    groups = groups_of(start, store, 1, 1, inner_steps=1, **AVERAGING)
    outputs = outputs_of(*groups.start_all(PROGRAMS / "large_batch.py", "float64"))
    found = json.loads(outputs[0].splitlines()[-1])
    assert found["world_size"] == 2
    assert found["difference"] <= 1e-12


def test_averaging_equals_federated_averaging_and_the_rest_of_a_round_is_averaged_at_the_end(
    start: Start, store: Served, tmp_path: Path
) -> None:
    groups = groups_of(start, store, 1, 1, inner_steps=8, **AVERAGING)
    workers = results(tmp_path, *groups.start_all(PROGRAM, tmp_path, 20, 0))
    check(workers, alone(workers, 8, 1.0, 0.0))
    first, second = (worker["before"] for worker in workers)
    assert [number for number in range(20) if first[number] == second[number]] == [0, 8, 16]


def test_the_outer_optimizer_follows_a_warm_up_and_groups_weigh_as_many_samples_as_they_have_seen(
    start: Start, store: Served, tmp_path: Path
) -> None:
    groups = groups_of(start, store, 1, 1, inner_steps=5, warmup_steps=3)
    workers = results(tmp_path, *groups.start_all(PROGRAM, tmp_path, 20, 0, 4, 2))
    check(workers, alone(workers, 5, 0.7, 0.9, warmup=3))


def test_the_end_of_training_right_after_a_round_takes_no_further_outer_step(
    start: Start, store: Served, tmp_path: Path
) -> None:
    groups = groups_of(start, store, 1, 1, inner_steps=5)
    workers = results(tmp_path, *groups.start_all(PROGRAM, tmp_path, 10, 0))
    check(workers, alone(workers, 5, 0.7, 0.9))


def test_groups_of_unequal_size_weigh_as_many_samples_as_all_of_their_ranks_have_seen(
    start: Start, store: Served, tmp_path: Path
) -> None:
    alone_first = groups_of(start, store, 2, 1, inner_steps=100)
    apart = results(tmp_path, *alone_first.start_all(PROGRAM, tmp_path, 5, 0))
    other = serve_in_a_process()
    try:
        groups = groups_of(start, other, 2, 1, inner_steps=4, **AVERAGING)
        workers = results(tmp_path, *groups.start_all(PROGRAM, tmp_path, 5, 0))
    finally:
        other.end()
    large, small = (double(apart[rank]["before"][4])[:-3] for rank in (0, 2))
    assert not torch.equal(large, small)
    for worker in workers:
        assert torch.allclose(double(worker["before"][4])[:-3], (2 * large + small) / 3, rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", FORMS)
def test_the_ranks_of_a_group_stay_equal(
    start: Start, store: Served, tmp_path: Path, options: dict[str, object]
) -> None:
    groups = groups_of(start, store, 2, 1, inner_steps=4, **options)
    workers = results(tmp_path, *groups.start_all(PROGRAM, tmp_path, 10, 0))
    assert [len(worker["before"]) for worker in workers] == [10] * 3
    # Leaves out the buffers, which differ inside a group.
    parameters = [[step[:-3] for step in worker["before"]] for worker in workers]
    assert parameters[0] == parameters[1]
    assert parameters[0][3] != parameters[2][3]
    assert (parameters[0][4] == parameters[2][4]) is not bool(options)
    assert workers[0]["after"] == workers[1]["after"] == workers[2]["after"]


@pytest.mark.parametrize(("fragments", "overlap", "mixing", "steps"), [(5, 0, 0.0, 17), (2, 2, 0.5, 23)])
def test_fragments_are_averaged_in_turn_while_training_continues(
    start: Start, store: Served, tmp_path: Path, fragments: int, overlap: int, mixing: float, steps: int
) -> None:
    """Only two modules of the model are averaged, so there are two fragments even if the topology requests more."""
    groups = groups_of(start, store, 1, 1, inner_steps=7, fragments=fragments, overlap_steps=overlap, mixing=mixing)
    first, second = outputs_of(*groups.start_all(PROGRAM, tmp_path, steps, 0, 4, 2))
    sentence = "the model has 2 modules to average, so there are 2 fragments and not 5."
    assert (sentence in first, sentence in second) == (fragments > 2, False)
    workers = [json.loads((tmp_path / f"result.{rank}").read_text()) for rank in range(2)]
    check(workers, Streamed(workers, 7, overlap, mixing).train())


def test_a_single_group_takes_outer_steps_and_with_plain_averaging_equals_one_process(
    start: Start, store: Served, tmp_path: Path
) -> None:
    (worker,) = results(tmp_path, *groups_of(start, store, 1, inner_steps=6).start_all(PROGRAM, tmp_path, 20, 0))
    check([worker], alone([worker], 6, 0.7, 0.9))
    (worker,) = results(
        tmp_path, *groups_of(start, store, 1, inner_steps=6, **AVERAGING).start_all(PROGRAM, tmp_path, 20, 0)
    )
    check([worker], alone([worker], 20, 1.0, 0.0))


@pytest.mark.parametrize("options", FORMS)
def test_a_killed_group_stops_no_other_and_returns_with_the_parameters_of_the_others(
    start: Start, store: Served, tmp_path: Path, options: dict[str, object]
) -> None:
    groups = groups_of(start, store, 1, 1, 1, inner_steps=4, **options)
    processes = groups.start_all(PROGRAM, tmp_path, 80, 0.02)
    wait_for(lambda: done(tmp_path, 2) >= 10, "the groups train", *processes)
    os.kill(processes[2].pid, signal.SIGKILL)
    processes[2].wait()
    at = done(tmp_path, 0)
    wait_for(lambda: done(tmp_path, 0) >= at + 12, "the others continue", *processes[:2])
    processes[2] = groups.start(2, PROGRAM, tmp_path, 30, 0.02, generation=1)
    workers = results(tmp_path, *processes)
    assert workers[0]["after"] == workers[1]["after"] == workers[2]["after"]
    assert workers[0]["frozen"] == workers[1]["frozen"] == workers[2]["frozen"]
    if not options:  # If the exchange overlaps training, the parameters of two groups are never entirely equal.
        shared = {tuple(step) for step in workers[0]["before"]} & {tuple(step) for step in workers[2]["before"]}
        assert len(shared) >= 5, "it begins rounds with the others' parameters"


def test_the_chiefs_group_returns_with_the_parameters_of_the_others_and_saves_the_result(
    start: Start, store: Served, tmp_path: Path
) -> None:
    groups = groups_of(start, store, 1, 1, inner_steps=4)
    processes = groups.start_all(PROGRAM, tmp_path, 40, 0.02)
    wait_for(lambda: done(tmp_path, 0) >= 10, "the groups train", *processes)
    os.kill(processes[0].pid, signal.SIGKILL)
    processes[0].wait()
    wait_for(lambda: done(tmp_path, 1) >= 40, "the other group has finished", processes[1])
    processes[0] = groups.start(0, PROGRAM, tmp_path, 12, 0.02, generation=1)
    workers = results(tmp_path, *processes)
    assert workers[0]["after"] == workers[1]["after"]
    assert workers[0]["before"][0] != workers[1]["before"][0], "it begins with newer parameters"


def test_a_group_that_returns_after_the_end_ends_too(start: Start, store: Served, tmp_path: Path) -> None:
    groups = groups_of(start, store, 1, 1, inner_steps=4, **STREAMING)
    processes = groups.start_all(PROGRAM, tmp_path, 20, 0.02)
    wait_for(lambda: done(tmp_path, 1) >= 6, "the groups train", *processes)
    os.kill(processes[1].pid, signal.SIGKILL)
    processes[1].wait()
    outputs_of(processes[0])
    (output,) = outputs_of(groups.start(1, PROGRAM, tmp_path, 20, 0.02, generation=1))
    assert "the other worker groups have finished training" in output


def test_groups_that_were_all_killed_resume_from_their_parts(start: Start, store: Served, tmp_path: Path) -> None:
    checkpoints = {"TORCHYARD_CHECKPOINTS": str(tmp_path / "checkpoints"), "TORCHYARD_RUN_DIR": str(tmp_path)}
    groups = groups_of(start, store, 1, 1, inner_steps=4, checkpoint_every_s=0.1, **STREAMING)
    processes = groups.start_all(PROGRAM, tmp_path, 40, 0.05, **checkpoints)
    wait_for(lambda: min(done(tmp_path, 0), done(tmp_path, 1)) >= 15, "the groups train", *processes)
    for process in processes:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    again = [groups.start(each, PROGRAM, tmp_path, 40, 0, generation=1, **checkpoints) for each in range(2)]
    workers = results(tmp_path, *again)
    assert workers[0]["after"] == workers[1]["after"]
    assert all(0 < len(worker["fed"]) < 40 for worker in workers), "they were resumed"


@pytest.mark.parametrize("options", FORMS)
def test_a_stopped_run_resumes_exactly(start: Start, store: Served, tmp_path: Path, options: dict[str, object]) -> None:
    """When both groups stop, the second one is ahead: it is waiting for an average to which the first one has not
    contributed yet.
    """
    whole_run = groups_of(start, store, 1, 1, inner_steps=4, **options)
    expected = results(tmp_path, *whole_run.start_all(PROGRAM, tmp_path, 26, 0))
    (tmp_path / "0").unlink()
    again = serve_in_a_process()
    try:
        checkpoints = {"TORCHYARD_CHECKPOINTS": str(tmp_path / "checkpoints"), "TORCHYARD_RUN_DIR": str(tmp_path)}
        groups = groups_of(start, again, 1, 1, inner_steps=4, **options)
        processes = [
            groups.start(0, PROGRAM, tmp_path, 26, 0, **checkpoints, HOLD="9"),
            groups.start(1, PROGRAM, tmp_path, 26, 0, **checkpoints),
        ]
        ahead = 11 if options else 12
        wait_for(lambda: (done(tmp_path, 0), done(tmp_path, 1)) == (9, ahead), "the groups train", *processes)
        for process in processes:
            os.kill(process.pid, signal.SIGTERM)
        assert all("a checkpoint is saved" in output for output in outputs_of(*processes))
    finally:
        again.end()
    assert (done(tmp_path, 0), done(tmp_path, 1)) == (9, ahead)
    last = serve_in_a_process()
    try:
        groups = groups_of(start, last, 1, 1, inner_steps=4, **options)
        workers = results(tmp_path, *groups.start_all(PROGRAM, tmp_path, 26, 0, **checkpoints))
    finally:
        last.end()
    for worker, whole in zip(workers, expected, strict=True):
        assert 0 < len(worker["fed"]) < 26, "it was resumed"
        # The first entry was recorded before the checkpoint was loaded, so it is left out.
        assert worker["before"][1:] == whole["before"][-len(worker["before"]) :][1:]
        assert worker["after"] == whole["after"]


def test_groups_of_several_workers_resume_in_mid_round_with_the_samples_of_all_ranks(
    start: Start, store: Served, tmp_path: Path
) -> None:
    batches = (4, 2, 3)
    whole_run = groups_of(start, store, 2, 1, inner_steps=4)
    expected = results(tmp_path, *whole_run.start_all(PROGRAM, tmp_path, 17, 0, *batches))
    for rank in range(3):
        (tmp_path / str(rank)).unlink()
    checkpoints = {"TORCHYARD_CHECKPOINTS": str(tmp_path / "checkpoints"), "TORCHYARD_RUN_DIR": str(tmp_path)}
    for steps in (10, 17):
        again = serve_in_a_process()
        try:
            groups = groups_of(start, again, 2, 1, inner_steps=4)
            processes = groups.start_all(PROGRAM, tmp_path, 17, 0, *batches, **checkpoints, HOLD="10")
            if steps == 10:
                wait_for(lambda: [done(tmp_path, rank) for rank in range(3)] == [10] * 3, "they train", *processes)
                for process in processes:
                    os.kill(process.pid, signal.SIGTERM)
                outputs_of(*processes)
            else:
                workers = results(tmp_path, *processes)
        finally:
            again.end()
    for worker, whole in zip(workers, expected, strict=True):
        assert len(worker["fed"]) == 7
        # Leaves out the buffers: a group resumes with those of its first rank, and other ranks had different ones.
        assert [step[:-3] for step in worker["before"][1:]] == [step[:-3] for step in whole["before"][-6:]]
        assert worker["after"][:-3] == whole["after"][:-3]


@pytest.mark.parametrize(
    ("sizes", "options", "stopped_groups"),
    [
        pytest.param((1, 1, 1), {"inner_steps": 6}, (0, 1, None), id="more groups and steps per round"),
        pytest.param((1,), {"inner_steps": 3}, (0,), id="one group", marks=pytest.mark.proof),
        pytest.param((2, 1), {"inner_steps": 4}, (0, 0, None), id="groups of unequal size", marks=pytest.mark.proof),
    ],
)
def test_a_stopped_run_resumes_with_other_groups_and_rounds(
    start: Start,
    store: Served,
    tmp_path: Path,
    sizes: tuple[int, ...],
    options: dict[str, object],
    stopped_groups: tuple[int | None, ...],
) -> None:
    checkpoints = {"TORCHYARD_CHECKPOINTS": str(tmp_path / "checkpoints"), "TORCHYARD_RUN_DIR": str(tmp_path)}
    processes = groups_of(start, store, 1, 1, inner_steps=4).start_all(PROGRAM, tmp_path, 30, 0.05, **checkpoints)
    wait_for(lambda: done(tmp_path, 0) >= 10, "the groups train", *processes)
    for process in processes:
        os.kill(process.pid, signal.SIGTERM)
    outputs_of(*processes)
    stopped_at = [done(tmp_path, group) for group in range(2)]
    again = serve_in_a_process()
    try:
        groups = groups_of(start, again, *sizes, **options)
        workers = results(tmp_path, *groups.start_all(PROGRAM, tmp_path, 30, 0, **checkpoints))
    finally:
        again.end()
    # The signal may reach one group a step before the other, so each group resumes at the step at which it was stopped.
    # A group whose first rank did not take part in the stopped run starts from the beginning.
    expected = [30 if group is None else 30 - stopped_at[group] for group in stopped_groups]
    assert [len(worker["fed"]) for worker in workers] == expected
    parameters = [worker["after"][:-3] for worker in workers]  # Leaves out the buffers, which differ.
    assert parameters == [parameters[0]] * len(workers)
    # The first entry was recorded before the checkpoint was loaded, so the second one is compared.
    assert len({tuple(worker["before"][1][:-3]) for worker in workers}) <= len(sizes)


def test_a_group_that_returns_with_another_model_is_refused(start: Start, store: Served, tmp_path: Path) -> None:
    groups = groups_of(start, store, 1, 1, inner_steps=4)
    processes = groups.start_all(PROGRAM, tmp_path, 60, 0.05)
    wait_for(lambda: done(tmp_path, 1) >= 6, "the groups train", *processes)
    os.kill(processes[1].pid, signal.SIGKILL)
    processes[1].wait()
    other = tmp_path / "other.py"
    other.write_text(
        PROGRAM.read_text().replace("torch.zeros(3, dtype", "torch.zeros(5, dtype").replace(".mean(dim=0)", ".mean()")
    )
    returned = groups.start(1, other, tmp_path, 60, 0.05, generation=1)
    output, _ = returned.communicate(timeout=60)
    assert returned.returncode != 0
    assert "worker-1's model differs from the chief's: `mean` is 5 float64, a buffer here and 3 float64" in output
    (result,) = results(tmp_path, processes[0])
    assert len(result["fed"]) == 60
