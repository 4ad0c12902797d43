"""Tests of clusters in the fleet file: reading, problems, and how pools are assigned to a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchyard_core.engines.registry import engine_of, on_place, open_fleet, use_inventory
from torchyard_core.engines.slurm.engine import SlurmEngine
from torchyard_core.engines.ssh import SshEngine
from torchyard_core.errors import TorchyardError, UsageError
from torchyard_core.fleet.cluster import Cluster, Login, cluster_named_by
from torchyard_core.fleet.inventory import Host, add_cluster, add_host, change_cluster, read_fleet, remove_cluster
from torchyard_core.topology.file import topology_from_text
from torchyard_core.topology.model import Topology

FLEET = """\
version: 1
hosts:
  - {name: gpu-a, address: 10.0.0.11}
clusters:
  - name: hpc
    kind: slurm
    login: {address: login.hpc.example, user: lee}
    partition: gpu
    setup: ["module load python/3.11"]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET)
    return path


def topology(*pools: str) -> Topology:
    lines = "\n".join(f"  - {{name: p{number}, {pool}}}" for number, pool in enumerate(pools))
    found = topology_from_text(f"version: 1\nname: x\npools:\n{lines}\nprogram: {{script: train.py}}\n").topology
    assert found is not None
    return found


def test_a_cluster_is_read_and_kept_when_a_host_is_added(file: Path) -> None:
    inventory = read_fleet(file).usable()
    (cluster,) = inventory.clusters
    assert (cluster.login.user, cluster.partition, cluster.setup) == ("lee", "gpu", ("module load python/3.11",))
    assert cluster.owns("hpc.12")
    assert not cluster.owns("hpc.x")
    assert add_host(file, Host(name="gpu-b")).clusters == (cluster,)


def test_a_cluster_is_added_and_changed_in_place(file: Path) -> None:
    (hpc,) = read_fleet(file).clusters
    new = Cluster(name="big", kind="slurm", login=Login(local=True), setup=("ulimit -n 4096",))
    assert add_cluster(file, new).clusters == (hpc, new)
    assert file.read_text().startswith(FLEET)
    login = hpc.login.model_copy(update={"user": None, "port": 2222})
    after = hpc.model_copy(update={"login": login, "partition": None, "qos": "long"})
    assert change_cluster(file, hpc, after).clusters == (after, new)
    assert '    setup: ["module load python/3.11"]\n' in file.read_text()
    with pytest.raises(UsageError, match="was changed meanwhile"):
        change_cluster(file, hpc, after)
    before = file.read_text()
    for name, match in (("gpu-a", "is defined twice"), ("hpc", "is defined twice")):
        with pytest.raises(TorchyardError, match=match):
            add_cluster(file, Cluster(name=name, kind="slurm"))
    assert file.read_text() == before


def test_a_cluster_is_added_to_a_file_without_clusters(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("version: 1\nhosts:\n  - {name: gpu-a}\n# The end.\n")
    add_cluster(file, Cluster(name="hpc", kind="slurm"))
    assert file.read_text() == (
        "version: 1\nhosts:\n  - {name: gpu-a}\n# The end.\nclusters:\n  - name: hpc\n    kind: slurm\n"
    )


def test_a_cluster_is_removed_with_its_own_lines_alone(file: Path) -> None:
    second = "  - {name: old, kind: slurm}  # to be switched off\n# The end.\n"
    file.write_text(FLEET + second)
    assert [cluster.name for cluster in remove_cluster(file, "hpc").clusters] == ["old"]
    assert file.read_text() == FLEET[: FLEET.index("  - name: hpc")] + second
    assert remove_cluster(file, "old").hosts == read_fleet(file).hosts != ()
    assert file.read_text() == FLEET[: FLEET.index("\n  - name: hpc")] + " []\n# The end.\n"
    with pytest.raises(UsageError, match="the fleet has no cluster `hpc`"):
        remove_cluster(file, "hpc")


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("name: hpc", "name: gpu-a", "`gpu-a` is defined twice"),
        ("name: gpu-a", "name: hpc.1", "`hpc.1` is the name of a node of runs on the cluster hpc"),
        ("partition: gpu", "partition: a b", "must be one word"),
        ("kind: slurm", "kind: pbs", "slurm"),
        ("partition: gpu", "time_limit: soon", "must be a time of Slurm such as 04:00:00"),
    ],
)
def test_problems_of_clusters_are_reported(file: Path, before: str, after: str, message: str) -> None:
    file.write_text(FLEET.replace(before, after))
    assert any(message in problem.message for problem in read_fleet(file).problems)


def test_the_pools_choose_the_engine(file: Path, tmp_path: Path) -> None:
    inventory = read_fleet(file).usable()
    fleet = open_fleet(inventory.hosts, inventory.clusters, tmp_path / "known", tmp_path / "facts")
    worker = "role: worker, replicas: 1"
    assert isinstance(engine_of(topology(worker), fleet), SshEngine)
    assert isinstance(engine_of(topology(f"{worker}, hosts: [hpc]"), fleet), SlurmEngine)
    with pytest.raises(UsageError, match="all pools of a run need the same place"):
        engine_of(topology(f"{worker}, hosts: [hpc]", "role: ps, replicas: 1"), fleet)


def test_on_puts_all_pools_on_the_cluster(file: Path, tmp_path: Path) -> None:
    inventory = read_fleet(file).usable()
    fleet = open_fleet(inventory.hosts, inventory.clusters, tmp_path / "known", tmp_path / "facts")
    text = (
        "version: 1\nname: x\npools:\n  - {name: w, role: worker, replicas: 1, hosts: [gpu-a], labels: {rack: r1}}\n"
        "pins: {worker-0: gpu-a}\nprogram: {script: train.py}\n"
    )
    moved = on_place(topology_from_text(text), "hpc", fleet).topology
    assert moved is not None
    assert (moved.pools[0].hosts, moved.pools[0].labels, moved.pins) == (("hpc",), {}, {})
    with pytest.raises(UsageError, match="no cluster `hpd`; did you mean `hpc`"):
        on_place(topology_from_text(text), "hpd", fleet)


def test_the_links_of_a_cluster_are_kept_until_its_entry_changes(file: Path, tmp_path: Path) -> None:
    inventory = read_fleet(file).usable()
    fleet = open_fleet(inventory.hosts, inventory.clusters, tmp_path / "known", tmp_path / "facts")
    (before,) = fleet.others
    use_inventory(fleet, inventory.hosts, inventory.clusters)
    assert fleet.others == (before,)
    file.write_text(FLEET.replace("partition: gpu", "partition: cpu"))
    changed = read_fleet(file).usable()
    use_inventory(fleet, changed.hosts, changed.clusters)
    (after,) = fleet.others
    assert after is not before
    assert fleet.knows("hpc.1")
    use_inventory(fleet, changed.hosts, ())
    assert not fleet.knows("hpc.1")


def test_a_cluster_is_named_by_a_topology_if_all_pools_name_it(file: Path) -> None:
    clusters = read_fleet(file).usable().clusters
    worker = "role: worker, replicas: 1"
    assert cluster_named_by(topology(f"{worker}, hosts: [hpc]", f"{worker}, hosts: [hpc]"), clusters) == clusters[0]
    assert cluster_named_by(topology(f"{worker}, hosts: [hpc]", worker), clusters) is None
    assert cluster_named_by(topology(worker), clusters) is None
