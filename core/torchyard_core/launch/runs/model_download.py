"""Download of a run's model as one file with its `state_dict`, from the newest or a chosen checkpoint.

A host that has the checkpoint provides the file (the agent's `daemon/run_models.py`): it assembles the parts of a
sharded model, because this computer may not have torch.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchyard_core.errors import AgentRefused, HostError, RunFailed, TorchyardError, UsageError
from torchyard_core.formatting import counted
from torchyard_core.launch.agent_interface import AgentLink
from torchyard_core.launch.replica_plans import checkpoint_folder
from torchyard_core.launch.runs.download import fetch_file
from torchyard_core.launch.runs.history import RunRecord
from torchyard_core.launch.runs.known_runs import KnownRun
from torchyard_core.next_steps import SetField
from torchyard_core.topology.file import topology_from_text

ASK_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class ModelSource:
    """How a host of the run finds checkpoints, and which interpreter it uses to assemble a model."""

    folder: str | None
    """The checkpoint folder that the hosts share; None for the run's own folder on each host."""
    python: str | None
    """The program's interpreter. None means the host's default interpreter."""
    setup: tuple[str, ...] = ()
    env: Mapping[str, str] | None = None

    def params(self, run_id: str) -> dict[str, Any]:
        return {"run_id": run_id, "folder": self.folder}


@dataclass(frozen=True)
class SavedModel:
    """The model in a complete checkpoint on a host."""

    host: str
    step: int
    is_sharded: bool
    size: int
    """Total size in bytes of the files that contain the model."""
    newer_incomplete: str = ""
    """A sentence about a newer checkpoint that is incomplete; otherwise empty."""


def model_sources(
    run: KnownRun,
    own: RunRecord | None,
    links: Mapping[str, AgentLink],
    pythons: Mapping[str, str | None],
) -> dict[str, ModelSource]:
    """Returns the model source of each host of `links` that knows the run.

    For a run that this desktop launched, the desktop's record is used for all hosts. Otherwise, each host's own record
    is used for that host.

    Args:
        pythons: The interpreters of the fleet file, by host.
    """
    if own is not None and own.topology:
        found = dict.fromkeys(links, (own.topology, own.name, own.lineage or own.run_id))
    else:
        asked: dict[str, Future[Any]] = {
            host: link.submit("run.show", {"run_id": run.run_id}) for host, link in links.items()
        }
        found = {}
        for host, future in asked.items():
            with suppress(AgentRefused, HostError, TimeoutError):  # Listing the checkpoints reports the error.
                record = future.result(ASK_TIMEOUT_S)["record"]
                about = record.get("record", {})
                name, lineage = str(record.get("name", run.name)), str(about.get("lineage") or run.run_id)
                found[host] = (str(about.get("topology", "")), name, lineage)
    return {
        host: _source(text, name, lineage, pythons.get(host)) for host, (text, name, lineage) in found.items() if text
    }


def _source(text: str, name: str, lineage: str, python: str | None) -> ModelSource:
    try:
        topology = topology_from_text(text, name).topology
    except TorchyardError:
        topology = None
    if topology is None:  # A newer version of Torchyard launched the run.
        return ModelSource(None, python)
    program = topology.program
    folder = checkpoint_folder(program, name, lineage)
    return ModelSource(folder, program.python or python, tuple(program.setup), dict(program.env))


def find_model(
    run: KnownRun, sources: Mapping[str, ModelSource], links: Mapping[str, AgentLink], step: int | None = None
) -> SavedModel:
    """Returns the model of the newest complete checkpoint, or of `step`.

    Raises:
        RunFailed: No host that answers has the checkpoint. The message names what is missing on which host.
        TorchyardError: No host has it, and a host did not answer.
    """
    order = [host for host in dict.fromkeys((run.primary, *run.hosts)) if host in links]
    asked: dict[str, Future[Any]] = {
        host: links[host].submit("checkpoints.list", sources[host].params(run.run_id))
        for host in order
        if host in sources
    }
    found: dict[str, list[dict[str, Any]]] = {}
    problems: list[TorchyardError] = []
    for host, future in asked.items():
        try:
            found[host] = future.result(ASK_TIMEOUT_S)["checkpoints"]
        except TimeoutError:
            problems.append(HostError(host, f"{host} did not list the run's checkpoints in time."))
        except TorchyardError as error:
            if not isinstance(error, AgentRefused) or error.code != "no_run":
                problems.append(error)
    return _choose(run.run_id, found, problems, step)


