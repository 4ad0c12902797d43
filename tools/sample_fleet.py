"""Sample hosts, topologies and runs for screenshots.

The sample fleets are: no hosts, only this computer, eight hosts, eight hosts with long names, and 128 hosts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

from torchyard_core.errors import Unreachable
from torchyard_core.fleet.host_audit import Act
from torchyard_core.fleet.host_check import HostCheck
from torchyard_core.fleet.host_facts_cache import save_facts
from torchyard_core.fleet.inventory import Host
from torchyard_core.home import Home
from torchyard_core.launch.runs.history import History, RunRecord
from torchyard_core.topology.host_facts import Gpu, HostFacts
from torchyard_gui.bridge.fleet_model import FleetModel

ONE = "this-computer"
KINDS = {
    "gpu-a": (8, "NVIDIA H100 80GB HBM3", 81559, 96),
    "gpu-b": (8, "NVIDIA H100 80GB HBM3", 81559, 96),
    "gpu-c": (4, "NVIDIA A100-SXM4-40GB", 40960, 64),
    "gpu-d": (4, "NVIDIA A100-SXM4-40GB", 40960, 64),
    "gpu-e": (4, "NVIDIA L40S", 46068, 48),
    "gpu-f": (2, "NVIDIA RTX A6000", 49140, 32),
    "cpu-g": (0, "", 0, 64),
    "cpu-h": (0, "", 0, 64),
}
SILENT = "cpu-h"
LONG = {f"rack07-{name}.training.seoul.example.internal": what for name, what in KINDS.items() if name != SILENT}
LONG["서울-연구소-계산-서버-cpu-h"] = KINDS[SILENT]
MANY = {f"n{number:03}": KINDS["gpu-a"] for number in range(128)}
FLEETS = {"empty": {}, "one": {ONE: (0, "", 0, 8)}, "eight": KINDS, "long": LONG, "many": MANY}
SILENT_HOSTS = (SILENT, "서울-연구소-계산-서버-cpu-h", "n099")
LONG_NAME = "한국어-음성인식-대규모-사전학습-conformer-xl-bs4096-lr3e-4-seed17"

RESNET = """version: 1
name: resnet-imagenet
strategy:
  kind: all_reduce
pools:
  - {name: chief, role: chief, replicas: 1, gpus: 1}
  - {name: workers, role: worker, replicas: 19, gpus: 1, hosts: [gpu-a, gpu-b, gpu-c]}
  - {name: eval, role: evaluator, replicas: 1, gpus: 2, hosts: [gpu-f]}
program:
  script: train.py
  args: [--epochs, "90"]
pins:
  worker-3: gpu-a:6
