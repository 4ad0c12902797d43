"""Tests that torch's TCPStore, which has no authentication, is reachable only on the run's network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from tests.end_to_end.running import log_of, logs_of, run, topology
from tests.lab import Desktop, Lab
from tests.ports import free_port
from torchyard_agent import tcp_store_binding
from torchyard_core.fleet.agent_archive import build_archive

LISTENS = """
import json, os
def listeners(port):
    "Return the addresses of listening sockets with this port, in the kernel's notation."
    found = []
    for table in ("tcp", "tcp6"):
        for line in open(f"/proc/net/{table}").read().splitlines()[1:]:
            address, state = line.split()[1], line.split()[3]
            if state == "0A" and int(address.rpartition(":")[2], 16) == port:
                found.append(address.rpartition(":")[0])
    return found
"""
UNMODIFIED = """
import sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(1)
dist.all_reduce(value)
if os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0" and dist.get_rank() == 1:
    sys.exit("dies once")
print(json.dumps([value.item(), listeners(int(os.environ["MASTER_PORT"])) if dist.get_rank() == 0 else []]), flush=True)
dist.barrier()
time.sleep(1)  # gloo closes a barrier that another rank is still reading from, and can abort right after a collective
dist.destroy_process_group()
"""
TWICE = """
dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Unpacks the agent into a folder, as on a host; returns the folder."""
    folder = tmp_path / "archive"
    for path, text in json.loads(zlib.decompress(build_archive().data)).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def trained(archive: Path, address: str) -> list[str]:
    """Trains with a single rank and the given MASTER_ADDR; returns the addresses on which the rank's store listens.

    The script creates a second process group afterwards. With several ranks, such a script can reach the store of the
    first group on the same port, as it can without Torchyard.
    """
    contract = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": address, "MASTER_PORT": str(free_port())}
    environment = {**os.environ, **contract, "PYTHONPATH": str(archive), "TORCHYARD_REPLICA": "worker-0"}
    command = [sys.executable, "-c", LISTENS + UNMODIFIED + TWICE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout)[1])


@pytest.mark.train
@pytest.mark.parametrize(("address", "listeners"), [("127.0.0.1", ["0100007F"]), ("::1", ["0" * 24 + "01000000"])])
def test_a_store_listens_on_the_address_that_ranks_get(archive: Path, address: str, listeners: list[str]) -> None:
    assert trained(archive, address) == listeners


@pytest.mark.train
def test_a_name_as_address_leaves_the_choice_to_torch(archive: Path) -> None:
    assert trained(archive, "localhost") == ["0" * 32]


def test_an_address_of_another_host_leaves_the_choice_to_torch() -> None:
    # The address belongs to no interface of this machine, as behind NAT.
    assert tcp_store_binding.listener_at("192.0.2.7", free_port()) is None


@pytest.mark.lab
@pytest.mark.train
def test_the_store_of_an_unmodified_script_is_on_the_data_address_alone(
    desktop: Desktop, lab3: Lab, tmp_path: Path
) -> None:
    """The run restarts once, to test a port that has been used before."""
    # With this interpreter, ranks import torch themselves, and are not forked from a process that has imported it.
    desktop.use(lab3, python=sys.executable)
    file = topology(
        tmp_path / "program",
        """\
        strategy: {kind: all_reduce}
        pools: [{name: workers, role: worker, replicas: 2, placement: spread}]
        program: {script: train.py, env: {OMP_NUM_THREADS: "1"}, max_restarts: 1}
        """,
        train_py=LISTENS + UNMODIFIED,
    )
    done = run(desktop, file)
    assert done.code == 0, f"{logs_of(desktop, done.run_id)}\n{done.stderr}"
    told = [line for line in log_of(desktop, done.run_id, "worker-0").splitlines() if line.startswith("[")]
    address = lab3.hosts[0].address
    assert address.count(".") == 3
    as_the_kernel_writes_it = "".join(f"{int(part):02X}" for part in reversed(address.split(".")))
    assert json.loads(told[-1]) == [2.0, [as_the_kernel_writes_it]]
