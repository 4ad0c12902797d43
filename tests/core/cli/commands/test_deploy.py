"""Tests of `torchyard deploy` and `undeploy`: one daemon of the right version runs, and everything is removed."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.core.cli.command_runner import answer, daemons_on, ours_on, torchyard
from tests.core.cli.sample_runs import sleeping
from tests.lab import Desktop, HostSpec, Lab, LabHost
from tests.lab_fixtures import LabFactory
from tests.waiting import wait_until
from torchyard_core.fleet.agent_archive import Archive, build_archive, hash_of_sources
from torchyard_core.fleet.agent_deployment import attach
from torchyard_core.fleet.inventory import Host
from torchyard_core.fleet.ssh import SshDialer

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("bare_hosts")]

MakeDesktop = Callable[..., Desktop]


def archive_of_version(version: str) -> Archive:
    """Returns this installation's agent with a different version number."""
    own = build_archive()
    sources = json.loads(zlib.decompress(own.data))
    package = "torchyard_agent/__init__.py"
    sources[package] = sources[package].replace(f'"{own.version}"', f'"{version}"')
    text = json.dumps(sources).encode()
    return Archive(
        version, hashlib.sha256(text).hexdigest(), zlib.compress(text), own.bootstrap, hash_of_sources(sources)
    )


def put_version(version: str, host: LabHost, lab: Lab, desktop: Desktop) -> int:
    """Deploys an agent of the given version; returns the PID of the daemon."""
    known = Host(name=host.name, address=host.address, user=host.user, identity_file=str(lab.identity_file))
    link = attach(known, SshDialer(desktop.known_hosts), archive_of_version(version))
    try:
        assert link.hello["version"] == version
        return int(link.hello["pid"])
    finally:
        link.close()


def test_desktops_whose_zlib_compresses_otherwise_share_one_agent(desktop: Desktop, lab3: Lab) -> None:
    host = lab3["gpu-a"]
    known = Host(name=host.name, address=host.address, user=host.user, identity_file=str(lab3.identity_file))
    own = build_archive()
    # Another implementation of zlib, such as zlib-ng, compresses the same data to different bytes.
    other = replace(own, data=zlib.compress(zlib.decompress(own.data), 1))
    assert other.data != own.data
    pids = []
    for archive in (other, own):
        link = attach(known, SshDialer(desktop.known_hosts), archive)
        pids.append(link.hello["pid"])
        link.close()
    assert pids[0] == pids[1]


def test_the_archive_is_named_by_what_it_holds_however_it_is_compressed(monkeypatch: pytest.MonkeyPatch) -> None:
    build_archive.cache_clear()
    one = build_archive()
    compress = zlib.compress
    monkeypatch.setattr("torchyard_core.fleet.agent_archive.zlib.compress", lambda data, level: compress(data, 1))
    build_archive.cache_clear()
    other = build_archive()
    build_archive.cache_clear()
    assert one.data != other.data
    assert one.sha256 == other.sha256


def test_deploy_starts_one_daemon_a_host_however_often(desktop: Desktop, lab3: Lab) -> None:
    half = ours_on(lab3["gpu-a"]) / "store" / f"{build_archive().sha256}.archive"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"")  # After a power cut, an archive that has just been sent may be an empty file.
    first = torchyard(desktop, "deploy")
    assert first.stdout.splitlines() == [
        f"{host.name}: agent 0.1.0 ({build_archive().sha256[:12]}) running, pid {daemons_on(host)[0]}"
        for host in lab3.hosts
    ]
    assert "gpu-a: running" in first.stderr
    again = answer(desktop, "deploy", "gpu-a", "gpu-b")
    assert [(found["name"], found["error"]) for found in again] == [("gpu-a", None), ("gpu-b", None)]
    assert [found["agent"]["pid"] for found in again] == [daemons_on(host)[0] for host in lab3.hosts[:2]]
    assert [len(daemons_on(host)) for host in lab3.hosts] == [1, 1, 1]


