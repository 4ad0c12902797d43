"""Tests of how a desktop adds workers to a live run. The links to the hosts only record the requests."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from torchyard_core.errors import AgentRefused, HostError, RunFailed, UsageError
from torchyard_core.launch import growth
from torchyard_core.launch.checks.check import Check
from torchyard_core.launch.growth import Growth, check_capacity, choose_pool, plan_added
from torchyard_core.launch.progress import Cancelled
from torchyard_core.launch.runs.history import RunRecord
from torchyard_core.topology.file import topology_from_text
from torchyard_core.topology.host_facts import HostFacts
from torchyard_core.topology.model import Topology

TEXT = """
version: 1
name: digits
strategy: {kind: all_reduce, on_worker_loss: continue}
pools:
- {name: workers, role: worker, replicas: 2, min_replicas: 1, cpus: 2, memory_gb: 4}
- {name: scorer, role: evaluator, replicas: 1}
program: {script: train.py}
"""
RUN = "20261123-091502-3f9c"
ROOT = "ab" * 32


def topology(text: str = TEXT) -> Topology:
    found = topology_from_text(text).topology
    assert found is not None
    return found


class RecordingLink:
    """A link that records the method of each request, and answers it with a given value or error."""

    ssh_address = archive = "1"
    is_open = True

    def __init__(self, host: str, calls: list[tuple[str, str, dict[str, Any]]], answers: dict[str, Any]):
        self.host = host
        self._calls = calls
        self._answers = answers

    def call(self, method: str, params: dict[str, Any], timeout_s: float = 60.0) -> Any:
        self._calls.append((self.host, method, params))
        answer = self._answers.get(method, {})
        if isinstance(answer, Exception):
            raise answer
        return answer

    def submit(self, method: str, params: dict[str, Any]) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(self.call(method, params))
        except Exception as error:
            future.set_exception(error)
        return future


class Scenario:
    """Adds a worker on gpu-c to a run that has one worker on gpu-a and one on gpu-b."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, text: str = TEXT):
        self.calls: list[tuple[str, str, dict[str, Any]]] = []
        self.network = Check("network", "", True, "fine")
        self.answers: dict[str, dict[str, Any]] = {
            "gpu-a": {
                "run.invite": {
                    "primary": {"host": "gpu-a", "address": "10.0.0.1", "gang_port": 4000},
                    "secret": "5e" * 32,
                    "replicas": [{"name": f"worker-{one}", "host": f"gpu-{'ab'[one]}"} for one in range(2)],
                }
            },
            "gpu-b": {},
            "gpu-c": {
                "run.prepare": {
                    "address": "10.0.0.3",
                    "interface": "eth0",
                    "ports": [5001],
                    "gang_port": 5000,
                    "run_dir": "/agent/runs/1",
                }
            },
        }
        self.answers["gpu-b"]["run.hold"] = {**self.answers["gpu-c"]["run.prepare"], "address": "10.0.0.2"}
        self.links = {name: RecordingLink(name, self.calls, self.answers[name]) for name in self.answers}
        planned = [{"name": f"worker-{one}", "host": f"gpu-{'ab'[one]}", "gpus": []} for one in range(2)]
        self.own = RunRecord(
            *(RUN, "digits", "", "gpu-a", ("gpu-a", "gpu-b"), "", "running"),
            topology=text,
            snapshot=ROOT,
            planned=planned,
        )
        record = {"topology": text, "hosts": ["gpu-a", "gpu-b"], "replicas": planned}
        self.shown = {"record": {"snapshot": ROOT, "record": record}}
        self.events: list[dict[str, Any]] = []
        for name in ("check_host", "check_versions"):
            monkeypatch.setattr(growth, name, lambda *arguments: [])
        preflight = SimpleNamespace(checks=lambda launcher, progress: [])
        monkeypatch.setattr(growth, "PreflightClient", lambda context: preflight)
        monkeypatch.setattr(growth, "provide_code", lambda *arguments: None)
        monkeypatch.setattr(growth, "check_added_host", lambda *arguments: [self.network])
        monkeypatch.setattr(
            growth, "Follower", lambda *arguments, **more: SimpleNamespace(events=lambda: iter(self.events))
        )

    def growth(self, host: str = "gpu-c", count: int = 1) -> Growth:
        facts = [HostFacts(name, address=name) for name in self.links]
        hosts: Any = SimpleNamespace(
            known=lambda: facts,
            look=lambda name, python: {},
            reach=lambda names, arrived: {name: self.links[name] for name in names},
        )
        links: Any = {name: self.links[name] for name in ("gpu-a", "gpu-b")}
        return Growth(self.own, self.shown, host, count, None, hosts, links)

    def methods(self, host: str) -> list[str]:
        return [method for at, method, _ in self.calls if at == host]

    def params(self, method: str) -> dict[str, Any]:
        return next(params for _, name, params in self.calls if name == method)


