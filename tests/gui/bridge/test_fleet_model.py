"""Tests of the fleet model: the fleet file, checks and deployments on real hosts, lost links, and closing."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from pytestqt.qtbot import QtBot

from tests.gui.fleet.hosts import WITHIN_MS, DesktopModel, at_rest, state_of
from tests.lab import Desktop, Lab
from torchyard_core.app.undeploy_hosts import Removed
from torchyard_core.errors import TorchyardError, UsageError
from torchyard_core.fleet.inventory import Host, add_host
from torchyard_core.home import Home
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.bridge.host_states import HostState
from torchyard_gui.bridge.host_status import UNKNOWN, count_hosts
from torchyard_gui.fleet.labels import removed_text
from torchyard_gui.windows.fleet_summary import fleet_texts

FACTS = {"cpus": 96, "memory_gb": 1007.3, "gpus": [], "python": {"path": "/usr/bin/python3"}, "torch": "2.13.0"}


@pytest.fixture
def model(home: Home, qtbot: QtBot) -> Iterator[FleetModel]:
    made = FleetModel(home, home.fleet_file)
    yield made
    made.close()


def write(path: Path, *hosts: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump({"version": 1, "hosts": list(hosts)}))


# Tests of the fleet file


def test_without_a_fleet_file_the_fleet_is_this_computer(model: FleetModel) -> None:
    assert [(status.name, status.state, status.since) for status in model.hosts] == [("this-computer", UNKNOWN, None)]
    assert not model.fleet_file.exists()


def test_what_was_found_out_before_is_there_at_the_start_and_still_unknown(home: Home, qtbot: QtBot) -> None:
    write(home.fleet_file, {"name": "gpu-a"})
    facts = {"gpu-a": {**FACTS, "address": "gpu-a", "checked_at": "2026-11-20T09:41:00Z"}}
    home.fleet_file.with_name("facts.json").write_text(json.dumps(facts))
    model = FleetModel(home, home.fleet_file)

    status = model.status("gpu-a")
    assert status is not None
    assert status.state == UNKNOWN
    assert status.since is not None
    assert status.since.isoformat() == "2026-11-20T09:41:00+00:00"
    assert (status.facts.cpus, status.facts.torch) == (96, "2.13.0")
    assert [facts.name for facts in model.facts()] == ["gpu-a"]


def test_a_host_is_added_and_removed_and_the_file_keeps_its_comments(model: FleetModel, qtbot: QtBot) -> None:
    model.fleet_file.parent.mkdir(parents=True)
    model.fleet_file.write_text("version: 1\nhosts:\n  - name: gpu-a  # the old one\n")
    model.refresh()
    with qtbot.waitSignal(model.hosts_changed):
        model.add(Host(name="gpu-b", user="lee"))
    assert [status.name for status in model.hosts] == ["gpu-a", "gpu-b"]
    with pytest.raises(UsageError, match="has a host `gpu-b` already"):
        model.add(Host(name="gpu-b"))
    with qtbot.waitSignal(model.hosts_changed):
        model.remove("gpu-b")
    assert model.status("gpu-b") is None
    assert "# the old one" in model.fleet_file.read_text()


def test_a_change_by_the_command_line_is_seen(model: FleetModel, qtbot: QtBot) -> None:
    with qtbot.waitSignal(model.hosts_changed):
        add_host(model.fleet_file, Host(name="gpu-z"))
        model.refresh()
    assert [status.name for status in model.hosts] == ["this-computer", "gpu-z"]


def test_a_broken_fleet_file_is_told_and_its_last_good_hosts_stay(model: FleetModel, qtbot: QtBot) -> None:
    write(model.fleet_file, {"name": "gpu-a"})
    model.refresh()
    model.fleet_file.write_text("version: 1\nhosts:\n  - {name: gpu-a, adress: 192.0.2.1}\n")
    with qtbot.waitSignal(model.hosts_changed):
        model.refresh()
    assert model.problem is not None
    assert "fleet.yaml:3" in model.problem.sentence()
    assert [status.name for status in model.hosts] == ["gpu-a"]
    write(model.fleet_file, {"name": "gpu-b"})
    model.refresh()
    assert model.problem is None
    assert [status.name for status in model.hosts] == ["gpu-b"]


def test_other_hosts_keep_their_state_when_one_changes(model: FleetModel) -> None:
    write(model.fleet_file, {"name": "gpu-a"}, {"name": "gpu-b"})
    model.refresh()
    kept = model.status("gpu-a")
    write(model.fleet_file, {"name": "gpu-a"}, {"name": "gpu-b", "user": "lee"})
    changed = model.status("gpu-b")
    model.refresh()
    assert model.status("gpu-a") is kept
    assert model.status("gpu-b") != changed


def test_checking_hosts_of_an_empty_fleet_does_nothing(model: FleetModel) -> None:
    write(model.fleet_file)
    model.check()
    assert model.hosts == ()


def test_a_closed_model_starts_nothing(model: FleetModel) -> None:
    model.close()
    model.check()
    model.watch(True)
    assert at_rest(model)


# Tests with real hosts


@pytest.mark.lab
def test_check_finds_each_hosts_state_and_puts_nothing_there(
    desktop: Desktop, lab3: Lab, desktop_model: DesktopModel, qtbot: QtBot
) -> None:
    lab3["gpu-c"].stop_sshd()
    desktop.known_hosts.write_text(lab3["gpu-a"].known_hosts)
    model = desktop_model(desktop)

    model.check()
    qtbot.waitUntil(lambda: at_rest(model), timeout=WITHIN_MS)

    states = {status.name: status.state for status in model.hosts}
    assert states == {"gpu-a": "agent missing", "gpu-b": "key unknown", "gpu-c": "unreachable"}
    assert model.status("gpu-a").has_no_agent  # type: ignore[union-attr]  # The value is not None in this test.
    assert not (lab3["gpu-a"].home / ".torchyard").exists()
    assert model.has_looked


@pytest.mark.lab
def test_deploy_makes_a_host_ready_and_its_facts_known(
    desktop: Desktop, desktop_model: DesktopModel, qtbot: QtBot
) -> None:
    model = desktop_model(desktop)
    kinds: set[str] = set()

    def note(name: str) -> None:
        status = model.status(name)
        if status is not None and status.doing is not None:
            kinds.add(status.doing.kind)

    model.host_changed.connect(note)
    model.deploy(["gpu-a", "gpu-b"])
    qtbot.waitUntil(lambda: at_rest(model), timeout=WITHIN_MS)

    assert state_of(model, "gpu-a") == state_of(model, "gpu-b") == "ready"
    assert state_of(model, "gpu-c") == UNKNOWN
    assert {"waiting", "deploying", "sending", "looking"} <= kinds
    facts = {facts.name: facts for facts in model.facts()}
    assert facts["gpu-a"].checked
    assert facts["gpu-a"].cpus
    assert not facts["gpu-c"].checked


@pytest.mark.lab
def test_a_dead_host_delays_no_other_and_can_be_cancelled(
    desktop: Desktop, lab3: Lab, desktop_model: DesktopModel, qtbot: QtBot
) -> None:
    lab3["gpu-c"].cut_cable()
    model = desktop_model(desktop)
    model.deploy(["gpu-a", "gpu-b", "gpu-c"])
    qtbot.waitUntil(lambda: state_of(model, "gpu-a") == state_of(model, "gpu-b") == "ready", timeout=WITHIN_MS)
    silent = model.status("gpu-c")
    assert silent is not None
    assert silent.doing is not None

    model.cancel(["gpu-c"])
    assert at_rest(model)
    assert state_of(model, "gpu-c") == UNKNOWN


@pytest.mark.lab
def test_closing_while_a_host_does_not_answer_takes_no_time(
    desktop: Desktop, lab3: Lab, desktop_model: DesktopModel, qtbot: QtBot
) -> None:
    lab3["gpu-b"].cut_cable()
    # Even on a busy machine, the login to gpu-b must still be in progress when the model is closed.
    (desktop.user_home / ".ssh").mkdir(mode=0o700)
    (desktop.user_home / ".ssh" / "config").write_text("Host *\n  ConnectTimeout 40\n")
    model = desktop_model(desktop)
    changes: list[str] = []
    model.check()
    qtbot.waitUntil(lambda: state_of(model, "gpu-a") != UNKNOWN, timeout=WITHIN_MS)
    began = time.monotonic()
    model.close()
    took = time.monotonic() - began
    model.host_changed.connect(changes.append)
    qtbot.wait(100)

    assert took < 20
    assert changes == []


@pytest.mark.lab
def test_a_connection_that_breaks_makes_the_host_unknown_until_it_is_checked_again(
    desktop: Desktop, lab3: Lab, desktop_model: DesktopModel, qtbot: QtBot
) -> None:
    model = desktop_model(desktop)
    model.deploy(["gpu-a"])
    qtbot.waitUntil(lambda: state_of(model, "gpu-a") == "ready", timeout=WITHIN_MS)
    lab3["gpu-a"].stop_sshd(sessions=True)
    qtbot.waitUntil(lambda: state_of(model, "gpu-a") == UNKNOWN, timeout=WITHIN_MS)
    lost = model.status("gpu-a")
    assert lost is not None
    assert lost.problems[0].message == "the connection to gpu-a was lost."
    assert lost.since is not None

    lab3["gpu-a"].start_sshd()
    model.check(["gpu-a"])
    qtbot.waitUntil(lambda: state_of(model, "gpu-a") == "ready", timeout=WITHIN_MS)


@pytest.mark.lab
def test_hosts_are_asked_for_their_users_every_second_only_while_they_are_watched(
    desktop: Desktop, desktop_model: DesktopModel, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchyard_gui.bridge.fleet_model.HEARTBEAT_EVERY_MS", 600_000)
    model = desktop_model(desktop)
    model.deploy(["gpu-a"])
    qtbot.waitUntil(lambda: at_rest(model), timeout=WITHIN_MS)
    with qtbot.assertNotEmitted(model.use_changed, wait=1300):
        pass
    with qtbot.waitSignals([model.use_changed] * 2, timeout=WITHIN_MS):
        model.watch(True)
    sample = model.status("gpu-a").sample  # type: ignore[union-attr]  # The value is not None in this test.
    assert sample is not None
    assert sample["host"]["cpus"] >= 1
    model.watch(False)
    qtbot.waitUntil(lambda: not model._links.is_asking("gpu-a"), timeout=WITHIN_MS)  # The last query has been answered.
    with qtbot.assertNotEmitted(model.use_changed, wait=1300):
        pass


@pytest.mark.lab
def test_a_host_that_stops_answering_is_unknown_and_comes_back(
    desktop: Desktop, lab3: Lab, desktop_model: DesktopModel, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchyard_gui.bridge.host_links.SILENT_AFTER_S", 1.0)
    model = desktop_model(desktop)
    model.deploy(["gpu-a"])
    qtbot.waitUntil(lambda: state_of(model, "gpu-a") == "ready", timeout=WITHIN_MS)
    model.watch(True)
    lab3["gpu-a"].cut_cable()
    qtbot.waitUntil(lambda: state_of(model, "gpu-a") == UNKNOWN, timeout=WITHIN_MS)
    lab3["gpu-a"].mend_cable()
    qtbot.waitUntil(lambda: state_of(model, "gpu-a") == "ready", timeout=WITHIN_MS)


@pytest.mark.lab
def test_an_outage_is_noticed_while_no_page_watches_the_hosts(
    desktop: Desktop, lab3: Lab, desktop_model: DesktopModel, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchyard_gui.bridge.host_links.SILENT_AFTER_S", 1.0)
    model = desktop_model(desktop)
    model.deploy(["gpu-a", "gpu-b"])
    qtbot.waitUntil(lambda: at_rest(model) and count_hosts(model.hosts).answering == 2, timeout=WITHIN_MS)
    lab3["gpu-a"].cut_cable()
    qtbot.waitUntil(lambda: state_of(model, "gpu-a") == UNKNOWN, timeout=WITHIN_MS)
    assert fleet_texts(model)[0] == ("ok", "1 of 3 hosts answer")
    lab3["gpu-a"].mend_cable()
    qtbot.waitUntil(lambda: state_of(model, "gpu-a") == "ready", timeout=WITHIN_MS)


@pytest.mark.lab
def test_an_agent_is_removed_and_the_host_has_none_then(
    desktop: Desktop, lab3: Lab, desktop_model: DesktopModel, qtbot: QtBot
) -> None:
    model = desktop_model(desktop)
    removed: list[Removed] = []
    model.undeployed.connect(removed.append)
    model.deploy(["gpu-a"])
    qtbot.waitUntil(lambda: state_of(model, "gpu-a") == "ready", timeout=WITHIN_MS)
    model.undeploy(["gpu-a", "gpu-b"])
    qtbot.waitUntil(lambda: at_rest(model), timeout=WITHIN_MS)
    assert [model.status(name).condition for name in ("gpu-a", "gpu-b")] == [HostState.NO_AGENT] * 2  # type: ignore[union-attr]  # The value is not None in this test.
    assert removed_text(sorted(removed, key=lambda one: one.name)) == (
        "Agent removed from gpu-a. There was no agent on gpu-b."
    )
    assert not (lab3["gpu-a"].home / ".torchyard").exists()


@pytest.mark.lab
def test_the_interpreters_of_a_host_are_found_by_its_agent(
    desktop: Desktop, desktop_model: DesktopModel, qtbot: QtBot
) -> None:
    model = desktop_model(desktop)
    failed: list[TorchyardError] = []
    found: list[list[dict[str, object]]] = []
    model.find_interpreters("gpu-b", found.append, failed.append)
    model.deploy(["gpu-a"])
    qtbot.waitUntil(lambda: at_rest(model) and bool(failed or found), timeout=WITHIN_MS)
    failed.clear()
    found.clear()
    model.find_interpreters("gpu-a", found.append, failed.append)
    qtbot.waitUntil(lambda: bool(failed or found), timeout=WITHIN_MS)
    assert failed == []
    first = found[0][0]
    assert first["torch"]
    assert first["path"] == sys.executable


@pytest.mark.lab
def test_a_host_that_another_part_of_the_window_reached_is_checked(
    desktop: Desktop, desktop_model: DesktopModel, qtbot: QtBot
) -> None:
    model = desktop_model(desktop)
    done: list[object] = []
    model.jobs.run(lambda: model.fleet.link("gpu-a"), done.append)  # A launch opens a link in the same way.
    qtbot.waitUntil(lambda: bool(done), timeout=WITHIN_MS)
    model.watch(True)
    qtbot.waitUntil(lambda: state_of(model, "gpu-a") == "ready", timeout=WITHIN_MS)


@pytest.mark.lab
def test_a_host_that_leaves_the_fleet_loses_its_link(
    desktop: Desktop, desktop_model: DesktopModel, qtbot: QtBot, make_desktop: Callable[..., Desktop]
) -> None:
    model = desktop_model(desktop)
    model.deploy(["gpu-a"])
    qtbot.waitUntil(lambda: state_of(model, "gpu-a") == "ready", timeout=WITHIN_MS)
    link = model.fleet.open_link("gpu-a")
    assert link is not None
    model.remove("gpu-a")
    qtbot.waitUntil(lambda: not link.is_open, timeout=WITHIN_MS)
    assert model.status("gpu-a") is None
    assert "gpu-a" not in model.facts_file.read_text()
