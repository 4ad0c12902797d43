"""Resumes from the newest complete checkpoint, which the chief reads and sends to all ranks of its group.

A resumed script repeats the code before its loop, and the code at the end of finished epochs (`scheduler.step()`).
State that this code changes is therefore restored only at the *resume point*, which is immediately before the first new
batch or, if the script uses no loader of the cluster, before the first new step. The objects that are given to
checkpoint() are restored twice: when checkpoint() is called, and at the resume point.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torchyard_roles.checkpoints import checkpoint_files, group_broadcast, training_state
from torchyard_roles.checkpoints.fingerprint import first_difference
from torchyard_roles.checkpoints.saver import log
from torchyard_roles.checkpoints.sharded_tensors import shard_optimizer_state
from torchyard_roles.devices import move_optimizer
from torchyard_roles.environment import Environment
from torchyard_roles.errors import UsageProblem
from torchyard_roles.model_optimizer_pairs import groups_of

if TYPE_CHECKING:
    from torchyard_roles.checkpoints.sharded_saving import ShardedSaving
    from torchyard_roles.coordination.join_store_client import JoinStore
    from torchyard_roles.data_loader import ShareLoader


class Resumed:
    """The state from which a run resumes."""

    def __init__(self, step: int, script: dict[str, Any], part: dict[str, Any] | None) -> None:
        """Initializes the object with the restored state.

        Args:
            step: The step of the checkpoint.
            script: The optimizer's state, the objects of checkpoint() and the data positions of the rank that saved
                them.
            part: The data positions and random states of this rank, or None if this rank saved none.
        """
        self.step = step
        place = part if part is not None else script
        self.stateful: dict[str, Any] = script.get("stateful", {})
        self.models: dict[str, Any] = script.get("models", {})
        """The states of the models of all distribute() calls after the first. Empty if the script's state comes from a
        part or through the join store."""
        self.positions: list[dict[str, Any]] = place.get("loaders", [])
        self.active: int = place.get("active", 0)
        self._optimizer_state = script.get("optimizer")
        self._groups: list[dict[str, Any]] = []
        self._random = part["random"] if part is not None else None

    @property
    def waits_for_loader(self) -> bool:
        """Whether the resume point is reached when a loader of the cluster loads its first new batch."""
        return self.active < len(self.positions) and self.positions[self.active]["begun"] > 0

    def into(self, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        """Restores the optimizer's state, but not the settings of its groups, such as learning rates.

        The settings keep the script's values until finish() is called, because a scheduler that the script creates
        after this call expects these values. If the checkpoint has more parameter groups than the optimizer, finish()
        restores the whole state.
        """
        state = self._optimizer_state
        if state is None or len(groups_of(state)) > len(optimizer.param_groups):
            return
        self._optimizer_state = None
        script = [_settings(group) for group in optimizer.param_groups]
        optimizer.load_state_dict(state)
        move_optimizer(optimizer, device)
        self._groups = [_settings(group) for group in optimizer.param_groups]
        for group, settings in zip(optimizer.param_groups, script):
            group.update(settings)

    def finish(self, optimizer: torch.optim.Optimizer, stateful: dict[str, Any], device: torch.device) -> None:
        """Restores optimizer settings, such as learning rates, the objects of checkpoint(), and the random states.

        Must be called at the resume point. Raises UsageProblem if the checkpoint has parameter groups that the script
        has not added again.
        """
        state, self._optimizer_state = self._optimizer_state, None
        if state is not None:
            saved, now = (
                [len(group["params"]) for group in each] for each in (groups_of(state), optimizer.param_groups)
            )
            if saved != now:
                raise UsageProblem(
                    f"At step {self.step} the optimizer's groups had {saved} parameters, and here they have {now}.",
                    "Call add_param_group() before distribute(), or at the beginning of an epoch.",
                )
            optimizer.load_state_dict(state)
            move_optimizer(optimizer, device)
        for group, settings in zip(optimizer.param_groups, self._groups):
            for name, value in settings.items():
                if isinstance(value, torch.Tensor) and isinstance(group.get(name), torch.Tensor):
                    # This tensor is changed in place, because a compiled step or a CUDA graph may refer to it.
                    group[name].copy_(value)
                else:
                    group[name] = value
        for name, each in stateful.items():
            if name in self.stateful:
                each.load_state_dict(self.stateful[name])
        if self._random is not None:
            training_state.set_random_state(self._random, device)

    def place(self, number: int, loader: ShareLoader, resumed: Any) -> None:
        """Sets the position at which loader `number` resumes.

        If the run stopped in that loader, the loader calls `resumed` when it reaches the position.
        """
        if number < len(self.positions):
            loader.go_on_from(self.positions[number], resumed if number == self.active else _nothing)


def restore(
    root: Path,
    environment: Environment,
    store: JoinStore | None,
    size: int,
    fingerprint: dict[str, Any],
    model: torch.nn.Module,
    device: torch.device,
    sharded: ShardedSaving | None = None,
    optimizer: Any = None,
) -> Resumed | None:
    """Loads the newest complete checkpoint into `model`, and returns the state to resume from.

    Returns None if there is no complete checkpoint.

    All ranks of the group must call this function. The other ranks wait until the first rank has read the checkpoint.
    Groups without the chief resume from the parts that they saved, and receive their model from servers or other
    groups. If the checkpoint belongs to another model, UsageProblem is raised on all ranks of the chief's group.

    Args:
        sharded: The object that loads the model and the state of `optimizer`, if they are sharded over the ranks.
    """
    first = size == 1 or environment.group_rank == 0
    is_chief = environment.trains and (environment.rank == 0 or (sharded is not None and first))
    found: checkpoint_files.Checkpoint | None = None
    word: bytes | None = None
    who = f"{environment.replica or environment.name}.{environment.local_rank}"
    key = f"resume/{environment.gang}/{environment.generation}"
    part: dict[str, Any] | None = None
    if first:
        summary: dict[str, Any] = {}
        if is_chief:
            found, contents = _newest(root, fingerprint, summary, whole=sharded is None)
        elif environment.group > 0:
            part = _newest_part(root, who)
            summary = {"step": part["step"] if part is not None else None}
        word = json.dumps(summary).encode()
    connected = group_broadcast.is_connected(size)
    if connected:
        word = group_broadcast.from_first(word, device)
    elif size > 1 and store is not None:
        if first:
            own = _of_chief(contents) if found is not None else _of_script(part)
            group_broadcast.offer(_versions(own), store, f"{key}/script")
        word = group_broadcast.value_from_first(word, store, key)
    received = json.loads(word or b"{}")
    if "error" in received:
        raise UsageProblem(received["error"], received["hint"])
    step = received.get("step")
    if step is None:
        return None
    if part is None:
        part = checkpoint_files.read_part(root, who, step)
    if connected and "epoch" in received:
        raw = [_bytes_of(found, name, contents) if found is not None else None for name in ("optimizer.pt", "extra.pt")]
        state, extra = (_load(group_broadcast.from_first(each, device)) for each in raw)
        if sharded is not None:
            state = _load_sharded(sharded, root, step, received, contents if found else None, model, optimizer, state)
        script = {**extra, "optimizer": state}
    elif connected:  # A group without the chief resumes from the part that its first rank saved.
        script = _load(group_broadcast.from_first(_dumped(_of_script(part)) if first else None, device))
    elif found is not None:
        script = _of_chief(contents)
    else:
        shared = _shared(root, step) if "epoch" in received else {}
        script = _of_script(part) or shared or _load(store.try_get(f"{key}/script") if size > 1 and store else None)
    if found is not None and sharded is None:
        model.load_state_dict(contents.pop("model.pt"))
    if part is None:
        log(f"{who} has saved no part of step {step} and continues with new random numbers.")
    if not {"stateful", "optimizer"} <= script.keys():
        log(f"{who} resumes at step {step} with the script's new optimizer and schedulers: no saved ones were found.")
    if is_chief:
        log(f"resumed from {root / checkpoint_files.name_of(step)}: {step} steps, {received['epoch']} epochs done.")
    return Resumed(step, script, part)


def _load_sharded(
    sharded: ShardedSaving,
    root: Path,
    step: int,
    received: dict[str, Any],
    contents: dict[str, Any] | None,
    model: torch.nn.Module,
    optimizer: Any,
    state: dict[str, Any],
) -> dict[str, Any]:
    """Loads a sharded model, and returns the optimizer's state for this rank. All ranks must call this function.

    If the checkpoint contains an unsharded model, the first rank reads and distributes the model.
    """
    if received.get("sharded"):
        folder = root / checkpoint_files.name_of(step)
        sharded.load(folder, model)
        return sharded.load_optimizer(folder, state, optimizer)
    sharded.load_full(model, contents["model.pt"] if contents is not None else None)
    return shard_optimizer_state(state, optimizer)


def _newest(
    root: Path, fingerprint: dict[str, Any], summary: dict[str, Any], *, whole: bool
) -> tuple[checkpoint_files.Checkpoint | None, dict[str, Any]]:
    """Returns the newest readable checkpoint and its contents, or (None, {}) if there is none or its model differs.

    Args:
        summary: A dict to which the data for the other ranks are added.
        whole: Whether to load sharded tensors too. If not, each rank loads its part later.
    """
    for step in checkpoint_files.steps(root):
        try:
            found = checkpoint_files.read(root, step)
            difference = first_difference(found.about.get("fingerprint"), fingerprint)
            if difference:
                summary["error"] = f"The checkpoint {found.folder} belongs to another model: {difference}."
                summary["hint"] = "Name another program.checkpoint_dir, move this folder away, or train its model."
                return None, {}
            names = checkpoint_files.FILES if whole or not found.is_sharded else checkpoint_files.SHARDED_FILES[:2]
            contents = {name: found.load(name, whole=whole) for name in names}
        except checkpoint_files.Damaged as damage:
            log(f"the checkpoint {root / checkpoint_files.name_of(step)} is ignored: {damage}.")
            continue
        summary.update(step=step, epoch=found.about.get("epoch", 0), sharded=found.is_sharded)
        return found, contents
    return None, {}


def _newest_part(root: Path, who: str) -> dict[str, Any] | None:
    """Returns the newest readable part that `who` saved, or None if there is none."""
    for step in checkpoint_files.part_steps(root, who):
        part: dict[str, Any] | None = checkpoint_files.read_part(root, who, step)
        if part is not None:
            return part
    return None


def _of_chief(contents: dict[str, Any]) -> dict[str, Any]:
    return {**contents["extra.pt"], "optimizer": contents["optimizer.pt"]}


def _of_script(part: dict[str, Any] | None) -> dict[str, Any]:
    """Returns a part without its random states, or an empty dict if the part contains no objects of the script."""
    if part is None or "stateful" not in part:
        return {}
    return {name: value for name, value in part.items() if name != "random"}


def _shared(root: Path, step: int) -> dict[str, Any]:
    """Returns the chief's state if this process can read the chief's checkpoint folder, otherwise an empty dict."""
    try:
        found = checkpoint_files.read(root, step)
        return _of_chief({name: found.load(name) for name in ("optimizer.pt", "extra.pt")})
    except checkpoint_files.Damaged:
        return {}


def _bytes_of(found: checkpoint_files.Checkpoint, name: str, contents: dict[str, Any]) -> bytes:
    if found.is_sharded:
        return _dumped(contents[name])
    return (found.folder / name).read_bytes()


def _load(data: bytes | None) -> Any:
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True) if data else {}


def _dumped(state: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings of a parameter group, such as its learning rate."""
    return {
        name: value.clone() if isinstance(value, torch.Tensor) else value
        for name, value in group.items()
        if name != "params"
    }


def _versions(script: dict[str, Any]) -> Iterator[bytes]:
    """Yields encodings of the script's state, each of which omits more than the previous one and is smaller.

    Models are omitted because the strategy distributes them.
    """
    script = {name: value for name, value in script.items() if name != "models"}
    yield _dumped(script)
    if "optimizer" in script:
        script = {**script, "optimizer": {**script["optimizer"], "state": {}}}
        yield _dumped(script)
    yield _dumped({name: value for name, value in script.items() if name != "stateful"})


def _nothing() -> None:
    pass
