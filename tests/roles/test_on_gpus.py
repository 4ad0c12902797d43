"""Tests that training on GPUs gives the same results as training on the CPU, under every strategy.

The tests need a GPU that torch can use.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.roles import join_stores
from tests.roles.checkpointed import Gang
from tests.roles.checkpoints.test_resume import killed_somewhere_and_resumed, uninterrupted
from tests.roles.on_gpus import GPU_MARKS, Interpreters, interpreters
from tests.roles.processes import DEADLINE_S, Start, free_port, output_of, trainer_environment
from tests.roles.strategies import test_own_strategy
from tests.roles.strategies.hogwild.test_strategy import Groups, last_line
from tests.roles.strategies.parameter_server.served_run import Run, descend, difference
from tests.roles.strategies.parameter_server.test_sandblaster import batches, momentum, network
from tests.roles.strategies.parameter_server.test_server_process import Cluster
from tests.roles.strategies.reduction_server.reduction_runs import PROGRAMS, Runs, digests
from tests.roles.strategies.test_step_times import check_sums
from torchyard_roles.exchange.chunk_staging import Staging
from torchyard_roles.exchange.parameter_layout import Layout
from torchyard_roles.exchange.tensor_connection import Peer, listen
from torchyard_roles.strategies.reduction_server.hierarchical_reduction import HierarchicalReduction, LocalGroups
from torchyard_roles.strategies.reduction_server.reducer import Reducer
from torchyard_roles.strategies.reduction_server.reducer_client import ReduceClient

pytestmark = GPU_MARKS

DEVICE = torch.device("cuda", 0)


@pytest.fixture
def gpu_processes() -> Iterator[Interpreters]:
    with interpreters() as found:
        yield found


@pytest.fixture
def start(gpu_processes: Interpreters) -> Start:
    return gpu_processes.start


@pytest.fixture
def runs(gpu_processes: Interpreters) -> Runs:
    return Runs(gpu_processes)


@pytest.fixture
def store() -> Iterator[join_stores.Served]:
    served = join_stores.serve_in_a_process()
    yield served
    served.end()


EXCHANGES = pytest.mark.parametrize(
    ("ranks", "reducers"),
    [((1, 1), 0), ((1, 1, 1), 3), ((1, 1, 1), 1), ((1, 2, 1), 3)],
    ids=["nccl alone", "reducers", "mixed", "reducers after nccl in a host"],
)


@EXCHANGES
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-5)])
def test_300_steps_over_nccl_or_reducers_equal_one_gpu_on_the_whole_batch(
    runs: Runs, ranks: tuple[int, ...], reducers: int, dtype: str, tolerance: float
) -> None:
    """In single precision, training also uses clipping by the norm and a learning-rate schedule."""
    topology = runs.topology(len(ranks), reducers, ranks=ranks)
    chief, *_ = topology.outputs("large_batch.py", dtype, *["clip"] * (dtype == "float32"))
    result = json.loads(chief.splitlines()[-1])
    assert result["world_size"] == sum(ranks)
    assert result["difference"] <= tolerance
    assert [output_of(reducer) for reducer in topology.reducers] == [""] * reducers


@EXCHANGES
def test_every_kind_of_parameter_is_the_same_on_all_ranks(runs: Runs, ranks: tuple[int, ...], reducers: int) -> None:
    """The model has shared, frozen, unused and rarely used parameters; training uses autocast and skips a step."""
    for arguments, skipped in ((["amp=1"], 0), (["nan=2"], 1)):
        outputs = runs.topology(len(ranks), reducers, ranks=ranks, on_nan="skip").outputs("reduced.py", *arguments)
        assert len(set(digests(outputs[0]))) == 6
        for output in outputs:
            assert digests(output) == digests(outputs[0])
            assert json.loads(output.splitlines()[-1])["statistics"].get("skipped", 0) == skipped


@EXCHANGES
def test_a_step_with_nan_ends_all_one_step_later(runs: Runs, ranks: tuple[int, ...], reducers: int) -> None:
    """On a GPU, the rank does not wait until a step's gradients are checked, so the step with NaN is still made."""
    for worker in runs.topology(len(ranks), reducers, ranks=ranks, on_nan="fail").train("reduced.py", "nan=2"):
        output, _ = worker.communicate(timeout=DEADLINE_S)
        assert worker.returncode == 1
        assert "The gradients of step 3 are NaN or infinite" in output
        assert len(digests(output)) == 3


