"""Tests of mistakes by users and of faults of hosts: each message has a cause and a next step, and no run remains."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.end_to_end.running import Outcome, programs_on, run, topology
from tests.lab import Desktop, HostSpec, Lab
from tests.lab_fixtures import LabFactory
from tests.waiting import wait_until

pytestmark = pytest.mark.lab

SLEEP = """
    pools:
      - {name: workers, role: worker, replicas: 3, placement: spread}
    program: {launcher: command, command: [sleep, "600"]}
"""
ON_ONE = """
    pools:
      - {name: workers, role: worker, replicas: 1, hosts: [gpu-a]}
    program: {launcher: command, command: [sleep, "600"]}
"""
TORCH = """
    pools:
      - {name: chief, role: chief, replicas: 1, hosts: [gpu-a]}
    program: {script: train.py}
"""


def refused(outcome: Outcome, code: int, *said: str) -> None:
    """Asserts that a run was refused with this exit code, and that the message and the hint contain these strings."""
    assert outcome.code == code, (outcome.code, outcome.stderr)
    sentence = " ".join([outcome.error["message"], outcome.error["hint"]])
    for words in said:
        assert re.search(words, sentence), sentence
    assert outcome.error["hint"]
    for part in (outcome.error["message"], outcome.error["hint"]):
        # The command also prints the message and the hint on stderr.
        assert words_of(part) in words_of(outcome.stderr)
    assert not outcome.of("run_submitted")


def words_of(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("pools: [", 2, "topology.yaml:"),
        ("pools:\n  - {name: w, role: worker, replcas: 2}\nprogram: {script: train.py}", 1, "replcas.*replicas"),
        ("pools:\n  - {name: w, role: worker, replicas: 0}\nprogram: {script: train.py}", 1, "replicas.*from 1 to"),
        ("pools:\n  - {name: w, role: worker, replicas: 1}\nprogram: {script: tran.py}", 1, "tran.py"),
        (
            "pools:\n  - {name: w, role: worker, replicas: 1, hosts: [gpu-x]}\nprogram: {script: train.py}",
            1,
            r"gpu-x.*add the host",
        ),
        (
            "strategy: {kind: hogwild}\npools:\n  - {name: w, role: worker, replicas: 1}\n"
            "  - {name: s, role: ps, replicas: 1}\nprogram: {script: train.py}",
            1,
            "has nothing to do: hogwild uses no ps",
        ),
    ],
)
def test_a_wrong_document_touches_no_host(
    bare_hosts: None, desktop: Desktop, lab3: Lab, tmp_path: Path, text: str, code: int, said: str
) -> None:
    outcome = run(desktop, topology(tmp_path / "wrong", "\n" + text, train_py="print()"))

    refused(outcome, code, said)
    assert not any((host.home / ".torchyard").exists() for host in lab3.hosts)


def test_a_missing_file(desktop: Desktop, tmp_path: Path) -> None:
    refused(run(desktop, tmp_path / "nothing.yaml"), 2, "nothing.yaml")


def test_a_host_that_is_down(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    lab3["gpu-b"].destroy(silently=False)

    outcome = run(desktop, topology(tmp_path / "down", SLEEP))

    refused(outcome, 3, "gpu-b", r"\?")
    survivors = [host for host in lab3.hosts if host.alive]
    assert not [host for host in survivors if list((host.home / ".torchyard" / "hosts").glob("*/runs/*"))]


def test_a_host_whose_ssh_server_refuses(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    lab3["gpu-c"].stop_sshd()

    refused(run(desktop, topology(tmp_path / "refused", SLEEP)), 3, "port 22 of .* \\(gpu-c\\) refused", "sshd")


def test_an_unknown_host_key(lab3: Lab, make_desktop, tmp_path: Path) -> None:
    desktop = make_desktop()
    desktop.use(lab3, trust=False)

    outcome = run(desktop, topology(tmp_path / "unknown", ON_ONE))

    refused(outcome, 3, re.escape(lab3["gpu-a"].host_key_fingerprint), "torchyard hosts trust gpu-a")


def test_a_changed_host_key(lab: LabFactory, make_desktop, tmp_path: Path) -> None:
    hosts = lab(1)
    desktop = make_desktop(hosts)
    before = hosts.hosts[0].host_key_fingerprint
    hosts.hosts[0].change_host_key()

    outcome = run(desktop, topology(tmp_path / "changed", ON_ONE))

    now = hosts.hosts[0].host_key_fingerprint
    refused(outcome, 3, "has changed", re.escape(before), re.escape(now), "the connection is intercepted")


def test_a_wrong_user(lab3: Lab, make_desktop, tmp_path: Path) -> None:
    desktop = make_desktop()
    desktop.use(lab3, user="stranger")

    refused(run(desktop, topology(tmp_path / "user", ON_ONE)), 3, "gpu-a", "refused the login of stranger", "`user`")

    desktop.use(lab3, identity_file="/nowhere/id_ed25519")
    refused(run(desktop, topology(tmp_path / "key", ON_ONE)), 3, "gpu-a", "the key /nowhere/id_ed25519 does not exist")


def test_a_user_who_may_log_in_and_run_nothing(lab3: Lab, make_desktop, tmp_path: Path) -> None:
    desktop = make_desktop()
    desktop.use(lab3, user="nobody")

    refused(run(desktop, topology(tmp_path / "nologin", ON_ONE)), 3, "gpu-a", "account is currently not available")


def test_no_python_and_one_that_is_too_old(lab: LabFactory, make_desktop, tmp_path: Path) -> None:
    hosts = lab(hosts=[HostSpec("gpu-a", python="none"), HostSpec("gpu-b", python="3.6")])
    desktop = make_desktop(hosts, python=None)

    none = run(desktop, topology(tmp_path / "none", ON_ONE))
    old = run(desktop, topology(tmp_path / "old", ON_ONE.replace("gpu-a", "gpu-b")))

    refused(none, 3, "no Python ≥ 3.9 on gpu-a", "agent_python")
    refused(old, 3, "no Python ≥ 3.9 on gpu-b", r"3\.6\.15 at ")


def test_no_torch(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    desktop.use(lab3, python="/usr/bin/python3")

    outcome = run(desktop, topology(tmp_path / "torchless", TORCH, train_py="print()"))

    refused(outcome, 1, "torch is not installed for /usr/bin/python3 on gpu-a", "pip install torch")
    wait_until(lambda: not programs_on(lab3))


def test_a_missing_python(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    desktop.use(lab3, python="/opt/nothing/bin/python")

    outcome = run(desktop, topology(tmp_path / "pythonless", TORCH, train_py="print()"))

    refused(outcome, 1, "/opt/nothing/bin/python on gpu-a")


def test_a_missing_program(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    outcome = run(desktop, topology(tmp_path / "missing", ON_ONE.replace("sleep", "no-such-program")))

    assert outcome.code == 1
    assert re.search("no-such-program.* on gpu-a|gpu-a.*no-such-program", outcome.ended["reason"]), outcome.ended


def test_a_secret_that_is_not_set(desktop: Desktop, tmp_path: Path) -> None:
    text = ON_ONE.replace('"600"]', '"600"], secrets: [WANDB_API_KEY]')

    refused(run(desktop, topology(tmp_path / "secret", text)), 1, "WANDB_API_KEY is not set", "export WANDB_API_KEY")


@pytest.mark.parametrize("name", ["x" * 500, "two\nlines", "\x1b[31mred", ""])
def test_a_name_with_control_characters(desktop: Desktop, tmp_path: Path, name: str) -> None:
    refused(run(desktop, topology(tmp_path / "name", ON_ONE), "--name", name), 2, "--name must have 1 to 100 printable")


def test_a_full_disk(lab3: Lab, desktop: Desktop, tmp_path: Path) -> None:
    host = lab3["gpu-a"]
    host.exec(["mkdir", "-p", "/root/.torchyard"], check=True)
    host.exec(["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "none", "/root/.torchyard"], check=True)
    try:
        refused(run(desktop, topology(tmp_path / "full", ON_ONE)), 3, "gpu-a", "No space left", "disk space")
    finally:
        for _, argv in host.processes():
            assert argv
        host.exec(["umount", "-l", "/root/.torchyard"], check=True)


def test_the_traceback_of_a_command_never_reaches_a_user(desktop: Desktop, tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(bytes(range(256)))

    for arguments in (["run", tmp_path], ["run", tmp_path / "binary.yaml"], ["run"], ["run", sys.executable]):
        done = desktop.torchyard(*arguments)
        assert done.returncode == 2, (arguments, done)
        assert "Traceback" not in done.stderr
        assert done.stderr.strip()
