"""Tests of servers and workers that run as real processes with a keeper's environment, and of replacing lost ones."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from tests.roles import join_stores
from tests.roles.processes import DEADLINE_S, Keeper, Start, free_port, output_of, wait_for
from tests.waiting import wait_until
from torchyard_roles.checkpoints import checkpoint_files
from torchyard_roles.environment import read
from torchyard_roles.exchange import tensor_connection
from torchyard_roles.strategies.parameter_server import server_process
from torchyard_roles.strategies.reduction_server import reducer

pytestmark = pytest.mark.train

PROGRAM = Path(__file__).parents[2] / "programs" / "served.py"
RESUMABLE = Path(__file__).parents[2] / "programs" / "resuming" / "resumable.py"
PAIRS = Path(__file__).parents[2] / "programs" / "resuming" / "resumable_pairs.py"
KEY = "5a" * 32
BUSY_S = 10.0
"""Additional seconds that workers may need to start and exit, because the machine may be running other tests."""


class Cluster:
    """Builds the environments of the replicas of one run."""

    def __init__(self, folder: Path, strategy: str, workers: int, servers: int, groups: int = 1, **options: object):
        self.workers, self.groups = workers, groups
        places = [[f"ps-{number}", "127.0.0.1", free_port()] for number in range(servers)]
        self._common = {
            "TORCHYARD_STRATEGY": strategy,
            "TORCHYARD_OPTIONS": json.dumps({"kind": strategy, **options}),
            "TORCHYARD_WORLD_SIZE": str(workers),
            "TORCHYARD_GROUPS": str(groups),
            "TORCHYARD_PEERS": json.dumps({"ps": places}),
            "TORCHYARD_KEY": KEY,
            "TORCHYARD_CHECKPOINTS": str(folder),
            "TORCHYARD_RUN_ID": "run-1",
            "CUDA_VISIBLE_DEVICES": "",
        }

    def server(self, number: int, generation: int = 0) -> dict[str, str]:
        return {
            **self._common,
            "TORCHYARD_ROLE": "ps",
            "TORCHYARD_REPLICA": f"ps-{number}",
            "TORCHYARD_GENERATION": str(generation),
        }

    def worker(self, rank: int, generation: int = 0) -> dict[str, str]:
        size = self.workers // self.groups
        group, group_rank = divmod(rank, size)
        return {
            **self._common,
            "TORCHYARD_ROLE": "worker",
            "TORCHYARD_REPLICA": f"worker-{rank}",
            "TORCHYARD_RANK": str(rank),
            "TORCHYARD_GROUP": str(group),
            "TORCHYARD_GROUP_RANK": str(group_rank),
            "TORCHYARD_GROUP_SIZE": str(size),
            "TORCHYARD_GENERATION": str(generation),
        }


@pytest.fixture
def sigterm_as_before() -> Iterator[signal.Handlers]:
    before, threads = signal.getsignal(signal.SIGTERM), torch.get_num_threads()
    assert isinstance(before, signal.Handlers)
    yield before
    signal.signal(signal.SIGTERM, before)
    torch.set_num_threads(threads)


@pytest.fixture
def store() -> Iterator[join_stores.Served]:
    served = join_stores.serve_in_a_process()
    yield served
    served.end()


def read_until(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    seen = []
    for output in process.stdout:
        seen.append(output)
        if line in output:
            return
    raise AssertionError("".join(seen))


def test_servers_end_with_the_trainers_that_all_hold_the_same_and_report_meanwhile(
    start: Start, tmp_path: Path, keeper: Keeper
) -> None:
    cluster = Cluster(tmp_path, "sandblaster", workers=2, servers=2)
    report_to = {"TORCHYARD_REPORT": keeper.listen().address}
    servers = [start(PROGRAM, "1", environment={**cluster.server(number), **report_to}) for number in range(2)]
    workers = [start(PROGRAM, "20", environment=cluster.worker(rank)) for rank in range(2)]
    results = [json.loads(output_of(worker).splitlines()[-1]) for worker in workers]
    assert results[0]["norm"] == results[1]["norm"]
    for server in servers:
        output_of(server)  # The server has exited by itself with exit code 0.
    reports = keeper.received()
    last = {replica: metrics for replica, _, metrics in reports}
    assert last.keys() == {"ps-0", "ps-1"}
    for metrics in last.values():
        assert (metrics["version"], metrics["clients"], metrics["dropped"], metrics["skipped"]) == (20, 0, 0, 0)
        assert metrics["staleness"] == 0
        assert metrics["wait_s"] >= 0
        assert "step" not in metrics  # Only trainers report the step that a run has reached.
    assert all(any(metrics["bytes_s"] > 0 for name, _, metrics in reports if name == replica) for replica in last)


def test_a_killed_server_is_named_by_every_worker_of_a_synchronous_run(start: Start, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "sandblaster", workers=2, servers=2)
    servers = [start(PROGRAM, "1", environment=cluster.server(number)) for number in range(2)]
    workers = [start(PROGRAM, "1000", "0.02", environment=cluster.worker(rank)) for rank in range(2)]
    for worker in workers:
        read_until(worker, "step 3")
    servers[1].kill()
    killed_at = time.monotonic()
    for worker in workers:
        output, _ = worker.communicate(timeout=DEADLINE_S)
        assert worker.returncode == 1
        assert "ps-1 on 127.0.0.1 is gone" in output
    assert time.monotonic() - killed_at < 10 + BUSY_S
    servers[0].send_signal(signal.SIGTERM)
    assert servers[0].wait(timeout=DEADLINE_S) == 0


class Relay:
    """A proxy between a worker and its server. It keeps the worker's connection open when the server is lost."""

    def __init__(self, address: str, port: int) -> None:
        self._to = (address, port)
        self._sockets = [tensor_connection.listen("127.0.0.1", 0)]
        self.port = self._sockets[0].getsockname()[1]
        self._threads = [threading.Thread(target=self._serve, daemon=True)]
        self._threads[0].start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                caller, _ = self._sockets[0].accept()
                try:
                    server = socket.create_connection(self._to)
                except OSError:  # The worker retries until the server is listening.
                    caller.close()
                    continue
                self._sockets += [caller, server]
                for pair in ((caller, server), (server, caller)):
                    self._threads.append(threading.Thread(target=self._copy, args=pair, daemon=True))
                    self._threads[-1].start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)

    def close(self) -> None:
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(10)


