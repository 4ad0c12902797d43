"""Determines what the racks of an edited topology show: the states of hosts, and the GPUs booked during the planned
time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from PySide6.QtCore import QCoreApplication

from torchyard_core.booking.planned_time import when_booked
from torchyard_core.launch.rank_assignment import Plan
from torchyard_core.topology.host_facts import Gpu, HostFacts
from torchyard_gui.bridge.host_states import HostState, state_name
from torchyard_gui.bridge.planning_time import PlanningTime
from torchyard_gui.canvas.live_state import HostLiveState

if TYPE_CHECKING:
    from torchyard_core.booking.model import Booking

translate = QCoreApplication.translate


def planned_gpu_states(
    plan: Plan, hosts: Sequence[HostFacts], states: Mapping[str, HostState], planning: PlanningTime
) -> dict[str, HostLiveState]:
    """Returns the displayed state of each host in an edited topology, by the host's name.

    Each host has the mark of its state, as on the Fleet page. The slots of booked GPUs show who booked them. If the
    topology does not use a host, the header of the host's rack has a note about the bookings.
    """
    used = {planned.host for planned in plan.replicas if planned.host is not None}
    looks = {}
    for host in hosts:
        held = {gpu.index: holder for gpu in host.gpus if (holder := _holder(host, gpu, planning))}
        note = "" if host.name in used else _note(host, planning)
        lines = {index: short for index, (short, _) in held.items()}
        sentences = {index: sentence for index, (_, sentence) in held.items()}
        state = states.get(host.name, HostState.UNKNOWN)
        name = "" if state in (HostState.READY, HostState.UNKNOWN) else state_name(state)
        looks[host.name] = HostLiveState(note=note, holders=lines, held=sentences, name=name, mark=state.mark)
    return looks


def _holder(host: HostFacts, gpu: Gpu, planning: PlanningTime) -> tuple[str, str] | None:
    """Returns the two lines in the slot of a booked GPU, and a sentence for the tool tip of the slot.

    Returns None if the GPU is not booked, or if it is in use now.
    """
    if host.gpu_users.get(gpu.uuid) or (gpu.uuid in host.busy_gpus and gpu.uuid not in host.gpu_bookings):
        return None
    booking, is_own = planning.booked.others.get(gpu.uuid), False
    if booking is None:
        booking, is_own = planning.booked.own.get(gpu.uuid), True
    if booking is None:
        return None
    who = translate("Topology", "You") if is_own else booking.owner
    start = planning.planned.interval(planning.now).start
    when = when_booked(booking, start, planning.zone)
    first = when.partition(" to ")[0] if booking.start > start else when.replace("until ", translate("Topology", "to "))
    sentence = (
        translate("Topology", "You have booked GPU {gpu} of {host} {when}: “{title}”")
        if is_own
        else translate("Topology", "{who} has booked GPU {gpu} of {host} {when}: “{title}”")
    ).format(who=who, gpu=gpu.index, host=host.name, when=when, title=booking.title)
    return f"{who}\n{first}", sentence


def _note(host: HostFacts, planning: PlanningTime) -> str:
    """Returns the note about a host's bookings in the header of its rack, such as `4 of 4 booked by others`.

    For a host without GPUs, the note names the user who booked the host. Returns "" if nothing is booked.
    """
    from torchyard_core.booking.model import cpu_slot

    others = planning.booked.others
    if not host.gpus:
        booking = others.get(cpu_slot(host.name).id)
        return translate("Topology", "booked by {who}").format(who=planning.who(booking)) if booking else ""
    booked = sum(gpu.uuid in host.gpu_bookings and not host.gpu_users.get(gpu.uuid) for gpu in host.gpus)
    if not booked:
        return ""
    in_use = sum(gpu.uuid in host.busy_gpus for gpu in host.gpus) - booked
    if in_use:
        return translate("Topology", "{booked} booked, {used} in use by others").format(booked=booked, used=in_use)
    return translate("Topology", "{booked} of {total} booked by others").format(booked=booked, total=len(host.gpus))


def booked_sentence(gpus: Iterable[str], planning: PlanningTime) -> str:
    """Returns at most three sentences about the bookings of the given GPUs, or "" if none of the GPUs is booked."""
    ids = list(gpus)
    parts = []
    for booking in _each(ids, planning.booked.others):
        parts.append(translate("Topology", "Booked by {who}.").format(who=planning.who(booking)))
    for booking in _each(ids, planning.booked.own):
        when = when_booked(booking, planning.planned.interval(planning.now).start, planning.zone)
        parts.append(translate("Topology", "In your booking “{title}”, {when}.").format(title=booking.title, when=when))
    return " ".join(parts[:3])


def _each(gpus: Iterable[str], booked: Mapping[str, Booking]) -> list[Booking]:
    found = {booked[gpu].id: booked[gpu] for gpu in gpus if gpu in booked}
    return list(found.values())
