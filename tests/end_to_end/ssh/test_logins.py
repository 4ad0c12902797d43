"""Tests of unusual hosts: names that cannot be resolved, a shared home folder, and noisy or uncommon login shells."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.end_to_end.running import log_of, run, topology
from tests.lab import Desktop, HostSpec, Lab
from tests.lab_fixtures import LabFactory

pytestmark = pytest.mark.lab

MakeDesktop = Callable[..., Desktop]

WHERE = """
    import os, socket
    try:
        socket.getaddrinfo(socket.gethostname(), None)
        resolves = True
    except OSError:
        resolves = False
    print(os.environ["TORCHYARD_REPLICA"], "on", socket.gethostname(), "resolves" if resolves else "unresolvable")
"""


def one_per_host(tmp_path: Path, lab: Lab) -> Path:
    """Writes a topology with one replica on each host; the replica prints the name of its host."""
    pools = "".join(
        f"  - {{name: on-{host.name}, role: worker, replicas: 1, hosts: [{host.name}]}}\n" for host in lab.hosts
    )
    return topology(
        tmp_path / "where",
        "pools:\n" + pools + "program: {launcher: command, command: [python3, where.py]}\n",
        where_py=WHERE,
    )


def assert_runs_everywhere(desktop: Desktop, lab: Lab, tmp_path: Path) -> None:
    outcome = run(desktop, one_per_host(tmp_path, lab))
    assert outcome.ended["state"] == "succeeded", (outcome.ended, outcome.stderr)
    for number, host in enumerate(lab.hosts):
        assert log_of(desktop, outcome.run_id, f"worker-{number}") == f"worker-{number} on {host.name} unresolvable\n"


def test_hosts_whose_names_do_not_resolve(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    assert_runs_everywhere(desktop, lab3, tmp_path)


def test_hosts_that_share_one_home(lab: LabFactory, make_desktop: MakeDesktop, tmp_path: Path) -> None:
    hosts = lab(3, shared_home=True)
    assert_runs_everywhere(make_desktop(hosts), hosts, tmp_path)
    ours = hosts.hosts[0].home / ".torchyard"
    assert sorted(folder.name for folder in (ours / "hosts").iterdir()) == ["gpu-a", "gpu-b", "gpu-c"]


def test_login_shells_that_print_noise_and_csh(lab: LabFactory, make_desktop: MakeDesktop, tmp_path: Path) -> None:
    hosts = lab(
        hosts=[
            HostSpec("gpu-a", noisy=True),
            HostSpec("gpu-b", login_shell="/bin/tcsh"),
            HostSpec("gpu-c", login_shell="/bin/tcsh", noisy=True),
        ]
    )
    assert_runs_everywhere(make_desktop(hosts), hosts, tmp_path)


def test_the_systems_own_ssh_as_transport(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    config = desktop.user_home / ".ssh" / "config"
    config.parent.mkdir(mode=0o700)
    config.write_text(f"Host *\n  UserKnownHostsFile {desktop.known_hosts}\n")
    desktop.use(lab3, transport="openssh")
    # OpenSSH reads its configuration from the home folder in the user's passwd entry, not from $HOME.
    wrapper = tmp_path / "bin" / "ssh"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {config} "$@"\n')
    wrapper.chmod(0o755)
    file = one_per_host(tmp_path, lab3)

    outcome = run(desktop, file, env={"PATH": f"{wrapper.parent}:/usr/bin:/bin"})

    assert outcome.ended["state"] == "succeeded", (outcome.ended, outcome.stderr)
