"""Tests of other users of a host who bind the names of the keeper's abstract sockets before or after the keeper."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.agent.keeper.conftest import RunScenario
from tests.agent.keeper.keeper_cluster import KeeperCluster, replica, shell
from torchyard_agent import ssh_bridge, unix_socket_rpc
from torchyard_agent.daemon.runs import Runs
from torchyard_agent.keeper import control_socket
from torchyard_agent.protocol import paths

STRANGER = 65534
SQUATTER = """
import socket, sys
kind, backlog, *names = sys.argv[1:]
held = []
for name in names:
    one = socket.socket(socket.AF_UNIX, getattr(socket, kind))
    one.bind("\\0" + name)
    if kind == "SOCK_STREAM":
        one.listen(int(backlog))
    held.append(one)
print("ready", flush=True)
sys.stdin.read()
"""
pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process of another user")
RANDOM = re.compile(rf"torchyard/{os.getuid()}/[0-9a-f]{{32}}")


@contextmanager
def squatter(*names: str, kind: str = "SOCK_STREAM", backlog: int = 8) -> Iterator[None]:
    """Starts a process of another user, which binds the given socket names and never accepts a connection."""
    command = ["/usr/bin/python3", "-I", "-c", SQUATTER, kind, str(backlog), *names]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, user=STRANGER) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield
        finally:
            process.kill()


def test_the_socket_names_of_a_run_are_random(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        scope = paths.scope(str(cluster.folder / "gpu-a"))
        foreseen = [f"torchyard/{os.getuid()}/{scope}/{what}/{cluster.run_id}" for what in ("run", "report")]
        with squatter(*foreseen), squatter(*foreseen, kind="SOCK_DGRAM"):
            (a,) = await cluster.add("gpu-a")
            await cluster.begin(replica("worker-0", "gpu-a", shell("echo $TORCHYARD_REPORT")))
            served = control_socket.read(str(a.run_dir))
            ended = await cluster.end()
        assert ended["state"] == "succeeded", ended
        reported_at = a.output("worker-0").strip()
        assert served is not None
        assert RANDOM.fullmatch(served[1:])
        assert RANDOM.fullmatch(reported_at[1:])
        assert served[1:] != reported_at[1:]

    run_scenario(scenario)


def test_a_name_bound_by_another_user_is_no_keeper(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        name = control_socket.read(str(a.run_dir))
        assert name is not None
        assert control_socket.is_alive(str(a.run_dir))
        a.process.kill()
        await a.exit_code()
        with squatter(name[1:]):
            assert not control_socket.is_alive(str(a.run_dir))
            shown = await Runs(a.agent_dir, "gpu-a").show(cluster.run_id)
        assert (shown["alive"], shown["died"]) == (False, "its keeper died")

    run_scenario(scenario)


def test_an_exiting_keeper_withdraws_its_name(run_scenario: RunScenario) -> None:
    async def scenario(cluster: KeeperCluster) -> None:
        (a,) = await cluster.add("gpu-a")
        await cluster.begin(replica("worker-0", "gpu-a", shell("true")))
        await cluster.end()
        await a.exit_code()
        assert not os.path.lexists(paths.keeper_note(str(a.run_dir)))

    run_scenario(scenario)


def daemons_name(agent_dir: Path) -> str:
    return paths.daemon_socket(str(agent_dir), os.getuid())[1:]


def test_the_user_who_holds_the_daemons_name_is_named(tmp_path: Path) -> None:
    answers: list[dict[str, Any]] = []
    with squatter(daemons_name(tmp_path)):
        assert ssh_bridge.main(str(tmp_path), "0" * 64, answers.append, lambda: None) == 1
        with pytest.raises(PermissionError, match=r"held by a process of user nobody \(UID 65534\)"):
            ssh_bridge.run_daemon(str(tmp_path), "0" * 64)
    (answer,) = answers
    assert answer["error"] == (
        f"the agent could not be started: the name @{daemons_name(tmp_path)} is held by a process of user nobody "
        "(UID 65534); ask the user or the host's administrator to end it"
    )


def test_a_daemons_name_whose_holder_accepts_no_connection_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_bridge, "START_DEADLINE_S", 0.5)
    answers: list[dict[str, Any]] = []
    name = daemons_name(tmp_path)
    with squatter(name, backlog=0), socket.socket(socket.AF_UNIX) as waiting:
        waiting.connect(f"\0{name}")  # With a backlog of 0, a listener has room for only one pending connection.
        assert ssh_bridge.main(str(tmp_path), "0" * 64, answers.append, lambda: None) == 1
    assert "accepts no connections" in str(answers[0]["error"])


def test_of_two_keepers_of_a_run_the_first_is_found_until_it_ends(tmp_path: Path) -> None:
    folder = str(tmp_path)
    names = [paths.random_socket(os.getuid()) for _ in range(2)]
    with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
        for one, name in zip((first, second), names, strict=True):
            one.bind(name)
            one.listen()
        assert control_socket.publish(folder, names[0])
        assert not control_socket.publish(folder, names[1])
        first.close()
        assert control_socket.publish(folder, names[1])
    assert control_socket.read(folder) == names[1]


def test_a_keeper_that_accepts_no_connections_counts_as_alive() -> None:
    name = paths.random_socket(os.getuid())

    async def connect() -> None:
        with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as waiting:
            busy.bind(name)
            busy.listen(0)
            waiting.connect(name)
            with pytest.raises(BlockingIOError, match="accepts no connections"):
                await unix_socket_rpc.connect(name)

    asyncio.run(connect())
