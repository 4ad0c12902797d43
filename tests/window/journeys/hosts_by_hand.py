"""Adds, trusts and deploys three hosts, opens a terminal, edits the hosts together, filters them by state, and
undeploys them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QPoint
from PySide6.QtWidgets import QApplication

from tests.agent.fake_nvml import FakeGpu
from tests.lab import Lab
from tests.lab.hosts.gpus import give_gpus
from tests.window.user import User, xdotool
from torchyard_core.fleet.inventory import read_fleet

HOSTS = ("gpu-a", "gpu-b", "gpu-c")
PYTHON = "/root/env/bin/python"


@contextmanager
def prepared(home: Path) -> Iterator[None]:
    """Provides an empty fleet file and three hosts without an agent, whose addresses are in environment variables.

    Two of the hosts have GPUs.
    """
    home.mkdir(parents=True)
    (home / "fleet.yaml").write_text("version: 1\nhosts: []\n")
    with Lab(3, directory=home.parent / "lab") as lab:
        for host in lab.hosts:
            (host.home / "env/bin").mkdir(parents=True)
            (host.home / "env/bin/python").symlink_to("/usr/bin/python3")
            if host.name != "gpu-c":
                names = [f"GPU-{host.name}-{number}" for number in range(4)]
                give_gpus(host, [FakeGpu(name, name="NVIDIA H100 80GB HBM3", memory_mb=81559) for name in names])
        user_home = home.parent / "user"
        user_home.mkdir()
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("HOME", str(user_home))
            environment.delenv("SSH_AUTH_SOCK", raising=False)
            environment.setenv("LAB_KEY", str(lab.identity_file))
            places = [f"{host.name}={host.user}@{host.address}" for host in lab.hosts]
            environment.setenv("LAB_HOSTS", " ".join(places))
            environment.setenv("LAB_HOME", str(lab.hosts[0].home))
            environment.setenv("TERMINAL", "xterm")
            environment.setenv("LAB_KEYS", " ".join(host.host_key_fingerprint for host in lab.hosts))
            yield


def journey(user: User) -> None:
    page = user.show_page("fleet")
    user.picture("no-hosts")
    for place in os.environ["LAB_HOSTS"].split():
        add(user, page, *place.replace("@", "=").split("="))
    user.expect(lambda: states(page) == ["key unknown"] * 3, "three keys are not known")
    user.picture("keys-unknown")
    trust(user, page)
    deploy(user, page)
    open_terminal(user, page)
    choose_python(user, page)
    filter_by_state(user, page)
    undeploy(user, page)


def states(page: Any) -> list[str]:
    return [str(status.condition) for status in page.model.hosts if status.doing is None]


def add(user: User, page: Any, name: str, login: str, address: str) -> None:
    user.key("ctrl+shift+h")
    user.expect(lambda: page.dialog is not None and page.dialog.isActiveWindow(), "the dialog to add a host")
    for key, text in (("name", name), ("address", address), ("user", login), ("identity_file", os.environ["LAB_KEY"])):
        user.click(user.gui(lambda key=key: page.dialog.fields[key]))
        user.type(text)
    user.click(user.button("Add host", page.dialog))
    user.expect(lambda: page.dialog is None and page.list.chosen == [name], f"{name} is added")


def trust(user: User, page: Any) -> None:
    user.click(card(user, page, "gpu-a"))
    user.key("shift+Down", "shift+Down")
    user.expect(lambda: page.list.chosen == list(HOSTS), "three hosts are selected")
    user.key("ctrl+shift+k")
    user.expect(lambda: page.dialog is not None and all(row.box.isEnabled() for row in page.dialog.rows.values()))
    shown = user.gui(lambda: [row.shown.text() for row in page.dialog.rows.values()])
    assert shown == os.environ["LAB_KEYS"].split()
    user.picture("trust-three")
    for name in HOSTS:
        user.click(user.gui(lambda name=name: page.dialog.rows[name].box), QPoint(10, 8))
    user.click(user.button("Trust 3 keys"))
    user.expect(lambda: states(page) == ["no agent"] * 3, "the hosts answer without agent")
    answers = ["3 of 3 hosts answer", "3 without agent"]
    user.expect(lambda: user.window.status_line.texts[:2] == answers, "the status bar counts the same")


def deploy(user: User, page: Any) -> None:
    user.click(user.button("Deploy", page.details))
    user.expect(lambda: states(page) == ["degraded"] * 3, "the agents are deployed; torch is missing")
    focused = user.gui(QApplication.focusWidget)
    assert focused is page.list, focused
    user.click(card(user, page, "gpu-a"))
    user.expect(lambda: "°C" in page.details.gpus.heat(page.details.gpus.gpus[0]), "temperature and power")
    user.picture("deployed")


def open_terminal(user: User, page: Any) -> None:
    """Opens a real terminal on the first host, and types a command into it."""
    made_there = Path(os.environ["LAB_HOME"], "from-the-terminal")
    user.click(user.button("Terminal", page.details))
    xdotool("search", "--sync", "--onlyvisible", "--class", "XTerm", "windowactivate", "--sync")
    # Text that is typed before the host's shell reads it stays in the terminal's input buffer.
    user.type(f"touch {made_there.name}\n")
    user.expect(made_there.exists, "the command has run on the host")
    user.picture("terminal")
    user.type("exit\n")
    user.expect(user.window.isActiveWindow, "the terminal closes with its shell")


def choose_python(user: User, page: Any) -> None:
    user.click(card(user, page, "gpu-a"))
    user.key("ctrl+a", "F2")
    user.expect(lambda: page.dialog is not None and page.dialog.isActiveWindow(), "the dialog to edit three hosts")
    user.click(user.gui(lambda: page.dialog.more))
    picker = user.gui(lambda: page.dialog.interpreters)
    user.gui(lambda: page.dialog.focus_field("python"))
    user.click(picker.button)
    user.expect(lambda: picker.list.isVisible() and picker.list.count() > 0, "the interpreters of the hosts")
    paths = user.gui(lambda: [picker.list.item(row).text().split("\n")[0] for row in range(picker.list.count())])
    assert PYTHON in paths, paths
    user.key(*["Down"] * paths.index(PYTHON), "Return")
    user.expect(lambda: page.dialog.fields["python"].text() == PYTHON, "Enter chooses it")
    user.picture("edit-three")
    user.click(user.button("Save", page.dialog))
    user.expect(lambda: page.dialog is None and page.toast.isVisible(), "the edit is reported")
    assert [host.python for host in read_fleet(page.model.fleet_file).hosts] == [PYTHON] * 3
    user.expect(
        lambda: all((status.found.get("python") or {}).get("path") == PYTHON for status in page.model.hosts),
        "the hosts use it",
    )


def filter_by_state(user: User, page: Any) -> None:
    user.expect(
        lambda: page.state_filter.itemText(page.state_filter.count() - 1) == "Degraded (3)",
        "the filter lists the states after the edit",
    )
    user.gui(lambda: page.state_filter.setFocus())
    user.key("End")
    user.expect(lambda: page.state_filter.state is not None and page.rows.names == list(HOSTS), "all are degraded")
    user.key("Home")
    user.expect(lambda: page.state_filter.state is None, "all states")


def undeploy(user: User, page: Any) -> None:
    user.click(card(user, page, "gpu-c"))
    user.click(user.button("Undeploy …", page.details))
    user.expect(lambda: page.dialog is not None and page.dialog.isActiveWindow(), "the question")
    user.picture("undeploy")
    user.click(user.button("Undeploy", page.dialog))
    user.expect(lambda: states(page) == ["degraded", "degraded", "no agent"], "the agent is gone")
    assert user.gui(lambda: page.notice.text) == "Agent removed from gpu-c."
    user.expect(lambda: "gpu-c has no agent" in user.window.status_line.texts, "the status bar says so")
    user.picture("undeployed")


def card(user: User, page: Any, name: str) -> Any:
    """Returns a point on a host's card."""

    def find() -> Any:
        rect = page.list.card_rect(page.rows.index_of(name))
        return page.list.viewport().mapToGlobal(rect.topLeft() + (rect.center() - rect.topLeft()) / 4)

    return user.gui(find)
