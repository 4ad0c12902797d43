"""Tests of clusters on the Fleet page: their cards, details and actions beside those of hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel
from pytestqt.qtbot import QtBot

from tests.core.engines.slurm.samples import ANSWER, DESCRIPTION, SHAPES, checked
from tests.gui.fleet.hosts import Show, press
from tests.gui.geometry.faults import faults_of
from tests.gui.geometry.painted_text import painted_texts
from torchyard_core.engines import registry
from torchyard_core.engines.slurm.cluster_check import ClusterCheck
from torchyard_core.engines.slurm.description import ClusterDescription
from torchyard_core.errors import AgentMissing, KeyUnknown, TorchyardError, Unreachable
from torchyard_core.home import Home
from torchyard_gui.bridge.clusters.cluster_statuses import ClusterStatus
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.bridge.host_states import HostState
from torchyard_gui.bridge.host_status import UNKNOWN
from torchyard_gui.fleet.dialogs.cluster_form import AddClusterDialog, EditClusterDialog
from torchyard_gui.fleet.dialogs.removal_dialogs import RemoveHostsDialog
from torchyard_gui.fleet.labels import short_time
from torchyard_gui.fleet.page import FleetPage
from torchyard_gui.windows.fleet_summary import fleet_texts

FLEET = """\
version: 1
hosts:
  - {name: gpu-a}
clusters:
  - name: hpc
    kind: slurm
    login: {address: login.hpc.example, user: lee}
    partition: gpu
    account: nlp
    time_limit: "04:00:00"
"""
PARTITIONS = [
    {"name": "gpu", "default": True, "nodes": 14, "grace_s": 0.0},
    {"name": "debug", "default": False, "nodes": 1, "grace_s": 60.0},
]
LIMITS = [{"Account": "nlp", "MaxJobs": "8"}]
Check = Callable[[], ClusterCheck]


def answered(*problems: TorchyardError) -> ClusterCheck:
    """Returns the result of a check of a cluster that answers."""
    answer = {**ANSWER, "partitions": PARTITIONS, "limits": LIMITS}
    return replace(checked(), description=replace(DESCRIPTION, answer=answer), problems=problems)


def failed(error: TorchyardError) -> ClusterCheck:
    return ClusterCheck("hpc", "gpu", None, error, (error,))


@pytest.fixture
def installs(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each check of the cluster, whether it may install the agent."""
    return []


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch, installs: list[bool]) -> list[Check]:
    """The answers of the cluster's login node to the next checks; the last one is repeated."""
    coming: list[Check] = [answered]

    def answer(*_: object, install: bool = True) -> ClusterCheck:
        installs.append(install)
        return (coming.pop(0) if coming[1:] else coming[0])()

    monkeypatch.setattr(registry, "check_cluster", answer)
    return coming


@pytest.fixture
def fleet(home: Home, answers: list[Check], qtbot: QtBot) -> Iterator[FleetModel]:
    home.path.mkdir(parents=True)
    home.fleet_file.write_text(FLEET)
    model = FleetModel(home, home.fleet_file)
    yield model
    model.close()


def status(model: FleetModel) -> ClusterStatus:
    found = model.clusters.status("hpc")
    assert found is not None
    return found


def choose(qtbot: QtBot, page: FleetPage) -> None:
    """Selects the cluster after its check."""
    qtbot.waitUntil(lambda: status(page.model).doing is None)
    page.list.choose("hpc")


def shown(page: FleetPage) -> list[str]:
    """Returns the texts of the details."""
    return [
        text.text()
        for table in page.details._cluster_tables
        for pair in table._labels
        for text in pair
        if text.isVisible()
    ]


def test_a_cluster_is_a_card_beside_the_hosts_and_is_not_counted_as_one(
    fleet: FleetModel, show: Show, qtbot: QtBot, installs: list[bool]
) -> None:
    page = show(fleet)
    choose(qtbot, page)
    assert page.rows.names == ["gpu-a", "hpc"]
    assert installs == [False]  # The page has checked the cluster by itself, which installs nothing.
    texts = [one.text for one in painted_texts(page.list.viewport())]
    (status,) = fleet.clusters.all
    assert status.described is not None
    time = short_time(status.described)
    for text in ("hpc", "ready", f"14 nodes at {time}", "13 idle, 1 down", "16 × a100", "partition gpu", "account nlp"):
        assert text in texts
    qtbot.waitUntil(lambda: page.summary.text() == "The host does not answer · hpc answers")
    assert fleet_texts(fleet) == [("unknown", "The host does not answer")]
    assert page.details.title.text() == "hpc"
    assert {"22.05.8", "lee@login.hpc.example", "nfs", "debug 60 s"} <= set(shown(page))
    assert {"14 nodes, default", "1 node", "4 nodes", "10 idle", "MaxJobs", "8", "As of", time} <= set(shown(page))
    spoken = page.rows.index_of("hpc").data(Qt.ItemDataRole.AccessibleTextRole)
    assert spoken.startswith("hpc, Slurm cluster, ready since ")
    assert not faults_of(page)
    page.list.choose("gpu-a")
    assert shown(page) == []


