"""Tests of killing the desktop with SIGKILL in each state of a launch and of a run."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.end_to_end.running import started
from tests.faults.runs import Team, run_folders
from tests.waiting import wait_until

pytestmark = pytest.mark.lab

SHORT = "import time; time.sleep(1); print('done')"
IMPATIENT_S = {"waiting": 2.0, "starting": 5.0}
"""Keepers' timeouts in seconds for a silent desktop, by state. On a busy machine, a desktop may prepare that long.
"""


@pytest.mark.parametrize("state", ["checking", "sending", "waiting", "starting", "running"])
def test_a_desktop_killed_in_a_launch_leaves_a_whole_run_or_none(team: Team, state: str) -> None:
    if state in IMPATIENT_S:
        team.impatient(launch_lease_s=IMPATIENT_S[state], join_within_s=IMPATIENT_S[state])
    launching = team.desktop.start("run", team.topology(SHORT), "--json")
    started(launching, state=state)
    launching.kill()
    launching.wait(60)

    team.nothing_is_left()
    for folder in run_folders(team.lab):
        last = json.loads((folder / "journal.jsonl").read_text().splitlines()[-1])
        assert last["event"] == "run_ended"
    if state == "running":
        assert {_state(folder) for folder in run_folders(team.lab)} == {"succeeded"}


def test_a_prepared_launch_ends_with_the_connection_of_its_desktop(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(*_: object) -> None:
        team.fleet.close()
        raise KeyboardInterrupt

    monkeypatch.setattr("torchyard_core.launch.launch.check_connectivity", cut)
    # Without `take_back`, the desktop exits without cleaning up, as it would after SIGKILL.
    monkeypatch.setattr("torchyard_core.launch.launch.take_back", lambda *_: set())
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        team.launch(team.topology(SHORT))

    wait_until(lambda: not run_folders(team.lab))
    team.nothing_is_left()
    assert time.monotonic() - began < 120


def test_stopping_a_launch_that_never_began_frees_all_its_hosts(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, the other hosts would hold GPUs for a run that is shown as stopped."""

    def leave(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("torchyard_core.launch.launch.check_connectivity", leave)
    monkeypatch.setattr("torchyard_core.launch.launch.take_back", lambda *_: set())
    with pytest.raises(KeyboardInterrupt):
        team.launch(team.topology(SHORT))

    # `runs stop` does not use the connection over which the launch was prepared.
    assert team.desktop.torchyard("runs", "stop", "last").returncode == 0
    team.nothing_is_left()


def test_a_desktop_killed_while_it_sends_leaves_no_half_file(team: Team, tmp_path: Path) -> None:
    file = team.topology(SHORT)
    for number in range(8):
        (file.parent / f"data-{number}").write_bytes(bytes([number]) * 2_000_000)
    team.lab.hosts[0].shape("20mbit")
    launching = team.desktop.start("run", file, "--json")
    started(launching, "progress")

    launching.kill()
    launching.wait(60)

    team.nothing_is_left()
    assert run_folders(team.lab) == []
    stores = [host.home / ".torchyard" / "store" for host in team.lab.hosts]
    wait_until(lambda: not any(part for store in stores for part in store.rglob("*.part")))
    # The hosts keep completely received files, so the next launch sends only the remaining files.
    team.lab.hosts[0].unshape()
    assert team.launch(file).ended()["state"] == "succeeded"


def _state(folder: Path) -> str:
    return str(json.loads((folder / "journal.jsonl").read_text().splitlines()[-1])["state"])