def test_a_worker_that_has_not_noticed_a_lost_server_gets_its_name_and_not_a_workers(
    start: Start, tmp_path: Path
) -> None:
    cluster = Cluster(tmp_path, "sandblaster", workers=2, servers=2)
    servers = [start(PROGRAM, "1", environment=cluster.server(number)) for number in range(2)]
    first, (name, address, port) = json.loads(cluster.worker(1)["TORCHYARD_PEERS"])["ps"]
    relay = Relay(address, port)
    try:
        unknowing = {**cluster.worker(1), "TORCHYARD_PEERS": json.dumps({"ps": [first, [name, address, relay.port]]})}
        workers = [start(PROGRAM, "1000", "0.02", environment=each) for each in (cluster.worker(0), unknowing)]
        for worker in workers:
            read_until(worker, "step 3")
        servers[1].kill()
        for worker in workers:
            output, _ = worker.communicate(timeout=DEADLINE_S)
            assert worker.returncode == 1
            assert "ps-1 on 127.0.0.1 is gone" in output
            assert "worker-0 on 127.0.0.1 is gone" not in output
    finally:
        relay.close()
    servers[0].send_signal(signal.SIGTERM)
    assert servers[0].wait(timeout=DEADLINE_S) == 0


def test_a_killed_server_of_an_asynchronous_run_comes_back_and_the_workers_go_on(start: Start, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "downpour", workers=2, servers=1, groups=2, checkpoint_every_s=0.3)
    server = start(PROGRAM, "1", environment=cluster.server(0))
    back = tmp_path / "back"
    workers = [start(PROGRAM, "30", "0.02", "12", back, environment=cluster.worker(rank)) for rank in range(2)]
    wait_until((tmp_path / "parts" / "ps-0" / "newest.pt").exists)
    for worker in workers:
        read_until(worker, "step 12")
    server.kill()
    server.wait(DEADLINE_S)  # Until the killed server has exited, it may hold the port.
    again = start(PROGRAM, "1", environment=cluster.server(0, generation=1))
    back.touch()
    for worker in workers:
        output = output_of(worker)
        assert "has lost ps-0" in output
        assert "is connected to ps-0 again" in output
        assert json.loads(output.splitlines()[-1])["loss"] < 1.0
    assert "ps-0 resumes at version" in output_of(again)


