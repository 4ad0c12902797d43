"""Tests that a worker's traffic per step, measured at its host's interface, is as documented."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fork_server import ForkServer
from tests.lab.hosts.host import LabHost
from tests.lab_fixtures import LabFactory
from tests.roles.join_stores import KEY

pytestmark = [pytest.mark.lab, pytest.mark.train]

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).parents[1] / "programs" / "trains_on_hosts.py"
WORKERS = 3
STEPS = 8
BYTES = 4_000_000
PORT = 29500
QUIET_S = 0.3
INT8 = {"inner_steps": 4, "wire": "int8"}
SILENCE = 20_000
"""Maximum number of bytes between two samples that do not belong to an exchange, such as ARP and requests to the join
store.
"""


class Site:
    """Three hosts that train, and one host for servers and reducers. On each host, a process forks the replicas."""

    def __init__(self, hosts: list[LabHost], torch_imported: ForkServer) -> None:
        self.hosts = hosts
        self._used = 0
        environment = {"PYTHONPATH": str(ROOT / "agent"), "OMP_NUM_THREADS": "1"}
        pythons = [host.fork_scripts_from(torch_imported) for host in hosts]
        self.processes = [
            host.start([python, str(PROGRAM)], env=environment) for host, python in zip(hosts, pythons, strict=True)
        ]
        self._stores: list[subprocess.Popen[str]] = []

    def measured(self, kind: str, servers: int, **options: object) -> tuple[float, float]:
        """Returns how much data a worker sends and receives per step, as a multiple of the model's size."""
        self._used += 20
        port = PORT + self._used
        groups = WORKERS if kind in ("downpour", "hogwild", "diloco") else 1
        server_role = "reducer" if kind == "reduction_server" else "ps"
        trainers = [[f"worker-{n}", self.hosts[n].address, port + n, 1, n % groups] for n in range(WORKERS)]
        places = [[f"{server_role}-{n}", self.hosts[-1].address, port + 5 + n] for n in range(servers)]
        common = {
            "TORCHYARD_STRATEGY": kind,
            "TORCHYARD_OPTIONS": json.dumps({"kind": kind, **options}),
            "TORCHYARD_PEERS": json.dumps({"trainers": trainers, server_role: places}),
            "TORCHYARD_KEY": KEY.hex(),
            "TORCHYARD_STORE": self._join_store() if kind == "diloco" else "",
            "TORCHYARD_WORLD_SIZE": str(WORKERS),
            "TORCHYARD_GROUPS": str(groups),
            "MASTER_ADDR": self.hosts[0].address,
            "MASTER_PORT": str(port + 4),
            "GLOO_SOCKET_IFNAME": "eth0",
        }
        for number in range(servers):
            self._say(-1, common, f"{server_role}-{number}", server_role, {})
        for rank in range(WORKERS):
            place = {
                "TORCHYARD_RANK": str(rank),
                "TORCHYARD_GROUP": str(rank % groups),
                "TORCHYARD_GROUP_RANK": str(0 if groups > 1 else rank),
                "TORCHYARD_GROUP_SIZE": str(WORKERS // groups),
            }
            self._say(rank, common, f"worker-{rank}", "worker", place)
        self._all("ready")
        before = self._counters()
        self._order(str(STEPS))
        self._all("done")
        after = self._counters()
        self._order("leave")
        self._all("left")
        self._end_stores()
        sent, received = (
            sum(new - old for new, old in zip(after[which], before[which], strict=True)) / WORKERS / STEPS / BYTES
            for which in (0, 1)
        )
        return sent, received

    def _join_store(self) -> str:
        """Starts a new join store on the last host, and returns its address."""
        last = self.hosts[-1]
        command = [sys.executable, "-m", "tests.roles.join_stores", "0", last.address]
        self._stores.append(last.start(command, env={"PYTHONPATH": f"{ROOT}:{ROOT / 'agent'}"}))
        output = self._stores[-1].stdout
        assert output is not None
        return f"{last.address}:{output.readline().strip()}"

    def _say(self, host: int, common: dict[str, str], name: str, role: str, place: dict[str, str]) -> None:
        order = {"environment": {**common, "TORCHYARD_REPLICA": name, "TORCHYARD_ROLE": role, **place}}
        _write(self.processes[host], json.dumps(order))

    def _order(self, line: str) -> None:
        for process in self.processes[:WORKERS]:
            _write(process, line)

    def _all(self, word: str) -> None:
        for process in self.processes[:WORKERS]:
            assert process.stdout is not None
            seen = []
            for line in process.stdout:
                seen.append(line)
                if line.strip() == word:
                    break
            else:
                raise AssertionError("".join(seen))

    def _counters(self) -> tuple[list[int], list[int]]:
        """Waits until all data have arrived; returns how many bytes each worker's host has sent and received."""
        now: list[list[int]] = []
        while True:
            before, now = (
                now,
                [
                    [host.bytes_sent for host in self.hosts[:WORKERS]],
                    [host.bytes_received for host in self.hosts[:WORKERS]],
                ],
            )
            if before and sum(map(sum, now)) - sum(map(sum, before)) < SILENCE:
                return now[0], now[1]
            time.sleep(QUIET_S)

    def _end_stores(self) -> None:
        while self._stores:
            self._stores.pop().communicate(timeout=60)  # The program exits when its stdin is closed.

    def close(self) -> None:
        self._end_stores()
        for process in self.processes:
            process.communicate(timeout=60)


def _write(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


@pytest.fixture(scope="module")
def site(module_lab: LabFactory, torch_imported: ForkServer) -> Iterator[Site]:
    site = Site(module_lab(4).hosts, torch_imported)
    yield site
    site.close()


@pytest.mark.parametrize(
    ("kind", "servers", "options", "sent", "received"),
    [
        pytest.param("all_reduce", 0, {}, 4 / 3, 4 / 3, id="all_reduce: 2M(N-1)/N"),
        pytest.param("sandblaster", 1, {}, 1, 1, id="sandblaster: M"),
        pytest.param("reduction_server", 3, {}, 1, 1, id="reducers: M"),
        pytest.param("reduction_server", 1, {}, 1.2, 1.2, id="mixed: 2N(N-1)M/D"),
        pytest.param("downpour", 1, {"push_every": 2, "pull_every": 4}, 1 / 2, 1 / 4, id="downpour: M/push, M/pull"),
        pytest.param("hogwild", 0, {"sync_every": 4}, 1 / 3, 1 / 3, id="hogwild: 2M(G-1)/(G f)"),
        pytest.param("diloco", 0, {"inner_steps": 4}, 1 / 3, 1 / 3, id="diloco: 2M(G-1)/(G H)"),
        pytest.param("diloco", 0, INT8, 0.254 / 3, 0.254 / 3, id="diloco, int8: 2Mq(G-1)/(G H)"),
        pytest.param("diloco", 1, INT8, 0.254 / 4, 0.254 / 4, id="diloco with a server, int8: Mq/H"),
    ],
)
def test_a_worker_s_bytes_in_a_step_are_the_table_s(
    site: Site, kind: str, servers: int, options: dict[str, object], sent: float, received: float
) -> None:
    measured = site.measured(kind, servers, **options)
    within = 0.05 if kind == "diloco" else 0.02  # Headers are a larger share of smaller messages.
    assert measured == (pytest.approx(sent, rel=within), pytest.approx(received, rel=within))