def check_scaled(outputs: list[str]) -> None:
    found = [json.loads(output.splitlines()[-1]) for output in outputs]
    for each in found:
        assert each["device"] == "cuda:0"
        assert each["scale"] == each["expected_scale"] == 2.0**11  # The scale has grown twice and was halved once.
        assert each["difference"] < 2e-3, each
        assert each["digest"] == found[0]["digest"]


@EXCHANGES
def test_float16_with_a_gradscaler_learns_what_one_gpu_does_and_all_leave_out_one_step(
    runs: Runs, ranks: tuple[int, ...], reducers: int
) -> None:
    check_scaled(runs.topology(len(ranks), reducers, ranks=ranks).outputs("scaled.py", "1"))


@pytest.mark.parametrize("overflowing", [["0", "1"], ["1"]], ids=["both overflow", "one overflows"])
def test_float16_with_a_gradscaler_through_parameter_servers(
    start: Start, tmp_path: Path, overflowing: list[str]
) -> None:
    """If only one worker's gradients overflow, the step uses the other worker's gradients."""
    cluster = Cluster(tmp_path, "sandblaster", workers=2, servers=2)
    program = PROGRAMS / "scaled.py"
    servers = [start(program, environment=cluster.server(number)) for number in range(2)]
    workers = [start(program, *overflowing, environment=cluster.worker(rank)) for rank in range(2)]
    outputs = [output_of(worker) for worker in workers]
    if len(overflowing) == 2:
        check_scaled(outputs)
    else:
        first, second = (json.loads(output.splitlines()[-1]) for output in outputs)
        assert (first["scale"], second["scale"]) == (2.0**13, 2.0**11)
        assert first["digest"] == second["digest"]
        # The results differ, because the reference makes this step with the gradients of both workers.
        assert first["difference"] < 0.02
    assert [output_of(server) for server in servers] == ["", ""]


