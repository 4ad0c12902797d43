"""Simulated hosts of a run. Their links send journals, telemetry and logs as a daemon does."""

from __future__ import annotations

import base64
import math
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from tests.core.examples import host, topology
from torchyard_agent.protocol.log_times import Entry
from torchyard_core.errors import AgentRefused, HostError, Unreachable
from torchyard_core.formatting import utc_timestamp
from torchyard_core.home import Home
from torchyard_core.launch.launch import planned_replicas
from torchyard_core.launch.rank_assignment import Plan, plan
from torchyard_core.launch.runs.history import History, RunRecord
from torchyard_core.topology.file import dump
from torchyard_core.topology.host_facts import HostFacts
from torchyard_core.topology.model import Topology
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.bridge.runs_model import RunsModel

EPOCH = "e1"
BEGAN = 1_760_000_000.0


class ActingLink:
    """The link to one host, and its subscribers."""

    def __init__(self, cast: Acting, name: str):
        self.host = name
        self.hello = {"version": "1", "sha256": "", "pid": 1}
        self.python = "3.11 at /usr/bin/python3"
        self.ssh_address = ""
        self.archive = ""
        self.is_open = True
        self._cast = cast
        self._listeners: dict[str, list[Callable[[dict[str, Any]], None]]] = {}
        self._on_close: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def submit(self, method: str, params: dict[str, Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self.asked.append((method, params))
        if not self.is_open:
            future.set_exception(Unreachable(self.host, f"the connection to {self.host} was lost."))
            return future
        try:
            future.set_result(self._cast.answer(self, method, params))
        except (AgentRefused, HostError) as error:
            future.set_exception(error)
        return future

    def call(self, method: str, params: dict[str, Any] | None = None, timeout_s: float = 60.0) -> Any:
        return self.submit(method, params or {}).result(timeout_s)

    def listen(self, method: str, listener: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
        listeners = self._listeners.setdefault(method, [])
        listeners.append(listener)
        return lambda: listeners.remove(listener) if listener in listeners else None

    def on_close(self, callback: Callable[[], None]) -> None:
        with self._lock:
            if self.is_open:
                self._on_close.append(callback)
                return
        callback()

    def say(self, method: str, params: dict[str, Any]) -> None:
        for listener in list(self._listeners.get(method, [])):
            listener(params)

    def hears(self, method: str) -> int:
        """Returns the number of subscribers to a topic."""
        return len(self._listeners.get(method, []))

    def break_off(self) -> None:
        with self._lock:
            self.is_open = False
            callbacks, self._on_close = self._on_close, []
        for callback in callbacks:
            callback()

    def close(self) -> None:
        self.is_open = False


class Acting:
    """A simulated run: `play` adds journal entries, and `measure` sends samples."""

    def __init__(
        self,
        hosts: Sequence[HostFacts] = (host("gpu-a", 2), host("gpu-b", 2)),
        *pools: str,
        name: str = "digits",
        run_id: str = "20251009-101010-acted",
        design: Topology | None = None,
    ):
        """Creates the run. Its topology is `design` if given, and otherwise consists of `pools`."""
        pools = pools or (
            "{name: chief, role: chief, replicas: 1, gpus: 1}",
            "{name: workers, role: worker, replicas: 3, gpus: 1}",
        )
        self.facts = tuple(hosts)
        self.topology = design or topology(*pools)
        self.plan: Plan = plan(self.topology, self.facts)
        self.name, self.run_id = name, run_id
        self.links = {facts.name: ActingLink(self, facts.name) for facts in self.facts}
        self.down: set[str] = set()
        """Unreachable hosts."""
        self.journal: list[dict[str, Any]] = []
        self.alive = True
        self.is_forgotten = False
        """Whether the run's hosts have deleted the run."""
        self.logs: dict[str, bytes] = {}
        self.log_times: dict[str, list[Entry]] = {}
        """The sizes of each log, with their times. Data that is added without a time gets one when it is first read."""
        self.stopped: list[dict[str, Any]] = []
        self.files = ["outputs/model.pt"]
        self.checkpoints: list[dict[str, Any]] = []
        self.step = 0
        self.random = random.Random(7)

    @property
    def is_followed(self) -> bool:
        """Returns whether the journal and the telemetry of all hosts have subscribers."""
        asked = [method for method, _ in self.links[self.plan.primary].asked]
        return "state.subscribe" in asked and all(link.hears("telemetry") for link in self.links.values())

    # Methods that the window calls on a fleet

    @property
    def hosts(self) -> dict[str, HostFacts]:
        return {facts.name: facts for facts in self.facts}

    def known(self) -> Sequence[HostFacts]:
        return self.facts

    def use(self, hosts: object) -> None:
        pass

    def interpreters(self, names: Iterable[str]) -> dict[str, str | None]:
        return dict.fromkeys(names)

    def open_link(self, name: str) -> ActingLink | None:
        link = self.links.get(name)
        return link if link is not None and link.is_open else None

    def link(self, name: str, *, install: bool = True, **_: object) -> ActingLink:
        if name in self.down:
            raise Unreachable(name, f"{name} does not answer on port 22.")
        if not self.links[name].is_open:
            self.links[name] = ActingLink(self, name)
        return self.links[name]

    def links_(self, names: Iterable[str]) -> dict[str, ActingLink | HostError]:
        found: dict[str, ActingLink | HostError] = {}
        for name in names:
            try:
                found[name] = self.link(name)
            except HostError as error:
                found[name] = error
        return found

    def look(self, name: str, python: str | None = None) -> dict[str, Any]:
        """Returns a host's facts as the agent sends them."""
        facts = self.hosts[name]
        gpus = [
            {"index": gpu.index, "uuid": gpu.uuid, "name": gpu.name, "memory_mb": gpu.memory_mb} for gpu in facts.gpus
        ]
        return {"gpus": gpus, "cpus": facts.cpus, "memory_gb": facts.memory_gb}

    def each(self, names: Iterable[str], ask: Callable[[str], Any], arrived: Any = None) -> dict[str, Any]:
        return {name: ask(name) for name in names}

    def close(self) -> None:
        pass

    # Methods that answer requests to the hosts

    def answer(self, link: ActingLink, method: str, params: dict[str, Any]) -> Any:
        if self.is_forgotten and "run_id" in params:
            raise AgentRefused(link.host, f"there is no run {self.run_id} on {link.host}", code="no_run")
        if method == "run.list":
            return [] if self.is_forgotten else [self._line()]
        if method == "run.show":
            return self._shown()
        if method == "state.subscribe":
            seen = params.get("seen")
            after = [entry for entry in self.journal if seen is None or entry["seq"] > seen[1]]
            link.say("state", {"run_id": self.run_id, "entries": after, "alive": self.alive})
            return {}
        if method == "logs.read":
            return self._log(params)
        if method == "telemetry.sample":
            return self.sample(link.host, time.time() - BEGAN, loss=0.5)
        if method == "run.stop":
            self.stopped.append(params)
            return {}
        if method == "checkpoints.list":
            return {"folder": "", "checkpoints": self.checkpoints}
        if method == "model.export":
            return {"path": "exports/model.pt", "size": 5}
        if method == "files.list":
            return [{"path": path, "size": 5} for path in self.files]
        if method == "files.read":
            return {"data": base64.b64encode(b"model").decode(), "next": 5, "size": 5}
        return {}

    def _record(self) -> dict[str, Any]:
        return {
            "primary": self.plan.primary,
            "hosts": list(self.plan.hosts),
            "submitted": utc_timestamp(BEGAN),
            "launched_from": "somebody@desktop",
            "topology_file": "digits.yaml",
            "topology": dump(self.topology),
            "replicas": planned_replicas(self.plan),
        }

    def _shown(self) -> dict[str, Any]:
        from torchyard_agent.protocol import journal_replay

        view = journal_replay.fold(self.run_id, self.journal)
        view["replicas"] = list(view["replicas"].values())
        return {**view, "alive": self.alive, "record": {"name": self.name, "record": self._record()}}

    def _line(self) -> dict[str, Any]:
        shown = self._shown()
        fields = {key: shown[key] for key in ("run_id", "state", "reason", "as_of", "alive")}
        return {**fields, "name": self.name, "record": self._record()}

    def _log(self, params: dict[str, Any]) -> dict[str, Any]:
        rank = params.get("local_rank", 0)
        name = f"{params['replica']}.{rank}" if rank else params["replica"]
        log = self.logs.get(name, b"")
        begin = params["offset"]
        data = log[begin : begin + min(params.get("limit", 512 * 1024), 512 * 1024)]
        end = begin + len(data)
        ended = not self.alive and end >= len(log)
        times = self.log_times.setdefault(name, [])
        if len(log) > (times[-1][0] if times else 0):
            times.append((len(log), max((own[-1][1] for own in self.log_times.values() if own), default=BEGAN) + 1))
        return {
            "data": base64.b64encode(data).decode(),
            "next": end,
            "size": len(log),
            "ended": ended,
            "times": [list(entry) for entry in times if entry[0] > begin],
        }

    # Methods that send events

    def play(self, event: str, at: float = 0.0, **fields: Any) -> None:
        """Adds a journal entry and sends it to subscribers. `at` is the entry's time in seconds after the start."""
        entry = {
            "epoch": EPOCH,
            "seq": len(self.journal) + 1,
            "time": utc_timestamp(BEGAN + at),
            "event": event,
            **fields,
        }
        self.journal.append(entry)
        primary = self.plan.primary
        if primary is not None and self.links[primary].is_open:
            self.links[primary].say("state", {"run_id": self.run_id, "entries": [entry], "alive": self.alive})

    def start(self, at: float = 1.0) -> None:
        """Starts all replicas."""
        self.play("run_state", at, state="starting")
        for replica in self.plan.replicas:
            self.play("replica_state", at, replica=replica.name, host=replica.host, state="running", exit_code=None)
        self.play("run_state", at + 0.5, state="running")

    def fail(self, name: str, reason: str, at: float = 60.0) -> None:
        """Makes one replica fail, and thereby the run."""
        self.end("failed", f"{name} {reason}", at, {name: reason})

    def end(self, state: str, reason: str, at: float = 60.0, failed: dict[str, str] | None = None) -> None:
        """Ends the run."""
        failed = failed or {}
        ended = []
        for replica in self.plan.replicas:
            how = "failed" if replica.name in failed else ("succeeded" if state == "succeeded" else "stopped")
            code = {"failed": 1, "succeeded": 0}.get(how)
            why = failed.get(replica.name, "")
            fields = {"replica": replica.name, "host": replica.host, "state": how, "exit_code": code, "reason": why}
            self.play("replica_state", at, **fields)
            ended.append({**fields, "name": replica.name, "restarts": 0})
        self.play("run_state", at + 0.1, state=state, reason=reason)
        last = {"run_id": self.run_id, "state": state, "reason": reason, "replicas": ended, "metrics": {}}
        self.play("run_ended", at + 0.1, **last, timings={"started_s": 1.5, "first_step_s": 2.0, "ended_s": at})
        self.alive = False

    def sample(
        self,
        name: str,
        at: float,
        *,
        loss: float,
        use: float = 92.0,
        slow: str = "",
        step: Mapping[str, float] | None = None,
        served: Mapping[str, float] | None = None,
    ) -> dict[str, Any]:
        """Returns a host's sample.

        Args:
            at: Time in seconds after the start.
            step: Additional values of trainers' steps.
            served: Values of servers and reducers.
        """
        own = self.plan.on_host(name)
        key = {replica.name: f"{self.run_id}/{replica.name}" for replica in own}
        jitter = self.random.uniform
        gpus = [
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "name": gpu.name,
                "memory_mb": gpu.memory_mb,
                "memory_used_mb": 31_000 + jitter(0, 400),
                "utilisation": min(100.0, use + jitter(-4, 5)),
                "power_w": 380 + jitter(-20, 20),
                "temperature_c": 66,
                "processes": [],
                "problem": None,
            }
            for replica in own
            for gpu in replica.gpus
        ]
        reports = {
            key[replica.name]: {
                "step": self.step,
                "loss": loss + jitter(-0.01, 0.01),
                "throughput": 74 + jitter(-3, 3),
                "compute_s": 0.9 if replica.name == slow else 0.5,
                **(step or {}),
            }
            for replica in own
            if replica.trains
        }
        if served is not None:
            reports |= {key[replica.name]: {**served} for replica in own if replica.role.value in ("ps", "reducer")}
        replicas = {each: {"cpu": 96 + jitter(-9, 9), "memory_mb": 2100, "processes": 5} for each in key.values()}
        return {"time": BEGAN + at, "host": {}, "gpus": gpus, "replicas": replicas, "reports": reports}

    def measure(self, at: float, **how: Any) -> None:
        """Sends a sample of each host."""
        self.step += 12
        loss = 0.41 + 1.8 * math.exp(-at / 90)
        for name in self.plan.hosts:
            link = self.links[name]
            if link.is_open and name not in self.down:
                link.say("telemetry", self.sample(name, at, loss=loss, **how))

    def note(self, home: Home, state: str = "running", at: float = 1.0, **more: Any) -> None:
        """Writes the desktop's own record of a run that it launched."""
        assert self.plan.primary is not None
        History(home.history).save(
            RunRecord(
                self.run_id,
                self.name,
                "digits.yaml",
                self.plan.primary,
                self.plan.hosts,
                submitted=utc_timestamp(BEGAN),
                state=state,
                as_of=utc_timestamp(BEGAN + at),
                topology=dump(self.topology),
                planned=planned_replicas(self.plan),
                **more,
            )
        )


class ActingFleet:
    """A fleet with several simulated runs. No host is part of two runs."""

    others = ()
    """The fleet has no clusters."""

    def __init__(self, *runs: Acting):
        self._runs = runs

    @property
    def hosts(self) -> dict[str, HostFacts]:
        return {name: facts for run in self._runs for name, facts in run.hosts.items()}

    @property
    def listing(self) -> tuple[str, ...]:
        return tuple(self.hosts)

    def known(self) -> Sequence[HostFacts]:
        return tuple(self.hosts.values())

    def use(self, hosts: object) -> None:
        pass

    def interpreters(self, names: Iterable[str]) -> dict[str, str | None]:
        return dict.fromkeys(names)

    def open_link(self, name: str) -> ActingLink | None:
        return self._of(name).open_link(name)

    def link(self, name: str, *, install: bool = True, **_: object) -> ActingLink:
        return self._of(name).link(name)

    def links(self, names: Iterable[str] | None = None, *, install: bool = True) -> dict[str, Any]:
        wanted = list(self.hosts if names is None else names)
        return {name: link for name in wanted for link in self._of(name).links_([name]).values()}

    def look(self, name: str, python: str | None = None) -> dict[str, Any]:
        """Returns a host's facts as the agent sends them."""
        facts = self.hosts[name]
        gpus = [
            {"index": gpu.index, "uuid": gpu.uuid, "name": gpu.name, "memory_mb": gpu.memory_mb} for gpu in facts.gpus
        ]
        return {"gpus": gpus, "cpus": facts.cpus, "memory_gb": facts.memory_gb}

    def each(self, names: Iterable[str], ask: Callable[[str], Any], arrived: Any = None) -> dict[str, Any]:
        return {name: ask(name) for name in names}

    def close(self) -> None:
        pass

    def add(self, run: Acting) -> None:
        """Adds the hosts of a run."""
        self._runs += (run,)

    def _of(self, name: str) -> Acting:
        for run in self._runs:
            if name in run.hosts:
                return run
        raise HostError(name, f"{name} is no longer in the fleet.")

    def knows(self, name: str) -> bool:
        return name in self.hosts


def runs_model(home: Home, *runs: Acting) -> RunsModel:
    """Returns a model of simulated hosts, which are not in a fleet file."""
    home.path.mkdir(parents=True, exist_ok=True)
    fleet_file = home.path / "fleet.yaml"
    fleet_file.write_text("version: 1\nhosts: []\n")
    fleet = FleetModel(home, Path(fleet_file))
    acted = ActingFleet(*runs)
    fleet._fleet = acted  # type: ignore[assignment]  # The fleet is a fake.
    fleet.facts = acted.known  # type: ignore[method-assign]  # The test replaces this method.
    model = RunsModel(home, fleet)
    fleet.setParent(model)
    return model


def close(model: RunsModel) -> None:
    """Closes the model as the window does."""
    model.close()
    model.fleet_model.close()