def test_a_cluster_is_found_by_its_partition_and_filtered_by_its_state(
    fleet: FleetModel, show: Show, qtbot: QtBot
) -> None:
    page = show(fleet)
    choose(qtbot, page)
    qtbot.keyClicks(page.search_field, "gpu a100")
    assert page.rows.names == ["hpc"]
    page.search_field.clear()
    states = page.state_filter
    qtbot.waitUntil(lambda: "Ready (1)" in [states.itemText(row) for row in range(states.count())])
    states.choose(HostState.READY)
    assert page.rows.names == ["hpc"]


def test_a_cluster_that_fails_says_why_and_is_checked_again_by_its_button(
    fleet: FleetModel, show: Show, qtbot: QtBot, answers: list[Check], installs: list[bool]
) -> None:
    answers.insert(0, lambda: failed(Unreachable("hpc", "port 22 of hpc refused.", hint="Is sshd running there?")))
    page = show(fleet)
    choose(qtbot, page)
    assert page.details.problems.text() == "Port 22 of hpc refused. Is sshd running there?"
    assert fleet_texts(fleet)[1:] == [("failed", "hpc: unreachable")]
    qtbot.waitUntil(lambda: page.summary.text().endswith("hpc does not answer"))
    qtbot.waitUntil(lambda: page.list.action_button("hpc") is not None)
    press(qtbot, page.list.action_button("hpc"))
    qtbot.waitUntil(lambda: status(fleet).state == "ready")
    assert installs == [False, True]
    assert page.details.problems.isHidden()
    assert page.acts.check.isEnabled()
    assert page.acts.terminal.isEnabled()
    for action in (page.acts.deploy, page.acts.undeploy):
        assert not action.isEnabled()


def test_warnings_of_the_check_are_shown_and_a_missing_agent_is_installed(
    fleet: FleetModel, show: Show, qtbot: QtBot, answers: list[Check], installs: list[bool]
) -> None:
    slow = TorchyardError("hpc kills jobs 5 s after it asks them to end (KillWait).", code="kill_wait")
    answers[:] = [lambda: failed(AgentMissing("hpc", "there is no agent on hpc.")), lambda: answered(slow)]
    page = show(fleet)
    choose(qtbot, page)
    assert status(fleet).condition is HostState.NO_AGENT
    qtbot.waitUntil(lambda: page.list.action_button("hpc") is not None)
    button = page.list.action_button("hpc")
    assert button is not None
    assert button.text() == "Install"
    press(qtbot, button)
    qtbot.waitUntil(lambda: status(fleet).state == "ready")
    assert installs == [False, True]
    assert "kills jobs 5 s after" in page.details.problems.text()