def test_a_killed_worker_group_starts_again_and_takes_up_the_servers_parameters(start: Start, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "downpour", workers=2, servers=1, groups=2, checkpoint_every_s=0.1)
    server = start(PROGRAM, "1", environment=cluster.server(0))
    killed, back = tmp_path / "killed", tmp_path / "back"
    chief = start(PROGRAM, "20", "0.02", "5", killed, environment=cluster.worker(0))
    other = start(PROGRAM, "60", "0.04", "20", back, environment=cluster.worker(1))
    read_until(chief, "step 5")
    chief.kill()
    read_until(other, "step 20")  # The other group trains on.
    back.touch()
    chief = start(PROGRAM, "20", "0.02", environment=cluster.worker(0, generation=1))
    assert json.loads(output_of(chief).splitlines()[-1])["loss"] < 1.0
    output_of(other)
    output_of(server)
    # The last checkpoint also contains the slower group's pushes after the chief's last step.
    last = checkpoint_files.complete(tmp_path)[0]
    assert last.about["final"]
    (held,) = checkpoint_files.load(tmp_path / "parts" / "ps-0" / "newest.pt")["chunks"].values()
    model = last.load("model.pt")
    assert torch.equal(held["parameters"], torch.cat([model["weight"].reshape(-1), model["bias"]]))


def test_what_the_chief_has_done_is_saved_before_it_waits_for_slower_groups(start: Start, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "downpour", workers=2, servers=1, groups=2, checkpoint_every_s=600)
    server = start(PROGRAM, "1", environment=cluster.server(0))
    other = start(PROGRAM, "1000", "0.05", environment=cluster.worker(1))
    chief = start(PROGRAM, "5", environment=cluster.worker(0))
    wait_for(lambda: bool(checkpoint_files.complete(tmp_path)), "a checkpoint", chief)
    (saved,) = checkpoint_files.complete(tmp_path)
    assert (saved.step, saved.about["final"]) == (5, False)
    for process in (chief, other, server):
        process.kill()


def losses(folder: Path, rank: int = 0) -> dict[str, str]:
    """Returns the last complete line about each step, by step."""
    lines = (folder / f"losses.{rank}").read_text().splitlines()
    return {line.split()[0]: line for line in lines if line.count(" ") == 3}


def test_a_killed_run_goes_on_from_its_checkpoint_with_the_losses_of_one_that_was_not(
    start: Start, tmp_path: Path
) -> None:
    def launch(name: str, pause_s: float, generation: int = 0) -> list[subprocess.Popen[str]]:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        run = Cluster(folder / "checkpoints", "sandblaster", workers=1, servers=2, checkpoint_every_s=0.05)
        arguments = (RESUMABLE, folder, "3", str(pause_s))
        servers = [start(*arguments, environment=run.server(number, generation)) for number in range(2)]
        return [*servers, start(*arguments, environment=run.worker(0, generation))]

    whole = launch("whole", 0)
    killed = launch("killed", 0.02)
    wait_until(lambda: len(checkpoint_files.complete(tmp_path / "killed" / "checkpoints")) >= 3)
    for process in reversed(killed):
        process.kill()
        process.wait(DEADLINE_S)
    again = launch("killed", 0, generation=1)
    for process in (*whole, *again[:2]):
        output_of(process)
    output = output_of(again[2])
    assert "torchyard: resumed from" in output
    assert "has no part" not in output
    assert losses(tmp_path / "killed") == losses(tmp_path / "whole")
    assert len(losses(tmp_path / "whole")) == 3 * 15


