"""Tests of the graceful stop: after SIGTERM, all ranks save a checkpoint after the same step, and exit with code 0."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.roles import join_stores
from tests.roles.checkpointed import Gang
from tests.roles.processes import DEADLINE_S, Start, free_port, trainer_environment
from tests.waiting import wait_until
from torchyard_roles.checkpoints import checkpoint_files
from torchyard_roles.coordination.graceful_stop import ECHO_S
from torchyard_roles.coordination.join_store_client import JoinStore

pytestmark = pytest.mark.train


@pytest.fixture
def store() -> Iterator[join_stores.Served]:
    served = join_stores.serve_in_a_process()
    yield served
    served.end()


def stopped_after(output: str) -> int:
    found = re.search(r"torchyard: stopped after step (\d+); a checkpoint is saved\.", output)
    assert found is not None, output
    return int(found[1])


@pytest.mark.parametrize("signalled", ["all of them", "one of them"])
def test_three_ranks_some_blocked_in_a_collective_leave_after_the_same_step_with_0(
    start: Start, tmp_path: Path, store: join_stores.Served, signalled: str
) -> None:
    gang = Gang(start, tmp_path, 3, store)
    gang.launch(1000, 0, every_s=600)
    gang.wait_for(lambda: len(gang.losses(2)) > 5, "the first steps")
    (tmp_path / "slow.1").touch()  # Meanwhile, ranks 0 and 2 wait for rank 1 in the all-reduce of each step.
    done = len(gang.losses(1))
    gang.wait_for(lambda: len(gang.losses(1)) > done + 1, "a slow step")
    if signalled == "all of them":
        gang.stop()
    else:
        gang.processes[2].send_signal(signal.SIGTERM)
    ended = gang.ended()
    assert [code for code, _ in ended] == [0, 0, 0], ended
    (step,) = {stopped_after(output) for _, output in ended}
    assert checkpoint_files.complete(gang.checkpoints)[0].step == step
    assert [max(gang.losses(rank)) for rank in range(3)] == [step] * 3
    for rank in range(3):
        assert checkpoint_files.part_steps(gang.checkpoints, f"worker-{rank}.0")[0] == step


def test_a_process_alone_with_workers_of_its_loader_saves_and_leaves_with_0(start: Start, tmp_path: Path) -> None:
    program = tmp_path / "loads.py"
    program.write_text(
        "import pathlib, sys, torch, torchyard_roles as ty\n"
        "cluster = ty.join()\n"
        "model = torch.nn.Linear(1, 1)\n"
        "model, optimizer = cluster.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))\n"
        "loader = cluster.loader(torch.ones(64, 1), batch_size=1, shuffle=True, num_workers=2)\n"
        "for _ in range(100000):\n"
        "    for batch in loader:\n"
        "        model(batch).sum().backward()\n"
        "        optimizer.step()\n"
        "        pathlib.Path(sys.argv[1], 'steps').touch()\n"
    )
    gang = Gang(start, tmp_path, 1)
    environment = gang.environment(0, free_port(), 600)
    process = start(
        "-c",
        # Like the ranks of a keeper, the process has its own session. The keeper sends SIGTERM to the whole process
        # group.
        f"import os, sys; os.setsid(); os.execv(sys.executable, [sys.executable, {str(program)!r}, {str(tmp_path)!r}])",
        environment=environment,
    )
    gang.processes = [process]
    gang.wait_for((tmp_path / "steps").exists, "a step")
    os.killpg(process.pid, signal.SIGTERM)
    ((code, output),) = gang.ended()
    assert code == 0, output
    assert checkpoint_files.complete(gang.checkpoints)[0].step == stopped_after(output)


def test_a_sigterm_that_arrives_after_the_stop_does_not_interrupt_the_exit() -> None:
    # Another rank may request the stop earlier than the keeper of this rank's host.
    program = """
import os, signal, time
from torchyard_roles.coordination.graceful_stop import GracefulStop

stop = GracefulStop(None, "trainers", 0, 0, 1)
assert stop.install(0)
os.kill(os.getpid(), signal.SIGTERM)
step = 0
while stop.may_begin(step):
    step += 1
    time.sleep(0.01)
stop.uninstall()
os.kill(os.getpid(), signal.SIGTERM)
print("left")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "left\n"), done.stderr


