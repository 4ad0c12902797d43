"""Tests that ranks have the same environment variables as under torchrun, on hosts with different numbers of GPUs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.agent.fake_nvml import FakeGpu
from tests.end_to_end.running import Outcome, log_of, logs_of, run, topology
from tests.fork_server import ForkServer
from tests.lab import Desktop, Lab
from tests.lab.hosts.gpus import give_gpus
from tests.lab_fixtures import LabFactory

pytestmark = [pytest.mark.lab, pytest.mark.train]

PRINT_ENVIRONMENT = """
    import json, os
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR",
             "MASTER_PORT", "OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING")
    ours = {n: v for n, v in os.environ.items() if n in names or n.startswith(("ROLE_", "TORCHELASTIC_"))}
    os.write(1, (json.dumps(ours) + "\\n").encode())  # one write: under torchrun all ranks share a pipe
"""
GPUS = {"gpu-a": 2, "gpu-b": 1, "gpu-c": 3}

DIFFERENT_BY_NATURE = {
    "MASTER_PORT": "each start chooses its own",
    "TORCHELASTIC_RUN_ID": "our run's ID",
    "TORCHELASTIC_ERROR_FILE": "a file in our run's folder",
}
DIFFERENT_BY_DESIGN = {
    "TORCHELASTIC_USE_AGENT_STORE": "no agent of torchrun serves a store: rank 0 does",
    "TORCHELASTIC_MAX_RESTARTS": "the topology's max_restarts; torchrun's own default is 0",
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "read only by torchrun's own processes, which do not run",
}


def with_gpus(lab: Lab) -> None:
    """Gives each host its number of fake GPUs, as listed in `GPUS`."""
    for host in lab.hosts:
        names = [f"GPU-{host.name}-{index}" for index in range(GPUS[host.name])]
        give_gpus(host, [FakeGpu(uuid=name, name="Fake A100") for name in names])


def torchrun_environments(
    lab: Lab, script: Path, processes: Mapping[str, int], torch_for_hosts: ForkServer
) -> dict[int, dict[str, str]]:
    """Runs torchrun with these numbers of processes per host; returns the environment of each rank, by RANK."""
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    started = []
    for node_rank, host in enumerate(lab.hosts):
        (host.home / script.name).write_text(script.read_text())
        options = [f"--nnodes={len(lab.hosts)}", f"--node-rank={node_rank}", f"--nproc-per-node={processes[host.name]}"]
        options += [f"--master-addr={lab.hosts[0].address}", "--master-port=29555"]
        python = host.fork_scripts_from(torch_for_hosts)
        started.append(host.start([python, torchrun, *options, f"/root/{script.name}"]))
    outputs = [process.communicate(timeout=120)[0] for process in started]
    assert [process.returncode for process in started] == [0] * len(lab.hosts)
    found = {}
    for output in outputs:
        for line in output.splitlines():
            if line.startswith("{"):
                environment = json.loads(line)
                found[int(environment["RANK"])] = environment
    return found


def test_every_variable_equals_torchruns(
    lab: LabFactory, make_desktop, torch_for_hosts: ForkServer, tmp_path: Path
) -> None:
    hosts = lab(3)
    with_gpus(hosts)
    desktop = make_desktop(hosts)
    file = topology(
        tmp_path / "contract",
        """
        pools:
          - {name: chief, role: chief, replicas: 1, gpus: 2, hosts: [gpu-a]}
          - {name: small, role: worker, replicas: 1, gpus: 1, hosts: [gpu-b]}
          - {name: large, role: worker, replicas: 1, gpus: 3, hosts: [gpu-c]}
        program: {script: print.py, setup: [":"]}  # only with setup may torch lack CUDA
        """,
        print_py=PRINT_ENVIRONMENT,
    )

    outcome = run(desktop, file, "--book", "1h")

    theirs = torchrun_environments(hosts, file.parent / "print.py", GPUS, torch_for_hosts)
    assert sorted(theirs) == list(range(6))
    assert_as_under_torchrun(desktop, outcome, theirs)


def test_replicas_without_gpus_are_what_one_torchrun_on_their_host_starts(
    lab: LabFactory, make_desktop, torch_for_hosts: ForkServer, tmp_path: Path
) -> None:
    hosts = lab(2)
    desktop = make_desktop(hosts)
    file = topology(
        tmp_path / "contract",
        """
        pools:
          - {name: chief, role: chief, replicas: 1, hosts: [gpu-a]}
          - {name: here, role: worker, replicas: 2, hosts: [gpu-a]}
          - {name: there, role: worker, replicas: 1, hosts: [gpu-b]}
        program: {script: print.py}
        """,
        print_py=PRINT_ENVIRONMENT,
    )

    outcome = run(desktop, file)

    theirs = torchrun_environments(hosts, file.parent / "print.py", {"gpu-a": 3, "gpu-b": 1}, torch_for_hosts)
    assert sorted(theirs) == list(range(4))
    assert_as_under_torchrun(desktop, outcome, theirs)


def assert_as_under_torchrun(desktop: Desktop, outcome: Outcome, theirs: dict[int, dict[str, str]]) -> None:
    """Asserts that each rank of a run that prints its environment has the environment of torchrun's rank."""
    assert outcome.ended["state"] == "succeeded", (outcome.ended, outcome.stderr)
    ours: dict[int, dict[str, str]] = {}
    for log in logs_of(desktop, outcome.run_id).values():
        for line in log.splitlines():
            environment = json.loads(line[line.index("{") :])
            ours[int(environment["RANK"])] = environment
    assert sorted(ours) == sorted(theirs)
    for rank in ours:
        for name in sorted({*ours[rank], *theirs[rank]} - DIFFERENT_BY_DESIGN.keys()):
            if name in DIFFERENT_BY_NATURE:
                assert ours[rank].get(name), (rank, name)
            else:
                assert ours[rank].get(name) == theirs[rank].get(name), (rank, name)