@pytest.mark.parametrize(("workers", "how"), [(1, "calls"), (2, "lists"), (2, "calls")])
def test_two_pairs_that_take_turns_go_on_exactly(
    start: Start, tmp_path: Path, store: join_stores.Served, workers: int, how: str
) -> None:
    def launch(name: str, pause_s: float, generation: int = 0) -> list[subprocess.Popen[str]]:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        every_s = 0.05 if name == "killed" else 600
        run = Cluster(folder / "checkpoints", "sandblaster", workers, servers=2, checkpoint_every_s=every_s)
        arguments = (PAIRS, folder, "3", str(pause_s), how)
        met = {"TORCHYARD_STORE": store.address, "TORCHYARD_KEY": join_stores.KEY.hex(), "TORCHYARD_GANG": name}
        environments = [run.server(number, generation) for number in range(2)]
        environments += [run.worker(rank, generation) for rank in range(workers)]
        return [start(*arguments, environment={**each, **met}) for each in environments]

    for process in launch("whole", 0):
        output_of(process)
    killed = launch("killed", 0.02)
    wait_until(lambda: any(each.step >= 4 for each in checkpoint_files.complete(tmp_path / "killed" / "checkpoints")))
    for process in reversed(killed):
        process.kill()
        process.wait(DEADLINE_S)
    outputs = [output_of(process) for process in launch("killed", 0, generation=1)]
    assert "torchyard: resumed from" in outputs[2]
    assert not any("has no part" in output or "saved no part" in output for output in outputs)
    for rank in range(workers):
        whole = losses(tmp_path / "whole", rank)
        assert losses(tmp_path / "killed", rank) == whole
        assert len(whole) == 3 * (15 if workers == 1 else 8)


@pytest.mark.parametrize("killed", [0, 1], ids=["the chief's group", "another group"])
def test_a_group_that_is_started_again_takes_the_servers_parameters_of_all_pairs(
    start: Start, tmp_path: Path, store: join_stores.Served, killed: int
) -> None:
    """The servers' values are newer than the checkpoint. The difference must not count as a change by the script."""
    run = Cluster(tmp_path / "checkpoints", "downpour", workers=2, servers=1, groups=2, checkpoint_every_s=0.05)

    def launch(environment: dict[str, str], pause_s: float) -> subprocess.Popen[str]:
        met = {"TORCHYARD_STORE": store.address, "TORCHYARD_KEY": join_stores.KEY.hex()}
        met["TORCHYARD_GANG"] = environment["TORCHYARD_REPLICA"]
        return start(PAIRS, tmp_path, "8", str(pause_s), "calls", environment={**environment, **met})

    server = launch(run.server(0), 0)
    workers = [launch(run.worker(rank), 0.1) for rank in range(2)]
    root = tmp_path / "checkpoints"
    wait_until(lambda: checkpoint_files.steps(root) and checkpoint_files.part_steps(root, f"worker-{killed}.0"))
    saved = checkpoint_files.part_steps(root, f"worker-{killed}.0")[0]
    wait_until(lambda: max(map(int, losses(tmp_path, killed)), default=0) >= saved + 4)
    workers[killed].kill()
    workers[killed].wait(DEADLINE_S)
    workers[killed] = launch(run.worker(killed, generation=1), 0)
    for process in (*workers, server):
        output_of(process)
    assert set(losses(tmp_path, killed)) == {str(step) for step in range(1, 8 * 8 + 1)}


def test_a_server_that_is_not_in_its_run_ends_with_a_message(start: Start, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "sandblaster", workers=1, servers=1)
    process = start(PROGRAM, "1", environment=cluster.server(3))
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert "ps-3 has nothing to serve" in output


@pytest.mark.parametrize("role", ["ps", "reducer"])
def test_a_server_that_ends_ignores_sigterm(role: str, tmp_path: Path, sigterm_as_before: signal.Handlers) -> None:
    """A keeper may send SIGTERM just when a server exits by itself after a successful run.

    The signal must still be ignored during the interpreter's shutdown. A Python handler would be removed by the
    shutdown, and the signal would then kill a server that had succeeded.
    """
    cluster = Cluster(tmp_path, "sandblaster" if role == "ps" else "reduction_server", workers=4, servers=4)
    peers = {role: json.loads(cluster.server(0)["TORCHYARD_PEERS"])["ps"]}
    of_its_own = {"TORCHYARD_ROLE": role, "TORCHYARD_REPLICA": "ps-0", "TORCHYARD_PEERS": json.dumps(peers)}
    environment = read({**cluster.server(0), **of_its_own})

    def end_it() -> None:
        wait_until(lambda: signal.getsignal(signal.SIGTERM) != sigterm_as_before)
        os.kill(os.getpid(), signal.SIGTERM)

    ending = threading.Thread(target=end_it, daemon=True)
    ending.start()
    (server_process if role == "ps" else reducer).serve(environment)
    ending.join()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
