"""Benchmark of a deployment to eight hosts, until every agent answers.

The deployment is compared with an upload of the same bytes by paramiko alone, and with Ansible. Promises: at most 3
times the duration of the upload, and less than a quarter of Ansible's duration.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import paramiko
from tests.lab import Lab, LabHost

from benchmarks.harness import Promise, alternate, ratio, record, show, timed
from torchyard_core.errors import HostError
from torchyard_core.fleet.agent_archive import build_archive
from torchyard_core.fleet.fleet import Fleet
from torchyard_core.fleet.inventory import Host

HOSTS = 8
ROUNDS = 8
ANSIBLE_ROUNDS = 2


def ours(lab: Lab, folder: Path) -> float:
    """Deploys to hosts that have no agent. Returns the seconds until the daemons of all hosts have answered."""
    known_hosts = folder / "known_hosts"
    known_hosts.write_text(lab.known_hosts)
    hosts = [
        Host(name=host.name, address=host.address, user=host.user, identity_file=str(lab.identity_file))
        for host in lab.hosts
    ]
    with Fleet(hosts, known_hosts, folder / "facts.json") as fleet:
        found: dict[str, object] = {}
        seconds = timed(lambda: found.update(fleet.links()))
        refused = [answer for answer in found.values() if isinstance(answer, HostError)]
        assert not refused, refused
    for host in lab.hosts:
        host.clean()
    return seconds


def bare(lab: Lab, data: bytes) -> float:
    """Logs in on all hosts in parallel and writes the same bytes to a file. Returns the duration in seconds."""

    def upload(host: LabHost) -> None:
        client = paramiko.SSHClient()
        client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
        client.connect(
            host.address,
            username=host.user,
            key_filename=str(lab.identity_file),
            allow_agent=False,
            look_for_keys=False,
        )
        transport = client.get_transport()
        assert transport is not None
        channel = transport.open_session()
        channel.exec_command("cat > .uploaded")
        channel.sendall(data)
        channel.shutdown_write()
        assert channel.recv_exit_status() == 0
        client.close()

    def everywhere() -> None:
        with ThreadPoolExecutor(HOSTS) as pool:
            list(pool.map(upload, lab.hosts))

    seconds = timed(everywhere)
    for host in lab.hosts:
        host.clean()
    return seconds


def ansible(lab: Lab, folder: Path, data: bytes) -> float:
    """Copies the same bytes to all hosts by ansible-playbook (pipelining, 8 forks). Returns the seconds taken."""
    playbook = Path(sys.executable).with_name("ansible-playbook")
    (folder / "archive").write_bytes(data)
    (folder / "inventory").write_text(
        "".join(
            f"{host.name} ansible_host={host.address} ansible_user={host.user} "
            f"ansible_ssh_private_key_file={lab.identity_file} ansible_python_interpreter=/usr/bin/python3\n"
            for host in lab.hosts
        )
    )
    (folder / "play.yaml").write_text(
        "- hosts: all\n  gather_facts: false\n  tasks:\n"
        "    - ansible.builtin.copy: {src: archive, dest: .uploaded}\n"
        "    - ansible.builtin.command: test -s .uploaded\n"
    )
    environment = {
        "PATH": f"{playbook.parent}:/usr/bin:/bin",
        "HOME": str(folder),
        "LC_ALL": "C.UTF-8",
        "ANSIBLE_PIPELINING": "True",
        "ANSIBLE_FORKS": str(HOSTS),
        "ANSIBLE_HOST_KEY_CHECKING": "False",
        "ANSIBLE_SSH_ARGS": "-o ControlMaster=no -o UserKnownHostsFile=/dev/null",
    }
    command = [str(playbook), "-i", "inventory", "play.yaml"]
    seconds = timed(lambda: subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True))
    for host in lab.hosts:
        host.clean()
    return seconds


def main() -> list[Promise]:
    """Measures all arms in one run, with the same hosts."""
    data = build_archive().data
    with tempfile.TemporaryDirectory() as folder, Lab(HOSTS, directory=Path(folder) / "lab") as lab:
        place = Path(folder)
        found = alternate({"torchyard": lambda: ours(lab, place), "bare upload": lambda: bare(lab, data)}, ROUNDS)
        promises = [Promise("deploy to 8 hosts over a bare upload", ratio(found, "torchyard", "bare upload"), 3.0)]
        if shutil.which("ansible-playbook", path=str(Path(sys.executable).parent)):
            pair = {"torchyard": lambda: ours(lab, place), "ansible-playbook": lambda: ansible(lab, place, data)}
            against = alternate(pair, ANSIBLE_ROUNDS)
            found["ansible-playbook"] = against["ansible-playbook"]
            promises.append(
                Promise("deploy to 8 hosts over Ansible", ratio(against, "torchyard", "ansible-playbook"), 0.25)
            )
        else:
            print("  Ansible is not installed here (pip install ansible-core): that arm is left out.")
    show(f"Deploy to {HOSTS} hosts ({len(data)} bytes), until every agent answers", found)
    record("deploy", found, promises)
    return promises


if __name__ == "__main__":
    main()
