"""Tests that a Vertex AI script finds its peers through CLUSTER_SPEC alone."""

from __future__ import annotations

import json
import os
import re

import pytest

from tests.end_to_end.running import REPOSITORY, logs_of, nothing_but, run
from tests.fork_server import ForkServer
from tests.lab import Desktop, Lab
from tests.ports import free_port

pytestmark = pytest.mark.train

EXAMPLE = REPOSITORY / "examples" / "cluster_spec" / "three-hosts.yaml"
SEEN = ("CLUSTER_SPEC", "GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS", "PATH")
"""The only environment variables that the script gets.

They include the network interface for gloo, because gloo would otherwise resolve the host's name, which does not work
on lab hosts.
"""

WATCHED = """
import runpy, sys
from pathlib import Path
import torch.distributed as dist

def destroy():
    destroys()
    print("threads:", *(file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")), flush=True)

destroys, dist.destroy_process_group = dist.destroy_process_group, destroy
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.mark.lab
def test_torch_trains_across_hosts_from_cluster_spec_alone(desktop: Desktop, lab3: Lab, warm_python: str) -> None:
    desktop.use(lab3, python=warm_python)
    setup = [nothing_but(*SEEN), 'echo "variables:" $(compgen -e | sort)']
    settings = {"program.setup": setup, "program.command": [warm_python, "train.py"], "pools.workers.replicas": 1}

    outcome = run(desktop, EXAMPLE, *(f"--set={key}={json.dumps(value)}" for key, value in settings.items()))

    assert outcome.ended["state"] == "succeeded", outcome.ended
    assert [replica["host"] for replica in outcome.ended["replicas"]] == ["gpu-a", "gpu-b"]
    logs = logs_of(desktop, outcome.run_id)
    for rank, name in enumerate(("chief-0", "worker-0")):
        assert f"variables: {' '.join(SEEN)}\n" in logs[name]
        assert f"rank {rank} of 2, " in logs[name]
        losses = [float(loss) for loss in re.findall(r"^epoch \d+ loss ([0-9.]+)$", logs[name], re.MULTILINE)]
        assert losses[-1] < losses[0] / 4
    # Each worker trains on its own part of every batch, but all end with the same model.
    [accuracy] = {float(re.findall(r"^test accuracy ([0-9.]+)$", log, re.MULTILINE)[-1]) for log in logs.values()}
    assert accuracy > 0.93


def test_gloos_threads_end_with_the_process_group_and_not_with_the_model(torch_for_hosts: ForkServer) -> None:
    """A gloo thread that outlives the process group can keep a rank from exiting."""
    trainers = {"workerpool0": [f"127.0.0.1:{free_port()}"], "workerpool1": ["127.0.0.1:1"]}
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ranks = []
    for pool in trainers:
        spec = json.dumps({"cluster": trainers, "task": {"type": pool, "index": 0}})
        script = ("-c", WATCHED, EXAMPLE.with_name("train.py"))
        ranks.append(torch_for_hosts.start(*script, environment={**environment, "CLUSTER_SPEC": spec}))
    try:
        outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.close()

    for output in outputs:
        (threads,) = re.findall(r"^threads: (.*)$", output, re.MULTILINE)
        assert "gloo" not in threads