def test_an_agent_that_a_power_cut_has_left_half_written_is_made_whole(desktop: Desktop, lab3: Lab) -> None:
    host = lab3["gpu-a"]
    torchyard(desktop, "hosts", "check", "gpu-a")
    installed = ours_on(host) / "store" / build_archive().sha256 / "torchyard_agent"
    wait_until((installed / "unix_socket_rpc.py").exists)
    host.exec(["kill", "-KILL", *map(str, daemons_on(host))], check=True)
    for half in (installed / "unix_socket_rpc.py", installed / "ssh_bridge.py"):
        half.write_bytes(b"")

    torchyard(desktop, "hosts", "check", "gpu-a")

    wait_until(lambda: installed.exists() and (installed / "unix_socket_rpc.py").stat().st_size > 0)
    assert sorted(path.name for path in installed.parents[1].iterdir() if not path.is_dir()) == [
        f"{build_archive().sha256}.archive"
    ]


def test_two_deploys_at_the_same_time_start_one_daemon(desktop: Desktop, lab3: Lab) -> None:
    both = [desktop.start("deploy", "--json") for _ in range(2)]
    outputs = [json.loads(deploy.communicate(timeout=60)[0]) for deploy in both]
    assert outputs[0] == outputs[1]
    assert [[found["agent"]["pid"]] for found in outputs[0]] == [daemons_on(host) for host in lab3.hosts]


def test_a_host_that_is_down_is_reported_and_the_others_are_deployed(desktop: Desktop, lab3: Lab) -> None:
    lab3["gpu-b"].stop_sshd()
    done = torchyard(desktop, "deploy", code=3)
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["gpu-a", "gpu-c"]
    assert f"port 22 of {lab3['gpu-b'].address} (gpu-b) refused" in done.stderr


def test_an_older_agent_is_replaced_and_a_newer_one_kept(desktop: Desktop, lab3: Lab) -> None:
    older, newer, _ = lab3.hosts
    old = put_version("0.0.9", older, lab3, desktop)
    new = put_version("9.0.0", newer, lab3, desktop)

    done = torchyard(desktop, "deploy", "gpu-a", "gpu-b")

    replaced, kept = done.stdout.splitlines()
    assert replaced.startswith("gpu-a: agent 0.1.0 ")
    assert old not in daemons_on(older)
    assert len(daemons_on(older)) == 1
    assert kept.startswith("gpu-b: agent 9.0.0 ")
    assert daemons_on(newer) == [new]
    assert "gpu-b: its agent is newer than this desktop's (0.1.0) and was kept" in done.stderr


