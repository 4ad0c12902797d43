"""Texts of the canvas, which can be translated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from PySide6.QtCore import QCoreApplication

from torchyard_core.formatting import seconds, size
from torchyard_core.topology.strategies.link_load import ExchangeFacts
from torchyard_core.topology.strategies.replica_groups import GroupKind, ReplicaGroup
from torchyard_gui.canvas.live_state import HostLiveState, ReplicaLiveState
from torchyard_gui.canvas.racks.rack_content import ChipContent, RackContent

translate = QCoreApplication.translate

ENDED = ("succeeded", "failed", "stopped")


def gpu_kinds(rack: RackContent) -> str:
    """Returns the number of a rack's GPUs of each model, such as `8 × H100 80 GB`.

    Returns `no GPU` for a checked host without GPUs, and "" if the models are unknown or part of the rack's name.
    """
    if rack.cluster and not (rack.node and rack.gpus):
        return ""  # The rack names the GPU models. `no GPU` could be wrong: a CPU job may get a node with GPUs.
    if not rack.gpus:
        return "" if rack.layout.slots or not rack.checked else translate("Canvas", "no GPU")
    return _kinds(rack)


def _kinds(rack: RackContent) -> str:
    # If a host has not been checked, the memory size of its GPUs is unknown and left out.
    return ", ".join(f"{count} × {kind.removesuffix(' 0 GB')}" for kind, count in rack.gpus)


def use_of(rack: RackContent, host: HostLiveState | None, states: Mapping[str, ReplicaLiveState] | None) -> str:
    """Returns the text at the right of a rack's header, such as the GPU use, or the reason why the use is unknown."""
    if rack.is_tray or rack.group is not None:
        return role_counts(rack.chips)
    if host is not None and host.is_unknown:
        if host.since:
            return translate("Canvas", "unknown since {time}").format(time=host.since)
        return translate("Canvas", "unknown")
    if host is not None and host.note:
        return host.note
    if not rack.chips and states is not None:
        return translate("Canvas", "not in this run")
    total = len(rack.layout.slots)
    if not rack.chips and rack.busy:
        return translate("Canvas", "{used} of {total} in use by others").format(used=len(rack.busy), total=total)
    if not total or not rack.used:
        return role_counts(rack.chips) or translate("Canvas", "not used")
    if not rack.gpus:
        # The text has no total, because the number of GPUs of a host that has never been checked is unknown.
        one, several = translate("Canvas", "uses 1 GPU"), translate("Canvas", "uses {used} GPUs")
        return (one if rack.used == 1 else several).format(used=rack.used)
    if states is None:
        return translate("Canvas", "{used} of {total} used").format(used=rack.used, total=total)
    if rack.cluster and not rack.node:
        return translate("Canvas", "asks for {gpus}").format(gpus=gpu_count(rack.used))
    looks = [look for chip in rack.chips if (look := states.get(chip.name)) is not None]
    if all(look.state in ENDED for look in looks):
        # All replicas of the run on this host have ended, so the run does not use the host's GPUs any more.
        return translate("Canvas", "ended") if looks else role_counts(rack.chips)
    busy = sum(len(chip.gpus) for chip in rack.chips if _is_busy(states.get(chip.name)))
    return _busy_text(total).format(used=busy, total=total)


def _busy_text(total: int) -> str:
    one, several = translate("Canvas", "{used} of 1 GPU busy"), translate("Canvas", "{used} of {total} GPUs busy")
    return one if total == 1 else several


def section_summary(
    racks: Sequence[RackContent],
    hosts: Mapping[str, HostLiveState],
    states: Mapping[str, ReplicaLiveState] | None,
    edges: int,
) -> str:
    """Returns a rack section's summary, such as `120 of 128 GPUs used · 96 edges out`."""
    count = len(racks)
    parts = []
    total = sum(len(rack.layout.slots) for rack in racks)
    unknown = sum(rack.key in hosts and hosts[rack.key].is_unknown for rack in racks)
    if states is None:
        used = sum(rack.used for rack in racks)
        one, several = translate("Canvas", "{used} of 1 GPU used"), translate("Canvas", "{used} of {total} GPUs used")
        text = one if total == 1 else several
    else:
        chips = [chip for rack in racks for chip in rack.chips]
        used = sum(len(chip.gpus) for chip in chips if _is_busy(states.get(chip.name)))
        text = _busy_text(total)
    if total:
        parts.append(text.format(used=used, total=total))
    else:
        one, several = translate("Canvas", "1 host"), translate("Canvas", "{count} hosts")
        parts.append((one if count == 1 else several).format(count=count))
    if unknown:
        parts.append(translate("Canvas", "{count} unknown").format(count=unknown))
    if edges == 1:
        parts.append(translate("Canvas", "1 edge out"))
    elif edges:
        parts.append(translate("Canvas", "{count} edges out").format(count=f"{edges:,}"))
    return " · ".join(parts)


