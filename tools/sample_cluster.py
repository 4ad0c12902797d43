"""A sample Slurm cluster in the fleet file, and a run on it, for screenshots. No cluster is contacted."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.core.engines.slurm.samples import ANSWER
from tests.core.examples import topology
from tests.gui.runs import fake_hosts
from tools.live_run import RUNS_FOR_S
from tools.sample_fleet import let_hosts_answer

from torchyard_core.booking.model import Draft
from torchyard_core.booking.store import BookingStore
from torchyard_core.engines.slurm.cluster_calendar import ClusterCalendar
from torchyard_core.engines.slurm.cluster_check import ClusterCheck
from torchyard_core.engines.slurm.description import ClusterDescription
from torchyard_core.fleet.cluster import Cluster
from torchyard_core.formatting import utc_timestamp
from torchyard_core.topology.host_facts import Gpu, HostFacts
from torchyard_core.topology.model import Topology
from torchyard_gui.bridge.clusters.cluster_statuses import ClusterStatus
from torchyard_gui.windows.signal_connections import SignalConnections

CLUSTER = """clusters:
  - {name: hpc, kind: slurm, partition: gpu, account: nlp, login: {address: login.hpc.example, user: kim}}
"""
SHAPES = [
    {"count": 24, "cpus": 128, "memory_mb": 1024000, "gpus": {"a100": 8}, "states": {"idle": 3, "allocated": 21}},
    {"count": 40, "cpus": 64, "memory_mb": 512000, "gpus": {}, "states": {"idle": 40}},
]
PARTITIONS = [
    {"name": "gpu", "default": True, "nodes": 64, "grace_s": 0.0},
    {"name": "preemptible", "default": False, "nodes": 64, "grace_s": 120.0},
]
LIMITS = [{"Account": "nlp", "QOS": "normal,long", "MaxJobs": "8", "MaxTRES": "gres/gpu=64"}]
NODES = {"hpc.1": "gpu017", "hpc.2": "gpu018", "hpc.3": "gpu022", "hpc.4": "cpu003"}
POOLS = (
    "{name: chief, role: chief, replicas: 1, gpus: 1, hosts: [hpc]}",
    "{name: workers, role: worker, replicas: 23, gpus: 1, hosts: [hpc]}",
    "{name: servers, role: ps, replicas: 2, cpus: 8, memory_gb: 64, hosts: [hpc]}",
)


def cluster_design() -> Topology:
    """Returns a topology for three nodes with GPUs and one without."""
    pools = tuple(pool.replace(", hosts: [hpc]", "") for pool in POOLS)
    return _named(topology(*pools, strategy="{kind: sandblaster}"))


def _named(design: Topology) -> Topology:
    return design.model_copy(update={"name": "bert-large"})


def add_cluster(wiring: SignalConnections) -> None:
    """Adds the cluster to the fleet file."""
    fleet = wiring.fleet
    with fleet.fleet_file.open("a", encoding="utf-8") as file:
        file.write(CLUSTER)
    fleet._fleet = None
    fleet.refresh()
    let_hosts_answer(fleet)


def let_cluster_answer(wiring: SignalConnections) -> None:
    """Marks the cluster as checked."""
    (cluster,) = wiring.place.clusters
    about = {"nodes": SHAPES, "partitions": PARTITIONS, "limits": LIMITS}
    description = ClusterDescription({**ANSWER, **about}, "1.0 on Python 3.11 at /usr/bin/python3")
    check = ClusterCheck(cluster.name, cluster.partition, description, None, tuple(description.problems(cluster)))
    wiring.fleet.clusters.put(ClusterStatus(cluster).checked(check, datetime.now(UTC)))


class _ClusterRun(fake_hosts.Acting):
    """A run whose nodes Slurm chooses when it starts."""

    def answer(self, link: fake_hosts.ActingLink, method: str, params: dict[str, Any]) -> Any:
        return NODES if method == "run.nodes" else super().answer(link, method, params)


def begin_waiting_run(wiring: SignalConnections) -> fake_hosts.Acting:
    """Begins a run that waits in the queue. Its `start` starts it."""
    fake_hosts.BEGAN = time.time() - RUNS_FOR_S
    slots = []
    for slot in NODES:
        gpus = tuple(Gpu(index, f"{slot}:{index}", "a100", 0) for index in range(8 if slot != "hpc.4" else 0))
        slots.append(HostFacts(slot, address=slot, gpus=gpus, checked=True))
    acting = _ClusterRun(slots, *POOLS, name="bert-large", run_id="20261121-101500-5b2d", design=_on_slots())
    acting.note(wiring.home)
    wiring.fleet._fleet = fake_hosts.ActingFleet(acting)  # type: ignore[assignment]  # No cluster is contacted.
    start = utc_timestamp(time.time() + 5400)[:19] + "Z"
    reason = f"job 4711 waits in the queue: Resources; Slurm expects its start at {start}"
    acting.play("run_state", 2, state="waiting", reason=reason)
    return acting


def _on_slots() -> Topology:
    pools = tuple(pool.replace("hosts: [hpc]", f"hosts: [{', '.join(NODES)}]") for pool in POOLS)
    return _named(topology(*pools, strategy="{kind: sandblaster}"))


def sample_lanes(now: datetime) -> ClusterCalendar:
    """Returns eight nodes with running jobs and a reservation."""
    at, hour = now.timestamp(), 3600
    names = [f"gpu{number:03}" for number in range(17, 25)]
    jobs = [
        ("4711", "torchyard-20261121-101500-5b2d", "kim", -20, 28, names[:3]),
        ("4698", "bert", "lee", -30, 6, names[3:4]),
        ("4705_3", "sweep", "lee", -2, 22, names[4:6]),
    ]
    answer = {
        "as_of": at,
        "nodes": [{"name": name, "gpus": {"a100": 8}, "cpus": 128} for name in names],
        "reservations": [
            {"name": "maintenance", "start": at + 40 * hour, "end": at + 52 * hour, "nodes": names, "users": ["root"]}
        ],
        "jobs": [
            {"id": job, "name": name, "user": user, "start": at + start * hour, "end": at + end * hour, "nodes": nodes}
            for job, name, user, start, end, nodes in jobs
        ],
    }
    return ClusterCalendar.from_answer(Cluster(name="hpc", kind="slurm"), answer)


def book_nodes(store: BookingStore, now: datetime) -> None:
    """Books two nodes for this user, for which Slurm has no reservation."""
    slots = sample_lanes(now).slots
    store.remember_slots(slots)
    start = now + timedelta(hours=3)
    nodes = tuple(slot.id for slot in slots[-2:])
    store.book(Draft("fine-tuning", nodes, start, start + timedelta(hours=30), "UTC"))