def test_a_check_is_cancelled_and_an_unknown_key_is_trusted(
    fleet: FleetModel, show: Show, qtbot: QtBot, answers: list[Check], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers.insert(0, lambda: failed(KeyUnknown("hpc", "the key of hpc is not known.", fingerprint="SHA256:x")))
    page = show(fleet)
    choose(qtbot, page)
    assert page.list.action_button("hpc").text() == "Trust …"  # type: ignore[union-attr]  # The card has a button.
    trusted: list[str] = []
    monkeypatch.setattr(page, "trust", lambda *names: trusted.extend(names))
    page.acts.trust.trigger()
    assert trusted == ["hpc"]
    page.acts.check.trigger()
    assert status(fleet).doing is not None
    page.acts.cancel.trigger()
    assert status(fleet).doing is None
    page._trusted("hpc")
    qtbot.waitUntil(lambda: status(fleet).state == "ready")


def test_a_cluster_whose_connection_ends_is_silent_until_there_is_another_one(
    fleet: FleetModel, show: Show, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[Callable[[], None]] = []

    class Login:
        def on_close(self, callback: Callable[[], None]) -> None:
            ends.append(callback)

    logins: list[Login | None] = [Login()]
    monkeypatch.setattr(registry, "open_login", lambda *_: logins[0])
    page = show(fleet)
    choose(qtbot, page)
    qtbot.waitUntil(lambda: len(ends) == 1)
    logins[0] = None
    ends[0]()
    qtbot.waitUntil(lambda: status(fleet).state == UNKNOWN)
    assert page.details.problems.text() == "The connection to hpc was lost."
    described = status(fleet).described
    assert described is not None
    nodes = f"14 nodes at {short_time(described)}"
    assert nodes in [one.text for one in painted_texts(page.list.viewport())]  # The last known ones stay.
    fleet.clusters.resume()
    assert status(fleet).doing is None
    logins[0] = Login()
    fleet.clusters.resume()
    qtbot.waitUntil(lambda: status(fleet).state == "ready")


def test_a_cluster_is_added_edited_and_removed_in_the_fleet_file(
    fleet: FleetModel, show: Show, qtbot: QtBot, installs: list[bool]
) -> None:
    page = show(fleet)
    choose(qtbot, page)
    page.acts.edit.trigger()
    edit = page.dialog
    assert isinstance(edit, EditClusterDialog)
    assert edit.fields["time_limit"].text() == "04:00:00"
    assert not faults_of(edit)
    edit.fields["time_limit"].clear()
    qtbot.keyClicks(edit.fields["time_limit"], "soon")
    assert "Must be a time of Slurm" in edit.rows["time_limit"].problem
    edit.fields["time_limit"].setText("08:00:00")
    edit.more.setChecked(True)
    edit.setup.setPlainText("module load python\n\nulimit -n 4096\n")
    edit.fields["port"].setText("2222")
    assert not faults_of(edit)
    edit.accept()
    text = fleet.fleet_file.read_text()
    assert text.startswith(FLEET[: FLEET.index("    login")])
    (cluster,) = fleet.inventory.clusters
    assert (cluster.time_limit, cluster.setup) == ("08:00:00", ("module load python", "ulimit -n 4096"))
    assert (cluster.login.port, cluster.login.user, cluster.account) == (2222, "lee", "nlp")
    page.acts.undo_edit.trigger()
    assert fleet.inventory.clusters[0].login.port is None
    assert fleet.inventory.clusters[0].time_limit == "04:00:00"
    page.acts.add_cluster.trigger()
    add = page.dialog
    assert isinstance(add, AddClusterDialog)
    qtbot.keyClicks(add.fields["name"], "gpu-a")
    add.accept()
    assert add.rows["name"].problem == "The fleet has an entry “gpu-a” already."
    add.fields["name"].setText("big")
    add.local.setChecked(True)
    add.accept()
    assert [one.name for one in fleet.inventory.clusters] == ["hpc", "big"]
    assert fleet.inventory.clusters[1].login.local
    assert page.list.chosen == ["big"]
    assert not any(installs)
    qtbot.waitUntil(lambda: fleet.clusters.all[1].doing is None)
    page.count_bookings = lambda dialog, clusters: dialog.show_bookings(len(clusters) + 1)
    page.acts.remove.trigger()
    assert isinstance(page.dialog, RemoveHostsDialog)
    shown = [one.text() for one in page.dialog.findChildren(QLabel)]
    assert "You have 2 bookings of its nodes. Slurm keeps their reservations: cancel them first." in shown
    page.dialog.accept()
    assert page.rows.names == ["gpu-a", "hpc"]


def test_the_cores_of_a_node_are_those_of_its_shape_if_the_agent_names_the_nodes(fleet: FleetModel) -> None:
    (known,) = fleet.clusters.all
    assert fleet.clusters.cpus_of("hpc", "n2") is None
    fleet.clusters.put(known.checked(checked(), datetime.now(UTC)))
    assert fleet.clusters.cpus_of("hpc", "n2") is None, "an older agent only counts the nodes"
    shapes = [{**SHAPES[0], "names": ["n1"]}, {**SHAPES[1], "names": ["n2"]}]
    description = ClusterDescription({**ANSWER, "nodes": shapes}, "")
    fleet.clusters.put(known.checked(ClusterCheck("hpc", "gpu", description, None), datetime.now(UTC)))
    assert fleet.clusters.cpus_of("hpc", "n2") == 64
    assert fleet.clusters.cpus_of("other", "n2") is None


def test_a_fleet_with_clusters_only_is_no_empty_page(fleet: FleetModel, show: Show, qtbot: QtBot) -> None:
    fleet.fleet_file.write_text(FLEET.replace("hosts:\n  - {name: gpu-a}", "hosts: []"))
    fleet.refresh()
    page = show(fleet)
    choose(qtbot, page)
    assert not page.empty.isVisible()
    qtbot.waitUntil(lambda: page.summary.text() == "hpc answers")
    assert fleet_texts(fleet) == [("ok", "hpc: ready")]