def short_use(rack: RackContent) -> str:
    """Returns the use of a rack's GPUs as a short text for low zoom levels, such as `3 of 4`, or "" if no GPU of the
    rack is known.
    """
    if rack.is_tray or not rack.gpus:
        return ""
    return translate("Canvas", "{used} of {total}").format(used=rack.used, total=len(rack.layout.slots))


def _is_busy(look: ReplicaLiveState | None) -> bool:
    return look is not None and look.state in ("starting", "running", "stopping") and not look.is_unknown


def role_counts(chips: Sequence[ChipContent]) -> str:
    """Returns the number of replicas by role, such as `1 chief, 2 workers`."""
    counts = Counter(chip.role for chip in chips)
    return ", ".join(role_count(role, count) for role, count in counts.items())


_ROLES = {
    "chief": ("1 chief", "{count} chiefs"),
    "worker": ("1 worker", "{count} workers"),
    "ps": ("1 server", "{count} servers"),
    "reducer": ("1 reducer", "{count} reducers"),
    "evaluator": ("1 evaluator", "{count} evaluators"),
}


def role_count(role: str, count: int) -> str:
    one, several = _ROLES[role]
    return translate("Canvas", one if count == 1 else several).format(count=count)


def cpu_value(rack: RackContent) -> str:
    """Returns the number of cores, such as `96 cores`, or `? cores` if the number is unknown."""
    if rack.cpus is None:
        return translate("Canvas", "? cores")
    if rack.cpus == 1:
        return translate("Canvas", "1 core")
    return translate("Canvas", "{count} cores").format(count=rack.cpus)


def memory_value(rack: RackContent) -> str:
    if rack.memory_gb is None:
        return ""
    return translate("Canvas", "{size} GB").format(size=f"{rack.memory_gb:,.0f}")


def where(chip: ChipContent) -> str:
    """Returns the second line of a chip in an edited topology: its GPUs and, in the frame of a group, its host.

    If the replica is not placed, the line says how many GPUs it needs.
    """
    if chip.by_group and chip.host:
        return f"{chip.host}:{ranges(chip.gpus)}" if chip.gpus else chip.host
    if not chip.host and chip.wanted:
        return gpu_count(chip.wanted)
    if not chip.gpus:
        return ""
    return translate("Canvas", "GPU {numbers}").format(numbers=ranges(chip.gpus))


def gpu_count(count: int) -> str:
    if count == 1:
        return translate("Canvas", "1 GPU")
    return translate("Canvas", "{count} GPUs").format(count=count)


def ranges(numbers: Sequence[int]) -> str:
    """Formats numbers as `2, 3` or `0–7`. Three or more consecutive numbers form a range."""
    parts: list[str] = []
    start = 0
    for at in range(1, len(numbers) + 1):
        if at < len(numbers) and numbers[at] == numbers[at - 1] + 1:
            continue
        first, last = numbers[start], numbers[at - 1]
        parts += [f"{first}–{last}"] if last - first > 1 else [str(number) for number in numbers[start:at]]
        start = at
    return ", ".join(parts)


def last_heard(look: ReplicaLiveState) -> str:
    if look.stale_since:
        return translate("Canvas", "last {time}").format(time=look.stale_since)
    return translate("Canvas", "lost") if look.state == "lost" else translate("Canvas", "unknown")


def state_word(state: str) -> str:
    """Returns the name of a state for tool tips and screen readers."""
    return {
        "pending": translate("Canvas", "waiting to start"),
        "waiting": translate("Canvas", "waiting"),
        "starting": translate("Canvas", "starting"),
        "running": translate("Canvas", "running"),
        "restarting": translate("Canvas", "restarting"),
        "stopping": translate("Canvas", "stopping"),
        "succeeded": translate("Canvas", "succeeded"),
        "failed": translate("Canvas", "failed"),
        "stopped": translate("Canvas", "stopped"),
        "lost": translate("Canvas", "lost"),
        "unknown": translate("Canvas", "unknown"),
    }.get(state, state)


