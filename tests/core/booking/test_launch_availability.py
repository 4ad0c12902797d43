"""Tests of the pure functions that determine which GPUs and hosts a launch may use according to the calendar."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.core.booking.teams import NOW
from torchyard_core.booking.launch_availability import (
    clashing_bookings,
    first_bookings,
    holds_slots,
    hosts_limited_to,
    hosts_with_gpus,
    hosts_without_booked,
    hosts_without_closed,
    keeps_until,
    own_bookings,
    slots_of_plan,
    slots_to_book,
)
from torchyard_core.booking.model import Booking, State
from torchyard_core.launch.rank_assignment import Plan, plan
from torchyard_core.topology.file import topology_from_text
from torchyard_core.topology.host_facts import Gpu, HostFacts

HOUR = timedelta(hours=1)
HOSTS = (
    *(
        HostFacts(
            name,
            name,
            checked=True,
            cpus=8,
            gpus=tuple(Gpu(number, f"GPU-{name[-1]}{number}", "H100", 81559) for number in range(2)),
        )
        for name in ("gpu-a", "gpu-b")
    ),
    HostFacts("big-cpu", "big-cpu", checked=True, cpus=64),
)
CATALOGUE = ("GPU-a0", "GPU-a1", "GPU-b0", "GPU-b1", "big-cpu:cpu")


def booking(
    owner: str, *gpus: str, start: datetime = NOW - HOUR, end: datetime = NOW + 2 * HOUR, **more: Any
) -> Booking:
    name = f"{owner}-{'-'.join(gpus)}-{start:%H%M}"
    made = Booking(name, owner, "digits", "", gpus, start, end, "UTC", State.BOOKED, NOW, NOW)
    return replace(made, **more)


def planned(pools: str, hosts: tuple[HostFacts, ...] = HOSTS) -> Plan:
    text = f"version: 1\nname: x\npools:\n{pools}program: {{launcher: command, command: [python3]}}\n"
    topology = topology_from_text(text).topology
    assert topology is not None
    return plan(topology, hosts)


ONE = "  - {name: w, role: worker, replicas: 1, gpus: 1}\n"
TWO_HOSTS = "  - {name: w, role: worker, replicas: 2, gpus: 2}\n"
SERVERS = "  - {name: s, role: ps, replicas: 1}\n"


def test_a_plan_takes_its_gpus_and_the_cpu_slots_of_hosts_without() -> None:
    made = planned(ONE + SERVERS)
    assert slots_of_plan(made, HOSTS, CATALOGUE) == ("GPU-a0", "big-cpu:cpu")
    # The CPU slot is not in the calendar, so it is not booked.
    assert slots_of_plan(made, HOSTS, ["GPU-a0"]) == ("GPU-a0",)
    # Servers share their host with other programs, so no CPU slot is booked for them.
    assert slots_to_book(("GPU-a0", "big-cpu:cpu")) == ("GPU-a0",)
    assert slots_to_book(("big-cpu:cpu",)) == ("big-cpu:cpu",)


def test_only_gpus_of_several_hosts_need_a_booking() -> None:
    assert hosts_with_gpus(planned(TWO_HOSTS)) == ("gpu-a", "gpu-b")
    assert hosts_with_gpus(planned(ONE + SERVERS)) == ("gpu-a",)


def test_a_run_goes_round_what_others_have_booked() -> None:
    way = first_bookings([booking("kim", "GPU-a0", "GPU-a1", "big-cpu:cpu")], NOW, NOW + HOUR)
    left = hosts_without_booked(HOSTS, way)
    (replica,) = planned(ONE, left).replicas
    assert (replica.host, [gpu.uuid for gpu in replica.gpus]) == ("gpu-b", ["GPU-b0"])
    # Servers may run on a host whose GPUs are booked by another user, but not on a host without GPUs that is booked.
    for hosts in (left, hosts_limited_to(HOSTS, ["GPU-b0"], way)):
        (server,) = planned(SERVERS, hosts).replicas
        assert server.host in ("gpu-a", "gpu-b")
    on_it = planned(SERVERS.replace("replicas: 1", "replicas: 1, hosts: [big-cpu]"), left)
    assert "ps-0 cannot be placed: big-cpu is booked by kim" in on_it.problems[0].message
    large = planned(SERVERS.replace("replicas: 1", "replicas: 1, cpus: 32"), left).problems[0].message
    assert "the most any host has free is 8 (on gpu-a) (big-cpu is booked by kim)" in large


def test_where_it_cannot_the_bookings_in_the_way_are_named_with_what_they_hold() -> None:
    others = [booking("kim", "GPU-a0", "GPU-a1"), booking("lee", "GPU-b0", start=NOW + 3 * HOUR, end=NOW + 4 * HOUR)]
    assert not planned(TWO_HOSTS, hosts_without_booked(HOSTS, first_bookings(others, NOW, NOW + HOUR))).can_start
    taken = slots_of_plan(planned(TWO_HOSTS), HOSTS, CATALOGUE)
    (found,) = clashing_bookings(taken, first_bookings(others, NOW, NOW + HOUR))
    assert (found.booking.owner, found.gpus) == ("kim", ("GPU-a0", "GPU-a1"))
    assert len(clashing_bookings(taken, first_bookings(others, NOW, NOW + 4 * HOUR))) == 2


def test_bookings_that_were_let_go_or_are_not_then_block_no_gpu() -> None:
    gone = booking("kim", "GPU-a0", state=State.RELEASED)
    before = booking("kim", "GPU-a0", end=NOW)
    assert first_bookings([gone, before], NOW, NOW + HOUR) == {}


def test_a_run_in_ones_own_booking_gets_exactly_its_gpus() -> None:
    own = booking("lee", "GPU-b1")
    (replica,) = planned(ONE, hosts_limited_to(HOSTS, own.gpus, {})).replicas
    assert [gpu.uuid for gpu in replica.gpus] == ["GPU-b1"]
    assert holds_slots(own, ("GPU-b1", "big-cpu:cpu"))
    assert not holds_slots(own, ("GPU-b0", "GPU-b1"))
    assert not planned(TWO_HOSTS, hosts_limited_to(HOSTS, own.gpus, {})).can_start


def test_excluded_gpus_are_reported_with_the_reason() -> None:
    outside = hosts_limited_to(HOSTS, ["GPU-c0"], {})
    assert "(4 outside the booking)" in planned(ONE, outside).problems[0].message
    pinned = planned(ONE + "pins: {worker-0: gpu-a:0}\n", outside).problems[0].message
    assert "pinned to gpu-a:0, which is outside the booking" in pinned
    closed = hosts_without_closed(HOSTS, {"GPU-a0", "GPU-a1", "GPU-b0", "GPU-b1"})
    assert "(4 closed by the team's rules)" in planned(ONE, closed).problems[0].message
    used = tuple(replace(host, gpu_users={gpu.uuid: "kim" for gpu in host.gpus}) for host in closed)
    assert "(4 used by kim)" in planned(ONE, used).problems[0].message


def test_a_run_without_gpus_stays_on_the_hosts_whose_cpus_are_booked() -> None:
    worker = "  - {name: w, role: worker, replicas: 1}\n"
    (replica,) = planned(worker, hosts_limited_to(HOSTS, ("big-cpu:cpu",), {})).replicas
    assert replica.host == "big-cpu"


def test_of_several_bookings_the_smallest_without_a_run_comes_first() -> None:
    large, small = booking("lee", "GPU-a0", "GPU-a1"), booking("lee", "GPU-b0")
    of_a_run = booking("lee", "GPU-b1", run_id="r")
    to_come = booking("lee", "GPU-b0", start=NOW + 3 * HOUR, end=NOW + 4 * HOUR)
    found = own_bookings([of_a_run, to_come, large, booking("kim", "GPU-a0"), small], "lee", NOW)
    assert found == [small, large, of_a_run]


@pytest.mark.parametrize(
    ("state", "keep", "until"),
    [
        ("succeeded", 30, None),
        ("stopped", 30, None),
        ("failed", 30, NOW + timedelta(minutes=30)),
        ("failed", None, NOW + 2 * HOUR),
        ("failed", 600, NOW + 2 * HOUR),
    ],
)
def test_after_a_failure_the_gpus_are_kept_for_a_while(state: str, keep: int | None, until: datetime | None) -> None:
    length = None if keep is None else timedelta(minutes=keep)
    assert keeps_until(booking("lee", "GPU-a0"), state, NOW, length) == until