def test_undeploy_leaves_nothing_behind(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    before = {host.name: sorted(path.name for path in host.home.iterdir()) for host in lab3.hosts}
    file = sleeping(tmp_path / "short", seconds=0)
    torchyard(desktop, "run", file, "--json")  # The run creates snapshots, run folders and logs.
    put_version("9.0.0", lab3["gpu-c"], lab3, desktop)  # gpu-c now has two archives.
    assert (ours_on(lab3["gpu-a"]) / "store" / "snapshots").is_dir()

    removed = torchyard(desktop, "undeploy", "-y")

    assert [line.split(":")[0] for line in removed.stdout.splitlines()] == ["gpu-a", "gpu-b", "gpu-c"]
    assert "were removed" in removed.stdout
    for host in lab3.hosts:
        assert sorted(path.name for path in host.home.iterdir()) == before[host.name]
        assert daemons_on(host) == []
    again = torchyard(desktop, "undeploy", "gpu-a", "-y")
    assert "nothing to remove" in again.stdout
    assert not ours_on(lab3["gpu-a"]).exists()


def test_undeploy_takes_away_an_agent_of_another_version(desktop: Desktop, lab3: Lab) -> None:
    put_version("0.0.9", lab3["gpu-a"], lab3, desktop)
    put_version("9.0.0", lab3["gpu-b"], lab3, desktop)
    torchyard(desktop, "undeploy", "gpu-a", "gpu-b", "-y")
    for host in lab3.hosts[:2]:
        assert not ours_on(host).exists()
        assert daemons_on(host) == []


def test_undeploy_takes_the_folders_that_were_made_for_the_agents_own(desktop: Desktop, lab3: Lab) -> None:
    fleet = yaml.safe_load(desktop.fleet_file.read_text())
    for entry in fleet["hosts"]:
        entry["agent_dir"] = "team/tools/agent"
    desktop.fleet_file.write_text(yaml.safe_dump(fleet))
    kept = lab3["gpu-b"].home / "team"  # The folder existed before `deploy`, so `undeploy` must not remove it.
    kept.mkdir()
    torchyard(desktop, "deploy", "gpu-a", "gpu-b")
    assert (lab3["gpu-a"].home / "team" / "tools" / "agent" / "store").is_dir()
    torchyard(desktop, "undeploy", "gpu-a", "gpu-b", "-y")
    assert not (lab3["gpu-a"].home / "team").exists()
    assert list(kept.iterdir()) == []
    kept.rmdir()


def test_undeploy_asks_first(desktop: Desktop, lab3: Lab) -> None:
    torchyard(desktop, "deploy", "gpu-a")
    assert "from gpu-a?" in torchyard(desktop, "undeploy", "gpu-a", code=2).stderr
    assert len(daemons_on(lab3["gpu-a"])) == 1


def test_undeploy_leaves_a_host_alone_where_a_run_lives(desktop: Desktop, lab3: Lab, tmp_path: Path) -> None:
    file = sleeping(tmp_path / "long", hosts=["gpu-a"])
    run_id = torchyard(desktop, "run", file, "--detach").stdout.strip()
    torchyard(desktop, "deploy", "gpu-b")

    (refused, removed) = answer(desktop, "undeploy", "gpu-a", "gpu-b", "-y", code=1)

    assert refused["error"]["code"] == "run_alive"
    assert run_id in refused["error"]["message"]
    assert f"torchyard runs stop {run_id}" in refused["error"]["hint"]
    assert removed["removed"]
    assert answer(desktop, "runs", "show", run_id)["alive"]
    torchyard(desktop, "runs", "stop", run_id)
    assert answer(desktop, "undeploy", "gpu-a", "-y")[0]["removed"]


def test_undeploy_refuses_a_folder_that_holds_what_is_not_ours(desktop: Desktop, lab3: Lab) -> None:
    torchyard(desktop, "deploy", "gpu-a")
    (ours_on(lab3["gpu-a"]) / "thesis.tex").write_text("years of work")
    assert "thesis.tex" in torchyard(desktop, "undeploy", "gpu-a", "-y", code=1).stderr
    assert (ours_on(lab3["gpu-a"]) / "store").is_dir()
    assert len(daemons_on(lab3["gpu-a"])) == 1
    (ours_on(lab3["gpu-a"]) / "thesis.tex").unlink()
    torchyard(desktop, "undeploy", "gpu-a", "-y")
    assert not ours_on(lab3["gpu-a"]).exists()


def test_of_a_shared_home_the_store_stays_for_the_others(lab: LabFactory, make_desktop: MakeDesktop) -> None:
    hosts = lab(hosts=["gpu-a", HostSpec("gpu-b", login_shell="/bin/tcsh", noisy=True)], shared_home=True)
    desktop = make_desktop(hosts)
    torchyard(desktop, "deploy")
    ours = ours_on(hosts["gpu-a"])

    first = torchyard(desktop, "undeploy", "gpu-a", "-y")

    assert "gpu-b shares this home" in first.stdout
    assert [folder.name for folder in (ours / "hosts").iterdir()] == ["gpu-b"]
    assert (ours / "store").is_dir()
    torchyard(desktop, "deploy", "gpu-a")
    both = torchyard(desktop, "undeploy", "-y")
    assert "shares this home" not in both.stdout
    assert not ours.exists()
