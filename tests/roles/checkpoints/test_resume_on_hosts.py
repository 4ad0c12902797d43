"""Tests of resuming on hosts that share neither a folder nor a torch process group: each trainer restores its part of
the state.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch

from tests.roles import join_stores
from tests.roles.processes import DEADLINE_S, Start, free_port, output_of
from tests.roles.strategies.hogwild.test_strategy import Groups
from tests.roles.strategies.parameter_server.test_server_process import RESUMABLE, Cluster
from tests.waiting import wait_until
from torchyard_roles.checkpoints import checkpoint_files, group_broadcast, restore
from torchyard_roles.coordination.join_store_client import JoinStore

pytestmark = pytest.mark.train
EPOCHS = 3


@pytest.fixture
def store() -> Iterator[join_stores.Served]:
    served = join_stores.serve_in_a_process()
    yield served
    served.end()


class Hosts:
    """A server and two workers, each with its own folder."""

    def __init__(self, start: Start, folder: Path, store: join_stores.Served, strategy: str, groups: int) -> None:
        self.folder = folder
        self._start = start
        servers = 1 if strategy != "hogwild" else 0
        self._cluster = Cluster(folder, strategy, 2, servers, groups, checkpoint_every_s=0.1)
        self._more = {"TORCHYARD_STORE": store.address, "TORCHYARD_KEY": join_stores.KEY.hex()}
        if not servers:
            trainers = [[f"worker-{number}", "127.0.0.1", free_port(), 1, number] for number in range(2)]
            self._more["TORCHYARD_PEERS"] = json.dumps({"trainers": trainers})

    def checkpoints(self, replica: str) -> Path:
        return self.folder / replica / "checkpoints"

    def start(self, replica: str, step_s: float, generation: int = 0) -> subprocess.Popen[str]:
        role, number = replica.split("-")
        place = self._cluster.server if role == "ps" else self._cluster.worker
        environment = {
            **place(int(number), generation),
            **self._more,
            "TORCHYARD_GANG": replica,
            "TORCHYARD_CHECKPOINTS": str(self.checkpoints(replica)),
        }
        self.checkpoints(replica).mkdir(parents=True, exist_ok=True)
        return self._start(RESUMABLE, self.folder / replica, str(EPOCHS), str(step_s), environment=environment)

    def steps(self, replica: str) -> list[int]:
        """Returns all steps in order. Asserts that each step had the learning rate that the schedule prescribes."""
        (log,) = (self.folder / replica).glob("losses.*")
        lines = [line.split() for line in log.read_text().splitlines() if line.count(" ") == 3]
        for step, epoch, _, rate in lines:
            assert float(rate) == pytest.approx(0.01 * 0.9 ** (int(step) // 7) * 0.8 ** int(epoch)), (replica, step)
        return [int(step) for step, *_ in lines]


@pytest.mark.parametrize("lost", ["nothing", "its part"])
def test_a_worker_goes_on_with_its_scheduler_though_it_sees_no_folder_of_the_chief_s(
    start: Start, tmp_path: Path, store: join_stores.Served, lost: str
) -> None:
    hosts = Hosts(start, tmp_path, store, "sandblaster", groups=1)
    names = ("ps-0", "worker-0", "worker-1")
    processes = [hosts.start(name, 0.05) for name in names]
    wait_until(lambda: max(checkpoint_files.steps(hosts.checkpoints("worker-0")), default=0) > 8)
    for process in processes:
        process.kill()
        process.wait(DEADLINE_S)
    saved = checkpoint_files.steps(hosts.checkpoints("worker-0"))[0]
    if lost != "nothing":
        shutil.rmtree(hosts.checkpoints("worker-1"))
    before = len(hosts.steps("worker-1"))
    processes = [hosts.start(name, 0, generation=1) for name in names]
    outputs = [output_of(process) for process in processes]
    assert f": {saved} steps" in outputs[1]
    assert ("worker-1.0 has saved no part" in outputs[2]) == (lost != "nothing")
    assert hosts.steps("worker-1")[before:] == list(range(saved + 1, EPOCHS * 8 + 1))


@pytest.mark.parametrize(
    ("strategy", "others", "spoilt"),
    [("downpour", ["ps-0", "worker-0"], True), ("hogwild", ["worker-0"], False)],
)
def test_a_group_that_starts_again_alone_goes_on_with_its_own_scheduler_and_optimizer(
    start: Start, tmp_path: Path, store: join_stores.Served, strategy: str, others: list[str], spoilt: bool
) -> None:
    hosts = Hosts(start, tmp_path, store, strategy, groups=2)
    *going_on, other = (hosts.start(name, 0.1) for name in (*others, "worker-1"))
    own = hosts.checkpoints("worker-1")
    wait_until(lambda: max(checkpoint_files.part_steps(own, "worker-1.0"), default=0) > 8)
    other.kill()
    other.wait(DEADLINE_S)
    saved, older, *_ = checkpoint_files.part_steps(own, "worker-1.0")
    if spoilt:  # A part of the newest checkpoint is damaged, so the run resumes from the previous one.
        checkpoint_files.part_path(own, "worker-1.0", saved).write_bytes(b"half a part")
        saved = older
    before = len(hosts.steps("worker-1"))
    other = hosts.start("worker-1", 0, generation=1)
    output = output_of(other)
    for process in reversed(going_on):
        output_of(process)
    if strategy == "hogwild":  # Under the other strategies, the servers have the optimizer's state.
        assert f"the optimizer counts {EPOCHS * 8}" in output
    assert hosts.steps("worker-1")[before:] == list(range(saved + 1, EPOCHS * 8 + 1))


def test_the_ranks_of_a_group_without_the_chief_go_on_with_what_their_first_has(
    start: Start, tmp_path: Path, store: join_stores.Served
) -> None:
    groups = Groups(start, store, 1, 2, checkpoint_every_s=0.1)
    more = {"TORCHYARD_CHECKPOINTS": str(tmp_path), "TORCHYARD_RUN_ID": "run-1"}
    chief, *killed = groups.start_all(RESUMABLE, tmp_path, EPOCHS, 0.15, **more)
    wait_until(lambda: min(max(checkpoint_files.part_steps(tmp_path, f"worker-{n}.0"), default=0) for n in (1, 2)) > 5)
    for process in killed:
        process.kill()
        process.wait(DEADLINE_S)
    shutil.rmtree(tmp_path / "parts" / "worker-2.0")
    for log in tmp_path.glob("losses.*"):
        log.unlink()
    again = [groups.start(n, RESUMABLE, tmp_path, EPOCHS, 0, generation=1, **more) for n in (1, 2)]
    for number, process in enumerate(again, 1):
        output = output_of(process)
        assert f"the optimizer counts {EPOCHS * 5}\n" in output
        assert ("saved no part" in output) == (number == 2)
    output_of(chief)


def test_of_what_is_too_large_for_the_join_store_what_is_needed_most_is_sent(store: join_stores.Served) -> None:
    large = torch.zeros(group_broadcast.LARGEST)
    script = {
        "loaders": [7],
        "stateful": {"average": large},
        "optimizer": {"state": {0: large}, "param_groups": [{"lr": 0.5}]},
    }
    small = {**script, "stateful": {}}
    with closing(JoinStore.connect(store.address, join_stores.KEY, "worker-0")) as joined:
        for name, each in (("all", script), ("little", small)):
            group_broadcast.offer(restore._versions(each), joined, name)
        without = {"state": {}, "param_groups": [{"lr": 0.5}]}
        assert restore._load(joined.try_get("all")) == {"loaders": [7], "optimizer": without}
        assert restore._load(joined.try_get("little")) == {"loaders": [7], "stateful": {}, "optimizer": without}
