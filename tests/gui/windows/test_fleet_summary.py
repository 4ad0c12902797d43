"""Tests that the summary of the fleet in the status bar contains only known values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tests.core.engines.slurm.samples import checked
from torchyard_core.errors import AgentMissing, HostError, KeyChanged, TorchyardError, Unreachable
from torchyard_core.fleet.host_check import HostCheck
from torchyard_core.home import Home
from torchyard_core.topology.host_facts import Gpu, HostFacts
from torchyard_gui.bridge.fleet_model import FleetModel
from torchyard_gui.bridge.host_status import UNKNOWN, HostActivity, HostStatus, count_hosts
from torchyard_gui.fleet.labels import state_mark
from torchyard_gui.windows.fleet_summary import fleet_texts, gpu_text

MakeFleet = Callable[[str], FleetModel]


@pytest.fixture
def fleet_of(qapp: object, home: Home) -> Iterator[MakeFleet]:
    """Returns a function that creates the model of a fleet with the given host names. No host is contacted."""
    made: list[FleetModel] = []

    def make(names: str) -> FleetModel:
        home.path.mkdir(parents=True)
        lines = "".join(f"  - {{name: {name}}}\n" for name in names.split())
        home.fleet_file.write_text(f"version: 1\nhosts:\n{lines}" if lines else "version: 1\nhosts: []\n")
        made.append(FleetModel(home, home.fleet_file))
        return made[-1]

    yield make
    for fleet in made:
        fleet.close()


def put(fleet: FleetModel, name: str, **changes: object) -> HostStatus:
    """Sets the status of a host as a check does."""
    status = fleet._statuses[name] = replace(fleet._statuses[name], **changes)  # type: ignore[arg-type]  # The fields have different types.
    return status


def test_before_the_first_check_the_state_is_unknown(fleet_of: MakeFleet) -> None:
    assert fleet_texts(fleet_of("gpu-a gpu-b")) == [("unknown", "Hosts not checked yet")]


def test_while_hosts_are_asked_it_says_which(fleet_of: MakeFleet) -> None:
    fleet = fleet_of("gpu-a gpu-b")
    put(fleet, "gpu-a", doing=HostActivity("checking"))
    assert fleet_texts(fleet) == [("checking", "Checking gpu-a, gpu-b …")]


def test_all_answer(fleet_of: MakeFleet) -> None:
    fleet = fleet_of("gpu-a gpu-b")
    for name in ("gpu-a", "gpu-b"):
        put(fleet, name, state="ready")
    assert fleet_texts(fleet) == [("ok", "2 of 2 hosts answer")]


def test_degraded_hosts_answer_and_are_counted_too(fleet_of: MakeFleet) -> None:
    fleet = fleet_of("gpu-a gpu-b gpu-c")
    put(fleet, "gpu-a", state="ready")
    for name in ("gpu-b", "gpu-c"):
        put(fleet, name, state="degraded")
    assert fleet_texts(fleet) == [("ok", "3 of 3 hosts answer"), ("warning", "2 degraded")]


def test_a_single_silent_host_is_named_with_a_time(fleet_of: MakeFleet) -> None:
    fleet = fleet_of("gpu-a gpu-b")
    put(fleet, "gpu-a", state="ready")
    now = datetime.now(UTC)
    here = now.astimezone().strftime("%H:%M")
    put(fleet, "gpu-b", since=now)
    assert fleet_texts(fleet)[1:] == [("unknown", f"gpu-b last checked {here}")]
    put(fleet, "gpu-b", lost=TorchyardError("the connection was lost.", code="lost"))
    assert fleet_texts(fleet) == [("ok", "1 of 2 hosts answer"), ("unknown", f"gpu-b unknown since {here}")]


def test_several_that_are_silent_are_counted(fleet_of: MakeFleet) -> None:
    fleet = fleet_of("gpu-a gpu-b gpu-c")
    put(fleet, "gpu-a", state="ready")
    assert fleet_texts(fleet) == [("ok", "1 of 3 hosts answer"), ("unknown", "2 unknown")]


def test_a_host_without_agent_answers_all_the_same(fleet_of: MakeFleet) -> None:
    fleet = fleet_of("gpu-a")
    why = AgentMissing("gpu-a", "there is no agent on gpu-a.")
    put(fleet, "gpu-a", state=why.state, check=HostCheck("gpu-a", why.state, error=why))
    assert fleet_texts(fleet) == [("ok", "The host answers"), ("planned", "gpu-a has no agent")]


def failed(fleet: FleetModel, name: str, error: HostError) -> None:
    put(fleet, name, state=error.state, check=HostCheck(name, error.state, error=error))


def test_each_host_is_counted_in_the_state_that_its_card_shows(fleet_of: MakeFleet) -> None:
    fleet = fleet_of("gpu-a gpu-b gpu-c gpu-d gpu-e")
    fleet.has_looked = True
    put(fleet, "gpu-a", state="ready")
    failed(fleet, "gpu-b", KeyChanged("gpu-b", "the host key of gpu-b has changed.", fingerprint="SHA256:x"))
    failed(fleet, "gpu-c", Unreachable("gpu-c", "gpu-c did not answer."))
    failed(fleet, "gpu-d", Unreachable("gpu-d", "gpu-d did not answer."))
    assert fleet_texts(fleet) == [
        ("ok", "1 of 5 hosts answer"),
        ("failed", "gpu-b: key changed"),
        ("failed", "2 unreachable"),
        ("unknown", "gpu-e not checked"),
    ]
    for status in fleet.hosts:
        assert state_mark(status) == status.condition.mark
    count = count_hosts(fleet.hosts)
    assert count.answering == 1
    assert sum(map(len, count.by_state.values())) == count.total


def test_a_host_that_is_checked_for_the_first_time_has_no_state_yet(fleet_of: MakeFleet) -> None:
    fleet = fleet_of("gpu-a gpu-b")
    put(fleet, "gpu-a", state="ready")
    put(fleet, "gpu-b", doing=HostActivity("checking"))
    assert fleet_texts(fleet) == [("ok", "1 of 2 hosts answer")]
    assert [host.name for host in count_hosts(fleet.hosts).checking] == ["gpu-b"]


def test_no_hosts(fleet_of: MakeFleet) -> None:
    fleet = fleet_of("")
    assert fleet_texts(fleet) == ["No hosts in the fleet"]
    assert gpu_text(fleet) == ""


def test_a_fleet_of_clusters_alone(fleet_of: MakeFleet) -> None:
    fleet = fleet_of("")
    fleet.fleet_file.write_text("version: 1\nhosts: []\nclusters: [{name: hpc, kind: slurm}]\n")
    fleet.refresh()
    assert fleet_texts(fleet) == [("unknown", "hpc not checked")]
    (status,) = fleet.clusters.all
    fleet.clusters.put(status.checked(checked(), datetime.now(UTC)))
    assert fleet_texts(fleet) == [("ok", "hpc: ready")]


def test_a_fleet_file_that_cannot_be_read(fleet_of: MakeFleet) -> None:
    fleet = fleet_of("gpu-a")
    fleet.problem = TorchyardError("fleet.yaml: line 2: no", code="x")
    assert fleet_texts(fleet) == [("failed", "The fleet file cannot be read: see Fleet")]


def test_one_host_is_not_counted_as_one_of_one(fleet_of: MakeFleet) -> None:
    fleet = fleet_of("gpu-a")
    put(fleet, "gpu-a", state="ready")
    assert fleet_texts(fleet) == [("ok", "The host answers")]
    fleet.has_looked = True
    put(fleet, "gpu-a", state=UNKNOWN, lost=TorchyardError("the connection was lost.", code="lost"))
    assert fleet_texts(fleet) == [("unknown", "The host does not answer")], "its name and state would repeat this"


def test_unknown_gpus_are_never_counted_as_none(fleet_of: MakeFleet) -> None:
    fleet = fleet_of("gpu-a gpu-b")
    assert gpu_text(fleet) == "GPUs unknown"
    put(fleet, "gpu-a", facts=HostFacts("gpu-a", checked=True))
    assert gpu_text(fleet) == "GPUs unknown"
    two = (Gpu(0, "GPU-1", "H100", 81559), Gpu(1, "GPU-2", "H100", 81559))
    put(fleet, "gpu-a", facts=HostFacts("gpu-a", gpus=two, checked=True))
    assert gpu_text(fleet) == "at least 2 GPUs"


def test_gpus_are_counted_over_all_hosts(fleet_of: MakeFleet) -> None:
    fleet = fleet_of("gpu-a gpu-b")
    for name in ("gpu-a", "gpu-b"):
        put(fleet, name, facts=HostFacts(name, checked=True))
    assert gpu_text(fleet) == "no GPU"
    put(fleet, "gpu-a", facts=HostFacts("gpu-a", gpus=(Gpu(0, "GPU-1", "H100", 81559),), checked=True))
    assert gpu_text(fleet) == "1 GPU"
    put(fleet, "gpu-b", facts=HostFacts("gpu-b", gpus=(Gpu(0, "GPU-2", "H100", 81559),), checked=True))
    assert gpu_text(fleet) == "2 GPUs"