def duration(seconds: float) -> str:
    """Formats a duration as `2 d 5 h`, `3 h 12 min`, `4 min 5 s`, `42 min` or `12 s`."""
    whole = int(seconds)
    if whole < 60:
        return translate("Canvas", "{seconds} s").format(seconds=whole)
    if whole < 3600 and whole % 60 == 0:
        return translate("Canvas", "{minutes} min").format(minutes=whole // 60)
    if whole < 3600:
        return translate("Canvas", "{minutes} min {seconds} s").format(minutes=whole // 60, seconds=whole % 60)
    if whole < 86400:
        return translate("Canvas", "{hours} h {minutes} min").format(hours=whole // 3600, minutes=whole % 3600 // 60)
    return translate("Canvas", "{days} d {hours} h").format(days=whole // 86400, hours=whole % 86400 // 3600)


def short_state_word(state: str) -> str:
    """Returns the name of a state in one word, for the space beside its mark on a chip."""
    return {
        "pending": translate("Canvas", "waiting"),
        "restarting": translate("Canvas", "restarts"),
        "stopping": translate("Canvas", "ending"),
        "succeeded": translate("Canvas", "done"),
    }.get(state) or state_word(state)


def restarted(count: int) -> str:
    if count == 1:
        return translate("Canvas", "restarted once")
    return translate("Canvas", "restarted {count} times").format(count=count)


def shorter(cause: str) -> str:
    """Returns the abbreviation of a cause of failure, to be shown on a chip. A cause without an abbreviation is
    returned unchanged.
    """
    return translate("Canvas", "OOM") if cause == "out of memory" else cause


def place_of(chip: ChipContent) -> str:
    """Returns where a replica is placed, such as `GPU 2 on gpu-a`."""
    if not chip.host:
        return translate("Canvas", "not placed")
    if chip.gpus:
        return translate("Canvas", "GPU {numbers} on {host}").format(numbers=ranges(chip.gpus), host=chip.host)
    return translate("Canvas", "on {host}").format(host=chip.host)


def moved_from(place: str) -> str:
    """Returns a text that names the place from which a replica was just moved."""
    return translate("Canvas", "moved; was {place}").format(place=place)


def described(chip: ChipContent, look: ReplicaLiveState | None, problem: str = "") -> str:
    """Returns a description of a replica, for tool tips and screen readers."""
    parts = [chip.name, place_of(chip)]
    if chip.pinned:
        parts.append(translate("Canvas", "pinned"))
    if chip.group is not None:
        workers, servers = translate("Canvas", "worker group {number}"), translate("Canvas", "server group {number}")
        text = workers if chip.trains else servers
        parts.append(text.format(number=chip.group))
    if look is not None:
        parts.append(state_word("unknown" if look.is_unknown else look.state))
        if look.stale_since:
            parts.append(last_heard(look))
        if look.restarts:
            parts.append(restarted(look.restarts))
        parts += [text for text in (look.cause, look.metric, look.details) if text]
    if problem:
        parts.append(problem)
    return ", ".join(parts)


def edges(count: int) -> str:
    """Returns the part of a trunk's label that says how many edges the trunk represents."""
    return translate("Canvas", "{count} edges").format(count=f"{count:,}")


def load_parts(load: float, facts: ExchangeFacts) -> tuple[str, str]:
    """Returns the data per step on a link in two lines, such as `3.2 GB` and `per step`.

    If the size of the gradients is unknown, the first line is a multiple of this size, such as `1.5 M`.
    """
    return load_text(load, facts), translate("Canvas", "per step")


def load_text(load: float, facts: ExchangeFacts) -> str:
    known = facts.bytes_of(load)
    return f"{load:.2f}".rstrip("0").rstrip(".") + " M" if known is None else size(known)


def link_sentence(load: float, facts: ExchangeFacts) -> str:
    """Returns a sentence about the data per step on a host's link, for the tool tip of the host."""
    text = translate("Canvas", "Its link carries {load} per step in each direction").format(load=load_text(load, facts))
    time = facts.seconds_of(load)
    if time is not None:
        return text + translate("Canvas", ", in about {time}.").format(time=seconds(time))
    if facts.gradient_bytes is None:
        return text + translate("Canvas", "; M is the size of the gradients.")
    return f"{text}."


def rack_name(rack: RackContent) -> str:
    """Returns the name in the header of a rack: the name of a host or a group, or `Not placed` for the tray."""
    if rack.group is not None:
        return group_name(rack.group)
    if rack.cluster:
        return rack.node or any_node(rack)
    return translate("Canvas", "Not placed") if rack.is_tray else rack.key


def any_node(rack: RackContent) -> str:
    """Returns the name that a slot of a cluster has until its node is known, such as `Any node with 8 × A100`."""
    if rack.key == rack.cluster:
        return translate("Canvas", "Nodes not known yet")
    if rack.gpus and not rack.gpus[0][0].startswith("GPU "):
        return translate("Canvas", "Any node with {gpus}").format(gpus=_kinds(rack))
    if rack.layout.slots:  # The models of the GPUs are unknown.
        return translate("Canvas", "Any node with {gpus}").format(gpus=gpu_count(len(rack.layout.slots)))
    if rack.cpus is not None:
        return translate("Canvas", "Any node with {cores}").format(cores=cpu_value(rack))
    return translate("Canvas", "Any node")


def cluster_summary(racks: Sequence[RackContent]) -> str:
    """Returns a summary of the nodes in the frame of a cluster, such as `Slurm chooses 3 nodes`."""
    count = len(racks)
    if unknown := next((rack for rack in racks if rack.key == rack.cluster), None):
        return unknown.unchecked_reason
    if any(not rack.node for rack in racks):
        one, several = translate("Canvas", "Slurm chooses 1 node"), translate("Canvas", "Slurm chooses {count} nodes")
    else:
        one, several = translate("Canvas", "1 node"), translate("Canvas", "{count} nodes")
    return (one if count == 1 else several).format(count=count)


def group_name(group: ReplicaGroup) -> str:
    """Returns the title of a group, such as `Worker group 1`."""
    if group.number is None:
        return {
            GroupKind.TRAINERS: translate("Canvas", "Trainers"),
            GroupKind.SERVERS: translate("Canvas", "Servers"),
            GroupKind.REDUCERS: translate("Canvas", "Reducers"),
            GroupKind.EVALUATORS: translate("Canvas", "Evaluators"),
        }[group.kind]
    if group.kind is GroupKind.TRAINERS:
        return translate("Canvas", "Worker group {number}").format(number=group.number)
    return translate("Canvas", "Server group {number}").format(number=group.number)


def more(count: int) -> str:
    return translate("Canvas", "and {count} more").format(count=count)


def target_text(target: str) -> str:
    """Returns the text beside the pointer that describes the effect of a drop."""
    host, _, gpu = target.partition(":")
    if not host:
        return translate("Canvas", "let the planner place it")
    if not gpu or gpu == "cpu":
        return translate("Canvas", "pin to {host}").format(host=host)
    return translate("Canvas", "pin to {host}, GPU {gpu}").format(host=host, gpu=gpu)


def no_change() -> str:
    return translate("Canvas", "changes nothing")


def swap_text(other: str, target: str) -> str:
    """Returns the text beside the pointer that describes the effect of a drop on an occupied slot."""
    host, _, gpu = target.partition(":")
    return translate("Canvas", "swap with {other} on {host}, GPU {gpu}").format(other=other, host=host, gpu=gpu)


def add_text(role: str, host: str) -> str:
    """Returns the text beside the pointer that describes the effect of adding a replica."""
    if not host:
        return translate("Canvas", "add a replica, placed by the planner")
    return translate("Canvas", "add a replica on {host}").format(host=host)


def holder(user: str, gpu: int) -> str:
    """Returns the two lines of text in the slot of a GPU that is in use. The first line names the user, if known."""
    if not user:
        return translate("Canvas", "in use\nGPU {gpu}").format(gpu=gpu)
    return translate("Canvas", "{user}\nuses GPU {gpu}").format(user=user, gpu=gpu)


def slot_sentence(rack: RackContent, gpu: int) -> str:
    """Returns a description of an empty slot, for its tool tip."""
    if gpu in rack.busy:
        user = rack.users.get(gpu, "")
        if user:
            return translate("Canvas", "GPU {gpu} of {host} is used by {user}: it is not free").format(
                gpu=gpu, host=rack.key, user=user
            )
        return translate("Canvas", "GPU {gpu} of {host} is in use: it is not free").format(gpu=gpu, host=rack.key)
    if not rack.use_known:
        return translate("Canvas", "GPU {gpu} of {host}: current use unknown").format(gpu=gpu, host=rack.key)
    if rack.cluster:
        return translate("Canvas", "GPU {gpu} of {host} is not used by this topology").format(gpu=gpu, host=rack.key)
    return translate("Canvas", "GPU {gpu} of {host} is free").format(gpu=gpu, host=rack.key)


def rack_sentence(rack: RackContent, use: str, state: str = "") -> str:
    """Returns the tool tip of a rack: the full text of its header, and a note if facts about the host are unknown.

    `state` is the name of the host's state on the Fleet page, or "" if the host is ready.
    """
    name = f"{rack.key}: {rack_name(rack)}" if rack.cluster else rack.key
    lines = [" · ".join(part for part in (name, gpu_kinds(rack), use) if part)]
    if rack.cluster and rack.key == rack.cluster:
        text = translate("Canvas", "The cluster {reason}; assuming that its nodes suffice.")
        lines.append(text.format(reason=rack.unchecked_reason))
    elif not rack.checked:
        lines.append(translate("Canvas", "It {reason}; assuming it fits.").format(reason=rack.unchecked_reason))
    elif not rack.use_known:
        text = translate("Canvas", "It is {state}: its current use is unknown.")
        lines.append(text.format(state=state) if state else translate("Canvas", "Its current use is unknown."))
    return "\n".join(lines)


def short_rack_use(rack: RackContent) -> str:
    """Returns how many GPUs of a rack the topology uses, such as `3 of 4 used`, or "" if the rack has no known GPU."""
    if rack.is_tray or not rack.gpus:
        return ""
    return translate("Canvas", "{used} of {total} used").format(used=rack.used, total=len(rack.layout.slots))