@pytest.fixture
def scenario(monkeypatch: pytest.MonkeyPatch) -> Scenario:
    return Scenario(monkeypatch)


def joined(*names: str) -> dict[str, Any]:
    return {"event": "membership", "step": 812, "members": ["worker-0", "worker-1", *names], "lost": []}


def test_a_new_host_is_prepared_with_the_runs_secret_before_the_primary_adds_it(scenario: Scenario) -> None:
    scenario.events = [joined("worker-2")]
    growing = scenario.growth()
    added = growing.run()
    assert (added.names, added.step, added.workers, added.planned) == (("worker-2",), 812, 3, 3)
    assert scenario.methods("gpu-a") == ["run.invite", "run.grow"]
    assert scenario.methods("gpu-c") == ["run.remove", "run.prepare", "run.join"]
    prepare = scenario.params("run.prepare")
    assert (prepare["secret"], prepare["snapshot"], prepare["towards"]) == ("5e" * 32, ROOT, "10.0.0.1")
    assert scenario.params("run.join")["primary"]["gang_port"] == 4000
    grow = scenario.params("run.grow")
    assert grow["member"] == {"host": "gpu-c", "address": "10.0.0.3", "gang_port": 5000}
    [plan] = grow["replicas"]
    assert (plan["name"], plan["address"], plan["gang"], plan["index"]) == ("worker-2", "10.0.0.3:5001", "trainers", 2)
    assert plan["env"]["TORCHYARD_REPLICA"] == "worker-2"
    assert growing.changes["hosts"] == ("gpu-a", "gpu-b", "gpu-c")
    assert [one["name"] for one in growing.changes["planned"]] == ["worker-0", "worker-1", "worker-2"]


def test_a_host_of_the_run_only_holds_further_ports(scenario: Scenario) -> None:
    scenario.answers["gpu-b"]["run.hold"]["ports"] = [5001, 5002]
    scenario.events = [joined("worker-2"), joined("worker-2", "worker-3")]
    assert scenario.growth("gpu-b", 2).run().names == ("worker-2", "worker-3")
    assert scenario.methods("gpu-b") == ["run.hold"]
    assert scenario.params("run.grow")["member"] is None


@pytest.mark.parametrize("failing", ["check", "prepare", "join", "grow", "cancel"])
def test_a_failure_before_the_workers_are_added_releases_the_host(scenario: Scenario, failing: str) -> None:
    growing = scenario.growth()
    refusal = AgentRefused("gpu-c", "no port is free", code="no_port")
    if failing == "check":
        scenario.network = Check("network", "gpu-c", False, "gpu-c does not reach gpu-a")
    elif failing == "grow":
        scenario.answers["gpu-a"]["run.grow"] = AgentRefused("gpu-a", "it is stopping", code="cannot_grow")
    elif failing == "cancel":
        growing.on_check = lambda check: growing.cancel() if check.name == "network" else None
        growing.__post_init__()
    else:
        scenario.answers["gpu-c"][f"run.{failing}"] = refusal
    with pytest.raises((RunFailed, AgentRefused, Cancelled)):
        growing.run()
    assert ("run.grow" in scenario.methods("gpu-a")) == (failing == "grow")
    assert scenario.methods("gpu-c")[-1] == "run.abort"
    assert growing.changes == {}