def test_a_second_sigterm_ends_a_step_that_takes_too_long_at_once(start: Start, tmp_path: Path) -> None:
    program = tmp_path / "endless.py"
    program.write_text(
        "import time, torch, torchyard_roles as ty\n"
        "cluster = ty.join()\n"
        "model = torch.nn.Linear(1, 1)\n"
        "model, optimizer = cluster.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))\n"
        "model(torch.ones(1, 1)).sum().backward()\n"
        "print('in a step', flush=True)\n"
        "time.sleep(600)\n"
        "optimizer.step()\n"
    )
    gang = Gang(start, tmp_path, 1)
    gang.launch(program=program)
    (process,) = gang.processes
    assert process.stdout is not None
    assert process.stdout.readline() == "in a step\n"
    gang.stop()
    time.sleep(ECHO_S + 0.1)
    assert process.poll() is None

    # On a busy machine, the rank may take the second signal for an echo of the first one, so the signal is repeated.
    def stop_again(_: float) -> None:
        gang.stop()
        time.sleep(ECHO_S + 0.1)

    wait_until(lambda: process.poll() is not None, pause=stop_again)
    ((code, output),) = gang.ended()
    assert code == 128 + signal.SIGTERM
    assert "torchyard: ended by a second SIGTERM, without saving" in output


def test_under_plain_torchrun_sigterm_ends_a_rank_as_ever(start: Start, tmp_path: Path) -> None:
    environment = trainer_environment(0, 1, free_port())
    for name in [name for name in environment if name.startswith("TORCHYARD_")]:
        del environment[name]
    process = start(
        "-c",
        "import time, torch, torchyard_roles as ty\n"
        "cluster = ty.join()\n"
        "model = torch.nn.Linear(1, 1)\n"
        "cluster.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n",
        environment=environment,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_S) == -signal.SIGTERM


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_sigterm_that_is_no_stop_ends_one_rank_and_asks_no_others(
    start: Start, tmp_path: Path, store: join_stores.Served, is_stopped: bool
) -> None:
    """A keeper that has lost the primary ends its ranks by SIGTERM, but does not create the stop file.

    The join store may be reachable again at that time.
    """
    gang = Gang(start, tmp_path, 2, store)
    gang.stop_file = tmp_path / "stop"
    gang.launch(1000, 0, every_s=600)
    gang.wait_for(lambda: len(gang.losses(1)) > 2, "the first steps")
    if is_stopped:
        gang.stop_file.touch()
    gang.processes[1].send_signal(signal.SIGTERM)
    output, _ = gang.processes[1].communicate(timeout=DEADLINE_S)
    assert gang.processes[1].returncode == (0 if is_stopped else 128 + signal.SIGTERM), output
    assert ("ended by SIGTERM without saving: the run was not stopped" in output) != is_stopped
    other = JoinStore.connect(store.address, join_stores.KEY, "worker-0", 0)
    assert (other.try_get("stop/trainers/0/asked") is not None) == is_stopped
    other.close()


def test_a_process_alone_saves_after_a_sigterm_that_is_no_stop_and_has_not_succeeded(
    start: Start, tmp_path: Path
) -> None:
    gang = Gang(start, tmp_path, 1)
    gang.stop_file = tmp_path / "stop"
    gang.launch(100_000, 0, every_s=600)
    gang.wait_for(lambda: len(gang.losses()) > 2, "the first steps")
    gang.stop()
    ((code, output),) = gang.ended()
    assert code == 128 + signal.SIGTERM
    assert checkpoint_files.complete(gang.checkpoints)[0].step == stopped_after(output)


@pytest.mark.parametrize("first", [0, 1])
def test_a_stop_waits_for_no_rank_that_has_come_to_its_end(start: Start, store: join_stores.Served, first: int) -> None:
    """A rank that has finished its steps, such as a chief that saves its last checkpoint, takes no part in a stop."""
    process = start("-c", ONE_HAS_LEFT, store.address, join_stores.KEY.hex(), str(first))
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, output
    assert output == "leaves after step 4\n"


def test_a_process_whose_peers_have_stopped_waits_a_moment_for_its_own_request(start: Start) -> None:
    process = start("-c", IS_ASKED_LAST)
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, output
    assert output == "leaves after step 3\n"


IS_ASKED_LAST = """
import os, signal, threading
from torchyard_roles.coordination.graceful_stop import GracefulStop

stop = GracefulStop(None, "gang", 0, 0, 1)
stop.install(3)
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
stop.wait_for_request()
if not stop.may_begin(3):
    print("leaves after step 3", flush=True)
os._exit(0)
"""
ONE_HAS_LEFT = """
import os, signal, sys, time
from torchyard_roles.coordination.graceful_stop import GracefulStop
from torchyard_roles.coordination.join_store_client import JoinStore

address, key, first = sys.argv[1], bytes.fromhex(sys.argv[2]), int(sys.argv[3])
ranks = [GracefulStop(JoinStore.connect(address, key, f"worker-{rank}"), "gang", 0, rank, 2) for rank in range(2)]
ranks[first].install(3)
ranks[first].may_begin(3)
ranks[first].uninstall()
other = ranks[1 - first]
other.install(4)
os.kill(os.getpid(), signal.SIGTERM)
while other.may_begin(4, begin=False):
    time.sleep(0.01)
print("leaves after step 4", flush=True)
os._exit(0)
"""