"""

FAILED_RUN = "20261120-101200-a1c1"
"""ID of the only sample run that has failed."""

SCRIPT = "import torchyard_roles\n"


def write_sample(folder: Path, state: str) -> tuple[Home, Path, Path | None]:
    """Writes the files of a user for `state` (a key of FLEETS).

    Returns:
        The Torchyard folder, the fleet file, and the topology file if there is one.
    """
    home = Home(folder / "home")
    home.path.mkdir(parents=True)
    fleet_file = home.fleet_file
    if state == "empty":
        fleet_file.write_text("version: 1\nhosts: []\n", encoding="utf-8")
        return home, fleet_file, None
    names = list(FLEETS[state])
    hosts = [_host(name) for name in names]
    fleet_file.write_text("version: 1\nhosts:\n" + "".join(map(_line, hosts)), encoding="utf-8")
    save_facts(home.path / "facts.json", [(host, _facts(host.name)) for host in hosts if host.name not in SILENT_HOSTS])
    work = folder / "work"
    work.mkdir()
    (work / "train.py").write_text(SCRIPT, encoding="utf-8")
    file = work / f"{_run_name(state)}.yaml"
    file.write_text(_topology(state), encoding="utf-8")
    _write_runs(home, state)
    return home, fleet_file, file


def let_hosts_answer(fleet: FleetModel) -> None:
    """Marks all hosts except the silent ones as checked and sampled. No host is contacted."""
    now = datetime.now(UTC)
    for status in fleet.hosts:
        if status.name in SILENT_HOSTS:
            after = replace(status, since=now - timedelta(minutes=47))
        else:
            after = status.checked(_check(status.name), now - timedelta(hours=3))
            after = replace(after.sampled(_sample(status.facts), now), acts=_acts(now))
        fleet._statuses[status.name] = after  # The model has no public setter for the status.
        fleet.host_changed.emit(status.name)
    fleet.has_looked = True
    fleet._fleet = _UnreachableFleet(status.name for status in fleet.hosts)  # type: ignore[assignment]  # The pictures need no contact with a real host.


def _acts(now: datetime) -> tuple[Act, ...]:
    """Returns the latest audit records of a host."""
    kim, unattributed = {"by": "kim", "from": "laptop"}, {"by": "", "from": ""}
    return (
        {"time": (now - timedelta(days=9)).isoformat(), "what": "deploy", "version": "0.1.0", **kim},
        {"time": (now - timedelta(days=2)).isoformat(), "what": "remove", "run_id": "20261114-181502-3f9c", **kim},
        {"time": (now - timedelta(hours=4)).isoformat(), "what": "housekeeping", "runs": 2, **unattributed},
    )


class _UnreachableFleet:
    """A stand-in for the fleet that never contacts hosts."""

    def __init__(self, names: Iterable[str]):
        self.hosts = dict.fromkeys(names)
        self.others: tuple[object, ...] = ()

    @property
    def listing(self) -> tuple[str, ...]:
        return tuple(self.hosts)

    def knows(self, name: str) -> bool:
        return name in self.hosts

    def known(self) -> tuple[HostFacts, ...]:
        return ()

    def use(self, hosts: object) -> None:
        """Ignores the hosts of a fleet file."""

    def open_link(self, name: str) -> None:
        return None

    def link(self, name: str, *, install: bool = True) -> NoReturn:
        raise Unreachable(name, f"{name} is made up, for a picture.")

    def links(self, names: Iterable[str] | None = None, *, install: bool = True) -> dict[str, object]:
        return {}

    def close(self) -> None:
        """Has no effect, because no link is open."""


def _host(name: str) -> Host:
    return Host(name=name, local=True) if name == ONE else Host(name=name, address=f"{name}.example")


def _line(host: Host) -> str:
    where = "local: true" if host.local else f"address: {host.address}"
    return f"  - {{name: {host.name}, {where}}}\n"


def _small() -> str:
    return (
        "version: 1\nname: digits\nstrategy:\n  kind: all_reduce\npools:\n"
        f"  - {{name: chief, role: chief, replicas: 1, gpus: 0, hosts: [{ONE}]}}\n"
        f"  - {{name: workers, role: worker, replicas: 1, gpus: 0, hosts: [{ONE}]}}\n"
        "program:\n  script: train.py\n"
    )


def _kind(name: str) -> tuple[int, str, int, int]:
    """Returns the number of GPUs, their model and memory in MB, and the CPUs of a host."""
    return next(fleet[name] for fleet in FLEETS.values() if name in fleet)


def _gpus(name: str) -> list[dict[str, Any]]:
    count, model, memory, _ = _kind(name)
    return [
        {"index": index, "uuid": f"GPU-{name}-{index}", "name": model, "memory_mb": memory} for index in range(count)
    ]


def _facts(name: str) -> dict[str, Any]:
    cpus = _kind(name)[3]
    return {
        "hostname": name,
        "kernel": "6.8.0",
        "cpus": cpus,
        "memory_gb": 4.0 * cpus,
        "gpus": _gpus(name),
        "driver": "570.86.15" if _gpus(name) else None,
        "agent_python": {"path": "/usr/bin/python3", "version": "3.12.3"},
        "python": {"path": "/opt/venv/bin/python", "version": "3.12.3"},
        "torch": "2.13.0",
        "numpy": "2.3.1",
        "disk_free_gb": 512.0,
        "problems": [],
    }


def _check(name: str) -> HostCheck:
    facts = _facts(name)
    return HostCheck(
        name=name,
        state="ready",
        agent={"version": "0.1.0", "sha256": "0" * 64, "pid": 4711},
        python="3.12.3 at /opt/venv/bin/python",
        torch="2.13.0",
        cpus=facts["cpus"],
        memory_gb=facts["memory_gb"],
        gpus=facts["gpus"],
    )


def _sample(facts: HostFacts) -> dict[str, Any]:
    busy = "gpu-d" in facts.name or facts.name in ("n017", "n018")
    cpus, memory = facts.cpus or 8, (facts.memory_gb or 32.0) * 1024
    return {
        "time": datetime.now(UTC).timestamp(),
        "host": {
            "interval_s": 1.0,
            "cpus": cpus,
            "cpu": 61.0 if busy else 3.0,
            "load": cpus * 0.6 if busy else 0.4,
            "memory_mb": memory,
            "memory_used_mb": memory * (0.42 if busy else 0.06),
            "network": {
                "eth0": {"received_bytes_s": 2.1e8 if busy else 900.0, "sent_bytes_s": 2.0e8 if busy else 800.0}
            },
            "disk_read_bytes_s": 4.0e7 if busy else 0.0,
            "disk_written_bytes_s": 1.0e6,
            "disk_free_gb": 512.0,
            "disk_total_gb": 1800.0,
        },
        "gpus": [_gpu_sample(gpu, busy) for gpu in facts.gpus],
        "replicas": {},
    }


def _gpu_sample(gpu: Gpu, busy: bool) -> dict[str, Any]:
    process = {"pid": 4711 + gpu.index, "user": "lee", "program": "python", "memory_mb": 25000, "replica": None}
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "memory_mb": gpu.memory_mb,
        "memory_used_mb": gpu.memory_mb * 0.62 if busy else 4.0,
        "utilisation": 93.0 if busy else 0.0,
        "power_w": 312.0 if busy else 58.0,
        "temperature_c": 67.0 if busy else 34.0,
        "sm_clock_mhz": 1410.0,
        "memory_clock_mhz": 1593.0,
        "throttling": [],
        "ecc_errors": 0,
        "xid": None,
        "processes": [process] if busy else [],
        "problem": None,
    }


def _write_runs(home: Home, state: str) -> None:
    history = History(home.history)
    names = list(FLEETS[state])
    endings = [
        ("succeeded", ""),
        ("failed", "worker-5: CUDA out of memory" if len(names) > 1 else "worker-0: FileNotFoundError: digits.csv"),
        ("stopped", "stopped by you"),
    ]
    for number, (end, reason) in enumerate(endings):
        began = datetime(2026, 11, 20, 9 + number, 12, tzinfo=UTC)
        planned, text = _planned(state)
        record = RunRecord(
            run_id=f"{began:%Y%m%d-%H%M%S}-a{number}c{number}",
            name=_run_name(state),
            topology_file="",
            primary=names[0],
            hosts=tuple(dict.fromkeys(replica["host"] for replica in planned)),
            submitted=f"{began:%Y-%m-%dT%H:%M:%S}Z",
            state=end,
            reason=reason,
            as_of=f"{began + timedelta(minutes=42):%Y-%m-%dT%H:%M:%S}Z",
            ended=f"{began + timedelta(minutes=42):%Y-%m-%dT%H:%M:%S}Z",
            replicas=[_ended(replica, end, reason) for replica in planned],
            metrics={"chief-0": {"step": 41920, "loss": 0.4127, "throughput": 1184.0}},
            timings={"started_s": 1.2, "first_step_s": 6.4, "ended_s": 2520.0},
            topology=text,
            planned=planned,
        )
        history.save(record)


def _run_name(state: str) -> str:
    return {"one": "digits", "long": LONG_NAME}.get(state, "resnet-imagenet")


def _topology(state: str) -> str:
    if state == "one":
        return _small()
    if state == "many":
        return (
            RESNET.replace("replicas: 19", "replicas: 998")
            .partition("program:")[0]
            .replace(", hosts: [gpu-a, gpu-b, gpu-c]", "")
            .replace(", hosts: [gpu-f]", "")
            + "program:\n  script: train.py\n"
        )
    if state == "long":
        text = RESNET.replace("resnet-imagenet", LONG_NAME)
        for short, long in zip(KINDS, LONG, strict=True):
            text = text.replace(short, long)
        return text
    return RESNET


def _planned(state: str) -> tuple[list[dict[str, Any]], str]:
    fleet = FLEETS[state]
    names = list(fleet)
    if len(names) == 1:
        return [{"name": name, "host": ONE, "gpus": []} for name in ("chief-0", "worker-0")], _small()
    places = [(host, index) for host in names for index in range(fleet[host][0])]
    replicas = ["chief-0", *(f"worker-{index}" for index in range(19))]
    planned: list[dict[str, Any]] = [
        {"name": name, "host": host, "gpus": [f"GPU-{host}-{index}"]}
        for name, (host, index) in zip(replicas, places, strict=False)
    ]
    last = [name for name in names if fleet[name][0]][-1]
    planned.append({"name": "evaluator-0", "host": last, "gpus": [f"GPU-{last}-0", f"GPU-{last}-1"]})
    return planned, _topology(state).partition("pins:")[0]


def _ended(replica: dict[str, Any], state: str, reason: str) -> dict[str, Any]:
    failed = reason.startswith(f"{replica['name']}:")
    if state == "failed":
        return {
            "name": replica["name"],
            "host": replica["host"],
            "state": "failed" if failed else "stopped",
            "exit_code": 1 if failed else -15,
            "restarts": 0,
        }
    return {
        "name": replica["name"],
        "host": replica["host"],
        "state": state,
        "exit_code": 0 if state == "succeeded" else -15,
        "restarts": 0,
    }
