"""The assignments of replicas that a launch would send to hosts, for tests with short topologies."""

from __future__ import annotations

from collections.abc import Mapping

from tests.core.examples import host
from torchyard_agent.protocol.messages import ReplicaAssignment
from torchyard_core.launch.port_assignment import ports_needed
from torchyard_core.launch.rank_assignment import plan
from torchyard_core.launch.replica_plans import PreparedHost, replica_specs
from torchyard_core.topology.host_facts import HostFacts
from torchyard_core.topology.model import Topology

CHIEF = "{name: c, role: chief, replicas: 1}"
WORKERS = "{name: w, role: worker, replicas: 2}"
SERVERS = "{name: s, role: ps, replicas: 2}"
REDUCERS = "{name: r, role: reducer, replicas: 1}"
EVALUATORS = "{name: e, role: evaluator, replicas: 1}"
ALL_ROLES = (CHIEF, WORKERS, SERVERS, "{name: e, role: evaluator, replicas: 2}")
TRAINERS_ONLY = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_NAME",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
)
STORE = "10.0.0.1:4000"

# Host n has the address 10.0.0.n and reserves ports from n000.
HOSTS = [host("one", 8), host("two", 8), host("three")]


def launched(
    what: Topology,
    hosts: list[HostFacts] | None = None,
    trial: str | None = None,
    sites: Mapping[str, PreparedHost] | None = None,
) -> dict[str, ReplicaAssignment]:
    """Returns the assignment of every replica, by replica name."""
    hosts = HOSTS if hosts is None else hosts
    planned = plan(what, hosts)
    assert planned.problems == ()
    needed = ports_needed(planned)
    made = {
        known.name: PreparedHost(
            f"10.0.0.{number}",
            "ib0",
            f"/runs/{known.name}",
            "/usr/bin/python3",
            tuple(range(number * 1000, number * 1000 + needed.get(known.name, 0))),
        )
        for number, known in enumerate(hosts, 1)
    }
    return {share["name"]: share for share in replica_specs(planned, sites or made, "run-1", trial, STORE)}


def env(share: ReplicaAssignment, local_rank: int = 0) -> dict[str, str]:
    return share["ranks"][local_rank]["env"]