def test_each_replica_sees_its_own_gpus(lab: LabFactory, make_desktop, tmp_path: Path) -> None:
    hosts = lab(3)
    with_gpus(hosts)
    desktop = make_desktop(hosts)
    show = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    file = topology(
        tmp_path / "gpus",
        """
        pools:
          - {name: workers, role: worker, replicas: 2, gpus: 1, hosts: [gpu-a]}
          - {name: eval, role: evaluator, replicas: 1, hosts: [gpu-b]}
        program: {launcher: command, command: [python3, show.py], ends_with: all}
        """,
        show_py=show,
    )

    outcome = run(desktop, file)

    assert outcome.ended["state"] == "succeeded", outcome.ended
    seen = [log_of(desktop, outcome.run_id, name).strip() for name in ("worker-0", "worker-1", "evaluator-0")]
    assert seen == ["GPU-gpu-a-0", "GPU-gpu-a-1", ""]


def test_a_gpu_held_by_a_run_is_not_available_to_others(lab: LabFactory, make_desktop, tmp_path: Path) -> None:
    hosts = lab(3)
    with_gpus(hosts)
    first, second = make_desktop(hosts), make_desktop(hosts)
    text = """
        pools:
          - {name: workers, role: worker, replicas: 1, gpus: 1, hosts: [gpu-b]}
        program: {launcher: command, command: [sleep, "60"]}
    """
    holding = first.torchyard("run", topology(tmp_path / "one", text), "--detach", "--name", "holder")
    assert holding.returncode == 0, holding.stderr

    outcome = run(second, topology(tmp_path / "two", text))

    assert outcome.code == 1
    assert "holder" in outcome.error["message"], outcome.error
    assert "gpu-b" in outcome.error["message"]
    stopped = first.torchyard("runs", "stop", holding.stdout.strip())
    assert stopped.returncode == 0, stopped.stderr
