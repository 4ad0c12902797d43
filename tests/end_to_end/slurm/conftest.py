"""Fixtures for runs on a Slurm cluster: desktops whose fleet file contains the cluster, and their runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.end_to_end.slurm.jobs import ClusterDesktop
from tests.fork_server import ForkServer
from tests.lab.commands import Commands
from tests.lab.slurm import SlurmCluster

DesktopFactory = Callable[..., ClusterDesktop]


@pytest.fixture
def on_cluster(
    cluster: SlurmCluster, tmp_path: Path, _commands: Commands, torch_for_hosts: ForkServer
) -> Iterator[DesktopFactory]:
    """A factory of desktops: `on_cluster(user="lee", partition="urgent")`. Options are those of the cluster's entry."""
    made: list[ClusterDesktop] = []
    (python,) = {host.fork_scripts_from(torch_for_hosts) for host in cluster.lab.hosts}

    def make(user: str = "root", **options: object) -> ClusterDesktop:
        folder = tmp_path / f"desktop-{len(made)}"
        desktop = ClusterDesktop(folder, cluster, _commands, user=user, **{"python": python, **options})
        made.append(desktop)
        return desktop

    yield make
    for desktop in made:
        desktop.close()
