"""Tests that the planner learns from a host's telemetry who uses which GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pytestqt.qtbot import QtBot

from tests.core.examples import topology
from torchyard_core.errors import AgentMissing, TorchyardError
from torchyard_core.fleet.gpu_occupancy import SAMPLE_VALID_S
from torchyard_core.fleet.host_check import DEGRADED, READY, HostCheck, failed_check
from torchyard_core.home import Home
from torchyard_core.launch.rank_assignment import plan
from torchyard_core.launch.runs.history import History, RunRecord
from torchyard_core.topology.host_facts import HostFacts
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.bridge.host_states import HostState
from torchyard_gui.bridge.host_status import HostStatus
from torchyard_gui.bridge.planner.host_availability import HostAvailability

GPUS = [{"index": index, "uuid": f"GPU-{index}", "name": "NVIDIA L40S", "memory_mb": 46068} for index in range(2)]


def sample(*users: str) -> dict[str, Any]:
    """Returns a telemetry sample in which each GPU has the given user, or no user."""
    return {
        "gpus": [
            {
                **gpu,
                "memory_used_mb": 900.0,
                "utilisation": 0.0,
                "problem": None,
                "processes": [{"pid": 7, "user": user, "program": "python", "replica": None}] if user else [],
            }
            for gpu, user in zip(GPUS, users, strict=True)
        ],
        "replicas": {},
    }


@pytest.fixture
def model(home: Home, qtbot: QtBot) -> Iterator[FleetModel]:
    home.fleet_file.parent.mkdir(parents=True, exist_ok=True)
    home.fleet_file.write_text("version: 1\nhosts:\n  - name: gpu-a\n")
    found = {"gpus": GPUS, "cpus": 8, "address": "gpu-a", "checked_at": "2026-11-20T09:41:00Z"}
    home.fleet_file.with_name("facts.json").write_text(json.dumps({"gpu-a": found}))
    made = FleetModel(home, home.fleet_file)
    made._statuses["gpu-a"] = made._statuses["gpu-a"].checked(HostCheck("gpu-a", READY), datetime.now(UTC))
    yield made
    made.close()


def test_an_unchecked_host_is_named_with_the_state_that_the_fleet_page_shows(home: Home, qtbot: QtBot) -> None:
    home.fleet_file.parent.mkdir(parents=True, exist_ok=True)
    home.fleet_file.write_text("version: 1\nhosts:\n  - name: gpu-a\n")
    model = FleetModel(home, home.fleet_file)

    def warning() -> str:
        drawn = plan(topology("{name: workers, role: worker, replicas: 1, gpus: 1}"), model.facts())
        return next(one.message for one in drawn.problems if one.code == "unchecked-host")

    assert warning() == "gpu-a has not been checked; assuming it fits"
    for state, name in ((HostState.UNREACHABLE, "unreachable"), (HostState.KEY_CHANGED, "key changed")):
        failed = failed_check("gpu-a", state, TorchyardError("port 22 refused"))
        model._statuses["gpu-a"] = model._statuses["gpu-a"].checked(failed, datetime.now(UTC))
        assert warning() == f"gpu-a could not be checked ({name}); assuming it fits"
    missing = failed_check("gpu-a", HostState.NO_AGENT, AgentMissing("gpu-a", "no agent is installed"))
    model._statuses["gpu-a"] = model._statuses["gpu-a"].checked(missing, datetime.now(UTC))
    assert warning() == "gpu-a has no agent yet; assuming it fits"
    model.close()


def facts(model: FleetModel) -> HostFacts:
    (host,) = model.facts()
    return host


def test_who_uses_a_gpu_is_unknown_until_a_sample_tells(model: FleetModel, qtbot: QtBot) -> None:
    assert facts(model).checked
    assert not facts(model).use_known
    with qtbot.waitSignal(model.facts_changed):
        model._sampled("gpu-a", sample("kim", ""))
    assert facts(model).use_known
    assert [facts(model).user_of(gpu) for gpu in facts(model).gpus] == ["kim", None]


def test_a_sample_that_says_the_same_changes_nothing(model: FleetModel, qtbot: QtBot) -> None:
    with qtbot.waitSignal(model.facts_changed):
        model._sampled("gpu-a", sample("kim", ""))
    before = facts(model)
    with qtbot.assertNotEmitted(model.facts_changed, wait=200):
        model._sampled("gpu-a", sample("kim", ""))
    assert facts(model) is before
    with qtbot.waitSignal(model.facts_changed):
        model._sampled("gpu-a", sample("", ""))
    assert facts(model).busy_gpus == frozenset()


def test_a_host_that_falls_silent_makes_it_unknown_again(model: FleetModel, qtbot: QtBot) -> None:
    model._sampled("gpu-a", sample("kim", ""))
    assert facts(model).use_known
    with qtbot.waitSignal(model.facts_changed):
        model._silent("gpu-a", TorchyardError("it is gone.", code="lost"), datetime.now(UTC))
    assert not facts(model).use_known


def test_a_sample_older_than_five_seconds_says_nothing(model: FleetModel, qtbot: QtBot) -> None:
    model._sampled("gpu-a", sample("kim", ""))
    model._tick()
    assert facts(model).use_known
    model._sampled_at["gpu-a"] -= SAMPLE_VALID_S
    with qtbot.waitSignal(model.facts_changed):
        model._tick()
    assert not facts(model).use_known


def test_the_last_samples_expire_while_no_page_watches(model: FleetModel, qtbot: QtBot) -> None:
    model._expiry.setInterval(10)
    model.watch(True, "bookings")
    model._sampled("gpu-a", sample("kim", ""))
    model._sampled_at["gpu-a"] -= SAMPLE_VALID_S
    with qtbot.waitSignal(model.use_changed):
        model.watch(False, "bookings")
    assert not facts(model).use_known


def test_a_display_server_alone_does_not_use_a_gpu(model: FleetModel) -> None:
    shown = sample("root", "kim")
    shown["gpus"][0]["processes"][0]["draws_screen"] = True
    model._sampled("gpu-a", shown)
    status = model.status("gpu-a")
    assert status is not None
    assert status.gpus_in_use == 1
    assert facts(model).busy_gpus == {"GPU-1"}


def test_the_last_watcher_ends_the_watch(model: FleetModel) -> None:
    model.watch(True, "topology")
    model.watch(True)
    model.watch(False)
    assert model._clock.isActive()
    model.watch(False, "topology")
    assert not model._clock.isActive()


def test_ones_own_run_is_told_by_its_name(model: FleetModel, home: Home) -> None:
    run_id = "20261121-093000-7f3e"
    History(home.history).save(RunRecord(run_id, "digits", "", "gpu-a", ("gpu-a",), submitted="", state="running"))
    told = sample("lee", "kim")
    told["gpus"][0]["processes"][0]["replica"] = f"{run_id}/worker-0"
    told["gpus"][1]["processes"][0]["replica"] = "20261121-000000-else/worker-0"
    facts(model)
    model._sampled("gpu-a", told)
    assert facts(model).gpu_users == {"GPU-0": "your run digits", "GPU-1": "kim"}
    full = topology("{name: workers, role: worker, replicas: 1, gpus: 1}")
    planned = plan(full, [facts(model)])
    assert "all of them are taken (1 used by your run digits, 1 used by kim)" in planned.problems[0].message


def test_gpus_that_others_have_booked_are_taken_by_name(model: FleetModel, qtbot: QtBot) -> None:
    facts(model)
    with qtbot.waitSignal(model.facts_changed):
        model.set_booked({"GPU-0": "kim until 17:00"})
    host = facts(model)
    assert host.busy_gpus == {"GPU-0"}
    assert host.why_taken(host.gpus[0]) == "booked by kim until 17:00"
    assert host.why_taken(host.gpus[1]) is None
    full = topology("{name: workers, role: worker, replicas: 1, gpus: 2}")
    assert "the most any host has free is 1" in plan(full, [host]).problems[0].message
    pinned = topology("{name: workers, role: worker, replicas: 1, gpus: 1}", pins='{worker-0: "gpu-a:0"}')
    assert "which is booked by kim until 17:00" in plan(pinned, [host]).problems[0].message
    with qtbot.waitSignal(model.facts_changed):
        model.set_booked({})
    assert facts(model).busy_gpus == frozenset()


def test_a_host_without_gpus_that_another_user_has_booked_is_not_used(model: FleetModel, home: Home) -> None:
    planned = HostAvailability(model, home.history)
    (host,) = model.inventory.hosts
    status = HostStatus(host, HostFacts("big-cpu", checked=True, cpus=64))
    assert not planned.of(status).booked_by
    planned.set_booked({"big-cpu:cpu": "kim until 17:00"})
    servers = topology("{name: servers, role: ps, replicas: 1}")
    said = [problem.message for problem in plan(servers, [planned.of(status)]).problems]
    assert "ps-0 cannot be placed: big-cpu is booked by kim until 17:00" in said
    planned.stop()


def test_a_change_of_state_is_announced_though_the_facts_are_the_same(model: FleetModel, qtbot: QtBot) -> None:
    before = facts(model)
    with qtbot.waitSignal(model.facts_changed):
        model._change("gpu-a", state=DEGRADED)
    assert model.states() == {"gpu-a": HostState.DEGRADED}
    assert facts(model) is before