@pytest.mark.parametrize(("strategy", "groups"), [("sandblaster", 1), ("downpour", 2)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_worker_on_a_gpu_trains_with_servers_as_one_on_the_cpu(
    strategy: str, groups: int, dtype: torch.dtype
) -> None:
    """The script uses its own CUDA stream, which is not that of the threads that send and receive."""

    def trained(device: torch.device) -> dict[str, torch.Tensor]:
        run = Run(groups, 2, groups, strategy)

        def act(rank: int) -> dict[str, torch.Tensor]:
            with torch.cuda.stream(torch.cuda.Stream(DEVICE)):
                return train(rank)

        def train(rank: int) -> dict[str, torch.Tensor]:
            served = run.worker(rank)
            model = network(dtype).to(device)
            model, optimizer = served.distribute(model, momentum(model), device)
            if rank == 0:  # The other groups take no steps.
                descend(model, optimizer, [(x.to(device), y.to(device)) for x, y in batches(20, 8, dtype)])
            served.finish()
            served.leave()
            return {name: value.cpu() for name, value in model.state_dict().items()}

        with run.serving():
            return run.on_workers(act)[0]

    apart = difference(trained(DEVICE), trained(torch.device("cpu")))
    assert apart < (1e-10 if dtype == torch.float64 else 0.05)


def test_groups_of_hogwild_on_gpus_count_every_update_once(
    start: Start, store: join_stores.Served, tmp_path: Path
) -> None:
    groups = Groups(start, store, 2, 1)
    updates = {0: 60, 1: 60, 2: 35}
    program = PROGRAMS / "counts_updates.py"
    processes = [groups.start(rank, program, tmp_path, count, 0.005) for rank, count in updates.items()]
    results = [last_line(output_of(process)) for process in processes]
    for rank in (0, 1):  # Both ranks belong to the chief's group, which ends last.
        assert results[rank] == {"rank": rank, "least": -95.0, "most": -95.0, "rest": 0.0}


def test_two_ranks_over_nccl_that_were_killed_have_the_losses_of_two_that_were_not(
    start: Start, tmp_path: Path, store: join_stores.Served
) -> None:
    """The model has dropout, whose random numbers are drawn on the GPU."""
    whole = uninterrupted(Gang(start, tmp_path / "whole", 2))
    gang = Gang(start, tmp_path / "killed", 2, store)
    outputs = killed_somewhere_and_resumed(gang, kills=1, seed=2)
    assert all("resumed from" in output for output in outputs[:1])
    for rank in range(2):
        assert gang.losses(rank) == whole[rank]
        assert len(whole[rank]) == 48


def test_a_strategy_of_the_script_s_own_meets_over_nccl(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(test_own_strategy.EXAMPLE))
    port = free_port()
    processes = [start(test_own_strategy.PROGRAM, environment=trainer_environment(rank, 2, port)) for rank in range(2)]
    first, second = (json.loads(output_of(process).splitlines()[-1]) for process in processes)
    _, after = test_own_strategy.alone([first, second])  # The expected result is computed on the CPU.
    assert first["after"] == second["after"]
    assert torch.allclose(torch.tensor(first["after"]), torch.tensor(after), rtol=0, atol=1e-12)


@EXCHANGES
def test_the_times_of_a_step_add_up(runs: Runs, ranks: tuple[int, ...], reducers: int) -> None:
    """Waiting for a slow GPU counts as exchange, unless a reducer measures it."""
    outputs = runs.topology(len(ranks), reducers, ranks=ranks).outputs("timed.py", "12", "1", "0.3")
    found: list[list[dict[str, Any]]] = [json.loads(output.splitlines()[-1]) for output in outputs]
    check_sums(found)
    assert found[1][-1]["compute_s"] > 0.3
    assert all(metrics["exchange_s"] + metrics["wait_s"] > 0 for steps in found for metrics in steps[2:])


def test_a_model_that_takes_no_inputs_trains_too(start: Start) -> None:
    code = """
import torch, torchyard_roles as ty
class Flat(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.row = torch.nn.Parameter(torch.ones(5))
    def forward(self):
        return self.row.sum()
cluster = ty.join()
model = Flat()
model, optimizer = cluster.distribute(model, torch.optim.SGD(model.parameters(), lr=0.5))
model().backward()
optimizer.step()
print(model.row.device, model.row.tolist())
"""
    port = free_port()
    processes = [start("-c", code, environment=trainer_environment(rank, 2, port)) for rank in range(2)]
    assert [output_of(process).splitlines()[-1] for process in processes] == ["cuda:0 [0.5, 0.5, 0.5, 0.5, 0.5]"] * 2


def test_a_bucket_on_a_gpu_goes_through_a_reducer_and_comes_back() -> None:
    key = os.urandom(32)
    listener = listen("127.0.0.1", 0)
    peer = Peer("reducer-0", *listener.getsockname())
    with closing(Reducer(listener, key).start()), closing(ReduceClient([peer], [1.0], key, 0, 1)) as client:
        exchange = HierarchicalReduction(client, LocalGroups([1], 0), DEVICE)
        for step in range(3):
            flats = [torch.full((100_000,), float(step + bucket), device=DEVICE) for bucket in range(4)]
            sent = [flat.mul(2.0) for flat in flats]  # The GPU may still be computing these values.
            futures = [exchange.average(flat, step, bucket) for bucket, flat in enumerate(sent)]
            for future, flat, before in zip(futures, sent, flats, strict=True):
                future.wait()
                assert torch.equal(flat, 2.0 * before)
        assert exchange.failure is None
        exchange.close()


LONG_KERNEL_CYCLES = 2_000_000_000
"""The duration of a kernel in GPU cycles, about a second."""


def test_gradients_leave_a_gpu_and_parameters_come_to_it_in_a_stream_of_their_own() -> None:
    model = torch.nn.Linear(1000, 1000, bias=False).to(DEVICE)
    layout, parameters = Layout.of(model, torch.optim.SGD(model.parameters(), lr=0.1))
    (chunk,) = layout.chunks(1, 4_000_000)
    staging = Staging(parameters, in_place=False)
    gradient = torch.zeros(1000, 1000, device=DEVICE)
    staging.offer([gradient], copied=False)
    torch.cuda.synchronize()

    torch.cuda._sleep(LONG_KERNEL_CYCLES // 10)
    gradient.fill_(3.0)  # This kernel runs after one that is still running, and before the fence.
    staging.fence()
    torch.cuda._sleep(LONG_KERNEL_CYCLES)
    next_step = torch.cuda.Event()
    next_step.record()
    values = staging.gradient(chunk).values
    assert values is not None
    assert bool((values == 3.0).all())
    assert not next_step.query(), "the copy waited for kernels that came after the fence"

    before = parameters[0].detach().clone()
    read = torch.cuda.Event()
    staging.target(chunk).fill_(5.0)
    torch.cuda._sleep(LONG_KERNEL_CYCLES // 10)
    # A kernel of the step is launched before the new parameters are installed.
    seen = parameters[0].detach() * 1.0
    read.record()
    staging.install([chunk])
    assert read.query()
    assert torch.equal(seen, before)
    assert bool((parameters[0] == 5.0).all())