def _choose(
    run_id: str, found: Mapping[str, list[dict[str, Any]]], problems: Sequence[TorchyardError], step: int | None
) -> SavedModel:
    """Chooses the checkpoint. Raises the same errors as `find_model`."""
    complete = {
        (int(one["step"]), -number): SavedModel(host, int(one["step"]), bool(one["sharded"]), int(one["bytes"]))
        for number, (host, checkpoints) in enumerate(found.items())
        for one in checkpoints
        if not one["missing"] and not one["parts"] and (step is None or one["step"] == step)
    }
    newest = complete[max(complete)] if complete else None
    incomplete = _incomplete(found, step)
    if newest is not None:
        newer = [sentence for number, sentence in incomplete if number > newest.step]
        return SavedModel(newest.host, newest.step, newest.is_sharded, newest.size, newer[0] if newer else "")
    if incomplete:
        number, sentence = incomplete[0]
        raise RunFailed(
            f"run {run_id} has no complete checkpoint{f' of step {number}' if step is not None else ''}. {sentence}",
            code="incomplete_checkpoint",
            hint=(
                "Hosts that save one sharded model need a folder that all of them share.",
                SetField("program.checkpoint_dir"),
            ),
        )
    if problems:
        raise problems[0]
    where = " and ".join(found) or "any host that answers"
    others = sorted({int(one["step"]) for checkpoints in found.values() for one in checkpoints})
    if step is not None and others:
        have = f"There {'is one of step' if len(others) == 1 else 'are those of steps'} {', '.join(map(str, others))}."
        raise RunFailed(f"run {run_id} has no checkpoint of step {step} on {where}.", code="no_checkpoint", hint=have)
    raise RunFailed(
        f"run {run_id} has no checkpoint on {where}.",
        code="no_checkpoint",
        hint="A run has its first checkpoint after program.checkpoint_every_s, or at its end.",
    )


def _incomplete(found: Mapping[str, list[dict[str, Any]]], step: int | None) -> list[tuple[int, str]]:
    """Returns a sentence for each step whose checkpoint is incomplete on all hosts, newest first."""
    steps = sorted({int(one["step"]) for checkpoints in found.values() for one in checkpoints}, reverse=True)
    result = []
    for number in steps if step is None else [step]:
        clauses, is_incomplete = [], False
        for host, checkpoints in found.items():
            here = [one for one in checkpoints if one["step"] == number]
            if any(not one["missing"] and not one["parts"] for one in here):
                is_incomplete = False
                break
            missing = next((str(one["missing"]) for one in here if one["missing"]), "")
            parts: list[str] = next((one["parts"] for one in here if one["parts"]), [])
            if missing:
                clauses.append(f"{missing} is missing on {host}")
            elif parts:
                clauses.append(f"{host} has only {', '.join(parts)}")
            elif here:
                clauses.append(f"the save on {host} is not complete")
            else:
                clauses.append(f"{host} has no part of it")
            is_incomplete = is_incomplete or bool(here)
        if is_incomplete:
            result.append((number, f"The checkpoint of step {number} is incomplete: {'; '.join(clauses)}."))
    return result


def target_of(target: Path | None, run_id: str) -> Path:
    """Returns the file to write: `target`, `RUN.pt` in the folder `target`, or `RUN.pt` in the current folder."""
    if target is None:
        return Path(f"{run_id}.pt")
    return target / f"{run_id}.pt" if target.is_dir() else target


def require_absent(file: Path) -> None:
    """Raises UsageError if the file exists."""
    if file.exists():
        raise UsageError(f"{file} exists already.", code="file_exists", hint="Name another file, or add --force.")


def fetch_model(
    run_id: str,
    model: SavedModel,
    source: ModelSource,
    file: Path,
    link: AgentLink,
    progress: Callable[[str, int, int], None],
    cancelled: Callable[[], None] = lambda: None,
) -> int:
    """Downloads a model to `file`, and returns the number of bytes.

    Args:
        progress: Called with (host, bytes downloaded, total bytes).
        cancelled: Called while the host assembles the model. If it raises an error, the download ends.

    Raises:
        TorchyardError: The host does not provide the model.
        OSError: The file cannot be written.
    """
    export = secrets.token_hex(8)
    file.parent.mkdir(parents=True, exist_ok=True)
    request = {
        **source.params(run_id),
        **{"step": model.step, "export": export, "python": source.python},
        **{"setup": list(source.setup), "env": dict(source.env or {})},
    }
    try:
        while not (answer := link.call("model.export", request))["path"]:
            cancelled()
        size, done = int(answer["size"]), 0
        scratch = file.with_name(f".{file.name}-{export}")
        try:
            for piece in fetch_file(run_id, str(answer["path"]), size, scratch, link):
                done += piece
                progress(model.host, done, size)
            if done != size:
                raise HostError(model.host, f"{model.host} sent {done} of {counted(size, 'byte')} of the model.")
            scratch.replace(file)
        finally:
            scratch.unlink(missing_ok=True)
    finally:
        with suppress(TorchyardError):  # When the connection ends, the host removes the file itself.
            link.call("model.remove", {"run_id": run_id, "export": export})
    return size
