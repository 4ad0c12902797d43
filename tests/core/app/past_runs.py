"""Records of past runs whose measured steps differ from their predictions by known factors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchyard_core.app.run_predictions import RunPredictor
from torchyard_core.fleet.inventory import read_fleet
from torchyard_core.home import Home
from torchyard_core.launch.launch import planned_replicas
from torchyard_core.launch.rank_assignment import plan
from torchyard_core.launch.runs.history import History, RunRecord
from torchyard_core.topology.file import topology_from_text
from torchyard_core.topology.host_facts import HostFacts

FLEET = """\
version: 1
hosts:
  - {name: one, address: 127.0.0.1, port: 1, bandwidth_gbps: 0.2}
  - {name: two, address: 127.0.0.2, port: 1, bandwidth_gbps: 0.2}
"""
TOPOLOGY = """\
version: 1
name: digits
strategy: {kind: all_reduce}
pools: [{name: workers, role: worker, replicas: 2, placement: spread}]
program: {script: train.py}
"""


def known_hosts(home: Home) -> tuple[HostFacts, ...]:
    """Returns the facts of the fleet file's hosts, none of which has been checked."""
    return tuple(HostFacts(host.name) for host in read_fleet(home.fleet_file).usable().hosts)


def past_run(
    home: Home,
    run_id: str,
    workdir: Path | None,
    *,
    compute: float = 1.0,
    exchange: float = 1.0,
    text: str = TOPOLOGY,
    **changes: Any,
) -> RunRecord:
    """Records a finished run whose computing and exchange took these multiples of the predicted times.

    Args:
        text: The topology.
        changes: Other fields of the record.
    """
    inventory = read_fleet(home.fleet_file).usable()
    facts = known_hosts(home)
    topology = topology_from_text(text).topology
    assert topology is not None
    planned = plan(topology, facts)
    about = {
        "topology": text,
        "planned": planned_replicas(planned),
        "workdir": str(workdir or ""),
        "snapshot": "root",
        "ended": "2026-11-28T10:00:00Z",
        "replicas": [
            {"name": one.name, "host": one.host, "state": "succeeded", "exit_code": 0, "restarts": 0, "reason": ""}
            for one in planned.replicas
        ],
    }
    common = (run_id, topology.name, "topology.yaml", "one", planned.hosts, "2026-11-28T09:00:00Z")
    record = RunRecord(*common, **{"state": "succeeded", **about, **changes})
    predicted = RunPredictor(home, inventory, facts).predict(record)
    if predicted is not None and "metrics" not in changes:
        computed_s = predicted.step_s - predicted.exchange_s
        compute_s = compute * predicted.median.compute_s
        step_s = compute * computed_s + exchange * predicted.exchange_s
        for name in predicted.compute_s:
            parts = {"compute_s": compute_s, "exchange_s": step_s - compute_s, "wait_s": 0.0}
            record.metrics[name] = {"step": 40, **parts}
    History(home.history).save(record)
    return record