def test_after_an_unanswered_request_the_new_host_is_not_stopped_since_it_may_be_a_member(scenario: Scenario) -> None:
    scenario.answers["gpu-a"]["run.grow"] = HostError("gpu-a", "the connection was lost")
    with pytest.raises(HostError):
        scenario.growth().run()
    assert scenario.methods("gpu-c")[-1] == "run.join"


def test_withdrawn_workers_are_reported_with_the_reason(scenario: Scenario) -> None:
    scenario.events = [{"event": "withdrawal", "replica": "worker-2", "reason": "exited with 1: ValueError: bad"}]
    growing = scenario.growth()
    with pytest.raises(RunFailed, match=r"worker-2 did not join run .*, which continues as before: exited with 1: V"):
        growing.run()
    assert growing.changes == {}


def test_a_cancellation_after_the_request_withdraws_the_workers(scenario: Scenario) -> None:
    growing = scenario.growth()

    def events() -> Any:
        growing.cancel()
        yield None
        yield {"event": "withdrawal", "replica": "worker-2", "reason": "kim has interrupted their addition"}

    scenario.events = events()  # type: ignore[assignment]  # The events are read only once.
    with pytest.raises(Cancelled):
        growing.run()
    assert scenario.params("run.withdraw")["replicas"] == ["worker-2"]


def test_a_run_that_ends_meanwhile_is_reported(scenario: Scenario) -> None:
    scenario.events = [{"event": "run_ended"}]
    with pytest.raises(RunFailed, match="ended before worker-2 could join it"):
        scenario.growth().run()


def test_a_record_that_differs_from_this_computers_is_refused(scenario: Scenario) -> None:
    scenario.shown["record"]["snapshot"] = "cd" * 32
    with pytest.raises(RunFailed, match="is not what this computer launched"):
        scenario.growth().run()
    assert scenario.calls == []


def test_another_host_cannot_join_a_run_whose_primary_listens_on_this_computer_only(scenario: Scenario) -> None:
    scenario.answers["gpu-a"]["run.invite"]["primary"]["address"] = "127.0.0.1"
    with pytest.raises(RunFailed, match=r"takes connections at 127\.0\.0\.1 only"):
        scenario.growth().run()
    assert scenario.methods("gpu-c") == []


ONE_CHIEF = ("role: worker, replicas: 2, min_replicas: 1", "role: chief, replicas: 1")


@pytest.mark.parametrize(
    ("change", "named", "message"),
    [
        (("continue", "restart"), None, "on_worker_loss: restart"),
        (("all_reduce, on_worker_loss: continue", "hogwild"), None, "its strategy is hogwild"),
        (ONE_CHIEF, None, "no pool of workers"),
        (("min_replicas: 1", "min_replicas: 1, gpus: 1"), None, "the pool `workers` trains on GPUs"),
        (("", ""), "scorer", "no worker pool `scorer`"),
        (("name: scorer, role: evaluator", "name: more, role: worker"), None, "workers, more"),
    ],
    ids=["restart", "another strategy", "a chief alone", "GPUs", "evaluators", "two pools"],
)
def test_pools_that_cannot_grow(change: tuple[str, str], named: str | None, message: str) -> None:
    with pytest.raises((RunFailed, UsageError), match=message):
        choose_pool(topology(TEXT.replace(*change)), named)


def test_new_workers_are_numbered_after_all_others() -> None:
    planned = plan_added(topology(), 0, ["worker-0", "worker-7", "evaluator-9"], "gpu-c", 2)
    assert [one.name for one in planned.replicas] == ["worker-8", "worker-9"]
    assert choose_pool(topology(), None)[1].name == "workers"


def test_the_capacity_of_a_host_counts_the_workers_that_it_has() -> None:
    pool = topology().pools[0]
    facts = replace(HostFacts("gpu-c", address="gpu-c"), checked=True, cpus=5, memory_gb=100.0)
    assert check_capacity(topology(), pool, facts, [], 2).ok
    refused = check_capacity(topology(), pool, facts, ["worker-0"], 2)
    assert refused.message == (
        "gpu-c has no room for 2 more workers of the pool `workers`, each with 2 CPUs and 4 GB of memory."
    )
