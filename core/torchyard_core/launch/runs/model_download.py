"""Download of a run's model as one file with its `state_dict`, from the newest or a chosen checkpoint.

A host that has the checkpoint provides this file, because this computer may not have torch. For a sharded model, the
host assembles the parts (the agent's `daemon/run_models.py`).
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
from torchyard_core.launch.runs.history import RunRecord
from torchyard_core.launch.runs.known_runs import KnownRun
from torchyard_core.launch.runs.output_download import fetch_file
from torchyard_core.next_steps import SetField
from torchyard_core.topology.file import topology_from_text

ASK_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class ModelSource:
    """Where a host of the run has the checkpoints, and the interpreter that assembles a model there."""

    folder: str | None
    """The checkpoint folder that the hosts share. None means the folder of the run on each host."""
    python: str | None
    """The interpreter for the program. None means the host's default interpreter."""
    setup: tuple[str, ...] = ()
    env: Mapping[str, str] | None = None

    def params(self, run_id: str) -> dict[str, Any]:
        return {"run_id": run_id, "folder": self.folder}


@dataclass(frozen=True)
class SavedModel:
    """A model in a complete checkpoint on a host."""

    host: str
    step: int
    is_sharded: bool
    size: int
    """Total size in bytes of the files that contain the model."""
    newer_incomplete: str = ""
    """A sentence about a newer, incomplete checkpoint; empty if there is none."""


def model_sources(
    run: KnownRun,
    own: RunRecord | None,
    links: Mapping[str, AgentLink],
    pythons: Mapping[str, str | None],
) -> dict[str, ModelSource]:
    """Returns the model source of each host of `links`. Omits hosts that answer but have no topology of the run.

    If this desktop launched the run, its own record applies to all hosts. Otherwise, each host's record applies to that
    host.

    Args:
        run: The run.
        own: This desktop's record of the run, if there is one.
        links: Links to the hosts of the run.
        pythons: The interpreters that the fleet file names, by host.
    """
    if own is not None and own.topology:
        found = dict.fromkeys(links, (own.topology, own.name, own.lineage or own.run_id))
    else:
        asked: dict[str, Future[Any]] = {
            host: link.submit("run.show", {"run_id": run.run_id}) for host, link in links.items()
        }
        found = {}
        for host, future in asked.items():
            try:
                record = future.result(ASK_TIMEOUT_S)["record"]
            except AgentRefused:
                continue  # The host does not know the run.
            except (HostError, TimeoutError):
                found[host] = "", run.name, run.run_id  # The error is reported later, when checkpoints are listed.
                continue
            about = record.get("record", {})
            name, lineage = str(record.get("name", run.name)), str(about.get("lineage") or run.run_id)
            if text := str(about.get("topology", "")):
                found[host] = text, name, lineage
    return {host: _source(*one, pythons.get(host)) for host, one in found.items()}


def _source(text: str, name: str, lineage: str, python: str | None) -> ModelSource:
    try:
        topology = topology_from_text(text, name).topology
    except TorchyardError:
        topology = None
    if topology is None:  # The text may be from a newer Torchyard.
        return ModelSource(None, python)
    program = topology.program
    folder = checkpoint_folder(program, name, lineage)
    return ModelSource(folder, program.python or python, tuple(program.setup), dict(program.env))


def find_model(
    run: KnownRun, sources: Mapping[str, ModelSource], links: Mapping[str, AgentLink], step: int | None = None
) -> SavedModel:
    """Returns the model of the newest complete checkpoint, or of the checkpoint of `step`.

    Raises:
        RunFailed: No host that answers has such a checkpoint. The message names the parts that hosts lack.
        TorchyardError: No host that answers has such a checkpoint, and another host did not answer.
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
    """Returns the model of the chosen checkpoint. Raises the same errors as `find_model`."""
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
    """Returns the number and a sentence for each step whose checkpoint is incomplete on all hosts, newest first."""
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
    """Returns the file to write: `target`, or `RUN.pt` in the folder `target`, by default in the current folder."""
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
        cancelled: Called repeatedly while the host assembles the model. An error that it raises ends the download.

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
        with suppress(TorchyardError):  # If the connection has ended, the host removes the exported file itself.
            link.call("model.remove", {"run_id": run_id, "export": export})
    return size
