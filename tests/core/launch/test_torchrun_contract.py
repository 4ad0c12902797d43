"""Tests that ranks have the same environment as under torchrun, with two nodes whose numbers of GPUs differ."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.core.examples import host, topology
from tests.ports import free_port
from torchyard_core.launch.rank_assignment import plan
from torchyard_core.launch.replica_plans import PreparedHost, replica_specs

SAY = """\
import json, os, sys
place = os.path.join(sys.argv[1], os.environ["RANK"])
with open(place, "w") as file:
    json.dump(dict(os.environ), file)
"""
OF_THE_LAUNCH = {"MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_USE_AGENT_STORE"}
"""Variables that differ between launches: they identify the launch, its folder, and its store, which torchrun's agent
or rank 0 serves.
"""
OF_TORCHRUN_ITSELF = {"TORCHELASTIC_SIGNALS_TO_HANDLE"}
"""Variables of torchrun's own process, which the ranks inherit."""
NODES = (2, 1)
"""The number of ranks on each node."""


def torchrun_environments(folder: Path) -> list[dict[str, str]]:
    """Returns, for each rank, the variables that torchrun adds to its environment."""
    script, results = folder / "say.py", folder / "results"
    script.write_text(SAY)
    results.mkdir()
    port = free_port()
    plain = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    launches = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", f"--nnodes={len(NODES)}", f"--node-rank={node}"),
                *(f"--nproc-per-node={ranks}", "--master-addr=127.0.0.1", f"--master-port={port}"),
                *("--max-restarts=2", str(script), str(results)),
            ],
            env=plain,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for node, ranks in enumerate(NODES)
    ]
    for launch in launches:
        output, _ = launch.communicate(timeout=120)
        assert launch.returncode == 0, output
    found = [json.loads((results / str(rank)).read_text()) for rank in range(sum(NODES))]
    return [{name: value for name, value in env.items() if plain.get(name) != value} for env in found]


@pytest.mark.train
def test_every_variable_of_torchrun_s_is_set_to_what_torchrun_sets(tmp_path: Path) -> None:
    asked = topology(
        f"{{name: c, role: chief, replicas: 1, gpus: {NODES[0]}}}",
        f"{{name: w, role: worker, replicas: 1, gpus: {NODES[1]}}}",
        pins="{chief-0: a, worker-0: b}",
    )
    sites = {
        "a": PreparedHost("127.0.0.1", "lo", "/r", "python3", (1, 2)),
        "b": PreparedHost("127.0.0.2", "lo", "/r", "python3", (1,)),
    }
    planned = plan(asked, [host("a", NODES[0]), host("b", NODES[1])])
    ours = [rank["env"] for share in replica_specs(planned, sites, "run") for rank in share["ranks"]]
    theirs = torchrun_environments(tmp_path)
    assert len(ours) == len(theirs)
    for our, their in zip(ours, theirs, strict=True):
        assert their.keys() - OF_TORCHRUN_ITSELF <= our.keys()
        compared = their.keys() - OF_TORCHRUN_ITSELF - OF_THE_LAUNCH
        assert {name: our[name] for name in compared} == {name: their[name] for name in compared}
