"""Restart of an ended run: the same topology and code, from its newest checkpoint or from the first step.

For a run of this desktop, the history contains the text of the topology and the root hash of the code. If the record on
a host differs from the history, the restart is refused. The files of the code are in the hosts' snapshot stores, and
the checkpoints are in the run's folders. A host that is new to the run receives the code through this computer, and the
newest checkpoint through the chief's keeper (the agent's `keeper/checkpoints/checkpoint_replication.py`).

For a run of another desktop, only the hosts have records. The user must confirm the launch, and name the secrets to
send.
"""

from __future__ import annotations

import base64
import hashlib
import shlex
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchyard_agent.protocol.messages import Prepared
from torchyard_agent.protocol.snapshot_manifest import root_of
from torchyard_core.errors import AgentRefused, HostError, RunFailed
from torchyard_core.launch.agent_interface import AgentLink, Hosts
from torchyard_core.launch.checks.check import Check
from torchyard_core.launch.confirmations import Confirmation
from torchyard_core.launch.progress import LaunchProgress
from torchyard_core.launch.rank_assignment import Plan
from torchyard_core.launch.runs.history import RunRecord
from torchyard_core.launch.runs.known_runs import KnownRun, is_over, run_details
from torchyard_core.launch.snapshots.snapshot import Snapshot
from torchyard_core.launch.snapshots.snapshot_upload import upload_to_all
from torchyard_core.launch.warm_start import IMPORTS
from torchyard_core.next_steps import LaunchTopology, SendSecrets, StopRun
from torchyard_core.text_sanitizer import one_line
from torchyard_core.topology.file import TopologyFile, topology_from_text
from torchyard_core.topology.model import Program, Topology

ASK_TIMEOUT_S = 30.0
LEAVES_WITHIN_S = 10.0
"""Maximum time in seconds to wait for the keepers to exit after the run has ended."""
POLL_S = 0.2


@dataclass(frozen=True)
class EndedRun:
    """An ended run that is to be restarted."""

    run_id: str
    lineage: str
    """ID of the first run in the chain of restarts. The path of a shared checkpoint folder ends with this ID."""
    name: str
    source: TopologyFile
    """The topology of the run. It refers to no folder on this computer."""
    topology: Topology
    snapshot: str | None
    """Root hash of the run's code; None without code."""
    links: Mapping[str, AgentLink]
    """Links to the hosts of the run that answer."""
    reported_by: str = ""
    """The host whose record describes the run; empty if this desktop launched it."""
    early_imports: tuple[str, ...] = ()
    """The modules that this run's launch let the ranks' interpreters import before the code arrived."""
    code: str | None = ""
    """Hash of the program's files, as in `RunRecord.code`."""
    from_beginning: bool = False
    """Whether the new run begins at the first step instead of the newest checkpoint, with checkpoints of its own."""


def load_ended_run(run: KnownRun, links: Mapping[str, AgentLink], own: RunRecord | None = None) -> EndedRun:
    """Returns the ended run from this desktop's record `own`, or else from the first readable record of a host.

    `own` is used only if it contains the topology and the hash of the code.

    Raises RunFailed if the run has not ended, if a host's record differs from this desktop's, or if none of the hosts
    that answer has a readable record.
    """
    over_by = time.monotonic() + LEAVES_WITHIN_S
    while True:
        answers = _answers(run, links)
        states = {host: str(run_details(run, answer)["state"]) for host, answer in answers.items()}
        going = [
            (host, states[host]) for host, answer in answers.items() if answer["alive"] or not is_over(states[host])
        ]
        if not going:
            break
        # The primary's answer comes first. If it reports the end of the run, the other hosts will soon report it, too.
        if not is_over(next(iter(states.values()))) or time.monotonic() > over_by:
            host, state = next((one for one in going if not is_over(one[1])), going[0])
            if is_over(state):
                message = f"run {run.run_id} has {state}, but its keeper on {host} has not exited yet."
                hint = "It may be waiting for `notify`. Try again in a moment."
                raise RunFailed(message, code="run_alive", hint=hint)
            message = f"run {run.run_id} is still {state} on {host}."
            raise RunFailed(message, code="run_alive", hint=("Stop it first.", StopRun(run.run_id)))
        time.sleep(POLL_S)  # The run has ended, and its keepers will exit soon.
    reached = {host: links[host] for host in answers}
    if own is not None and own.tells_what_ran:
        return _from_history(run, own, answers, reached)
    return _from_hosts(run, answers, reached)


def confirm_foreign_run(again: EndedRun) -> Confirmation | None:
    """Returns the question whether to launch what a host's record describes; None for a run of this desktop."""
    if not again.reported_by:
        return None
    program = again.topology.program
    lines = [
        _command_line(program),
        *(f"setup: {line}" for line in program.setup),
        *([f"interpreter: {program.python}"] if program.python else []),
        *([f"environment: {', '.join(program.env)}"] if program.env else []),
        *([f"notify: {program.notify}"] if program.notify else []),
        f"secrets: {', '.join(program.secrets) or 'none'}",
        f"code: {again.snapshot[:12] if again.snapshot else 'none'}",
        f"hosts: {_hosts_text(again.topology)}",
    ]
    return Confirmation(
        "foreign_run",
        f"this computer did not launch run {again.run_id}; {again.reported_by} says that it was:\n  "
        + "\n  ".join(map(one_line, lines)),
        "Launch it?",
        ("Launch it only where you trust that host.", LaunchTopology()),
        accept="launch",
    )


def confirm_foreign_secrets(again: EndedRun) -> Confirmation | None:
    """Returns the question whether to send the values of the secrets that a host's record names.

    Returns None for a run of this desktop, or if the record names no secrets.
    """
    names = again.topology.program.secrets
    if not again.reported_by or not names:
        return None
    hosts = f"hosts: {_hosts_text(again.topology)}"
    lines = [f"secrets: {', '.join(names)}", _command_line(again.topology.program), hosts]
    return Confirmation(
        "foreign_secrets",
        f"{again.reported_by} says that run {again.run_id} needs secrets of this computer, which did not launch it:\n  "
        + "\n  ".join(map(one_line, lines)),
        f"Send {one_line(', '.join(names))} to the hosts?",
        "Launch the topology file instead, where you know what it does with them.",
        accept="secrets",
    )


def _command_line(program: Program) -> str:
    what = program.command or (("-m", program.module) if program.module else (program.script or "",))
    return f"command: {shlex.join([*what, *program.args])}"


def _hosts_text(topology: Topology) -> str:
    """Formats the names of the hosts on which the topology's pools and pins allow replicas."""
    named = {host for pool in topology.pools for host in pool.hosts or ()}
    named |= {place.partition(":")[0] for place in topology.pins.values()}
    if any(not pool.hosts for pool in topology.pools):
        return "any host of the fleet" + (f", among them {', '.join(sorted(named))}" if named else "")
    return ", ".join(sorted(named))


def allowed_secrets(again: EndedRun, named: Sequence[str] = ()) -> tuple[str, ...]:
    """Returns the names of the topology's secrets, whose values will be sent.

    If the run was launched by another desktop, the user must name each of its secrets (`runs restart --secret`).
    Raises RunFailed for a secret that is not in `named`.
    """
    wanted = again.topology.program.secrets
    lacking = [name for name in wanted if name not in named] if again.reported_by else []
    if lacking:
        options = tuple(word for name in lacking for word in ("--secret", name))
        raise RunFailed(
            f"{again.reported_by} says that run {again.run_id} needs the secret{'s' * (len(lacking) > 1)} "
            f"{', '.join(lacking)}, but this computer did not launch it.",
            code="foreign_secrets",
            hint=SendSecrets(again.run_id, options),
        )
    return wanted


def _answers(run: KnownRun, links: Mapping[str, AgentLink]) -> dict[str, dict[str, Any]]:
    """Returns the answers to `run.show` of the hosts that answer. The primary's answer comes first."""
    order = [run.primary, *(host for host in run.hosts if host != run.primary)]
    asked: dict[str, Future[Any]] = {
        host: links[host].submit("run.show", {"run_id": run.run_id}) for host in order if host in links
    }
    answers: dict[str, dict[str, Any]] = {}
    for host, future in asked.items():
        try:
            answers[host] = future.result(ASK_TIMEOUT_S)
        except (AgentRefused, HostError, TimeoutError):
            continue  # The host is unavailable or has removed the run. Another host may have the record.
    return answers


def _from_history(
    run: KnownRun, own: RunRecord, answers: Mapping[str, dict[str, Any]], links: Mapping[str, AgentLink]
) -> EndedRun:
    """Returns the run as recorded in this desktop's history.

    Raises RunFailed if the record of a host differs from the history, or if no host has a record.
    """
    for host, answer in answers.items():
        theirs = answer["record"]
        text, root = theirs.get("record", {}).get("topology"), theirs.get("snapshot")
        differs = [
            *(["topology"] if text and text != own.topology else []),
            *(["code"] if root and root != own.snapshot else []),
        ]
        if differs:
            raise RunFailed(
                f"the record of run {own.run_id} on {host} is not what this computer launched: "
                f"its {' and its '.join(differs)} differ{'s' * (len(differs) == 1)}.",
                code="record_differs",
                hint=(f"Find out who changed it on {host}.", LaunchTopology()),
            )
    if not answers:
        raise _no_record(run)
    source = topology_from_text(own.topology, own.name)
    if source.topology is None:
        message = f"this version cannot read the topology that run {own.run_id} was launched with."
        raise RunFailed(message, code="run_forgotten", hint=LaunchTopology())
    known = own.run_id, own.lineage or own.run_id, own.name, source, source.topology, own.snapshot, links
    return EndedRun(*known, early_imports=_early_imports(answers), code=own.code)


def _early_imports(answers: Mapping[str, dict[str, Any]]) -> tuple[str, ...]:
    """Returns the modules that the ended run imported early. Names that are not in IMPORTS are ignored."""
    for answer in answers.values():
        names = answer["record"].get("record", {}).get("early_imports", ())
        return tuple(name for name in IMPORTS if name in names)
    return ()


def _from_hosts(run: KnownRun, answers: Mapping[str, dict[str, Any]], links: Mapping[str, AgentLink]) -> EndedRun:
    """Returns the run as recorded on the first host with a readable record. Raises RunFailed if there is none."""
    for host, answer in answers.items():
        record = answer["record"]
        text = record.get("record", {}).get("topology", "")
        source = topology_from_text(text, record.get("name", run.name)) if text else None
        if source is not None and source.topology is not None:
            name = str(record.get("name", run.name))
            lineage = str(record.get("record", {}).get("lineage", run.run_id))
            known = run.run_id, lineage, name, source, source.topology, record.get("snapshot"), links, host
            return EndedRun(*known, _early_imports(answers))
    raise _no_record(run)


def _no_record(run: KnownRun) -> RunFailed:
    where = " and ".join(run.hosts)
    return RunFailed(
        f"no host that answers has a record of run {run.run_id} ({where}): it was removed, or is of an older version.",
        code="run_forgotten",
        hint=LaunchTopology(),
    )


def provide_code(
    run_id: str,
    root: str | None,
    sources: Mapping[str, AgentLink],
    links: dict[str, AgentLink],
    hosts: Hosts,
    progress: LaunchProgress,
) -> None:
    """Makes the code of a run available on every host of `links`. Raises RunFailed if no host has the code.

    Args:
        run_id: The ID of the run, for error messages.
        root: The root hash of the run's code; None without code.
        sources: Links to hosts that may have the code.
        links: Links to the hosts that need the code. Links that are lost during the upload are replaced.
        hosts: Opens new links in place of lost ones.
        progress: The callbacks of the launch.
    """
    if root is None:
        return
    offered = {host: link.submit("snapshot.offer", {"root": root}) for host, link in links.items()}
    answers = progress.wait_for_all(offered)
    lacking = {host: links[host] for host, answer in answers.items() if not answer["have"]}
    if not lacking:
        return
    holders = {**sources, **links}
    for host, link in holders.items():
        manifest = None if host in lacking else _manifest(link, root)
        if manifest is not None and root_of(manifest) == root:
            with tempfile.TemporaryDirectory(prefix="torchyard-") as folder:
                _fetch(manifest, link, Path(folder), progress)
                upload_to_all(Snapshot(Path(folder), root, manifest), lacking, hosts, progress)
            links.update(lacking)
            return
    message = f"no host that answers has the code of run {run_id} any more, which {' and '.join(lacking)} needs."
    raise RunFailed(message, code="code_gone", hint=LaunchTopology())


def _manifest(link: AgentLink, root: str) -> list[Any] | None:
    try:
        found: list[Any] | None = link.call("snapshot.manifest", {"root": root})["manifest"]
    except (AgentRefused, HostError):
        return None
    return found


def _fetch(manifest: list[Any], link: AgentLink, folder: Path, progress: LaunchProgress) -> None:
    """Downloads the files of a snapshot into `folder`, to the paths in the manifest.

    Raises RunFailed for a damaged file, or for a path outside of `folder`.
    """
    first: dict[str, Path] = {}
    for entry in manifest:
        if "sha256" not in entry:
            continue
        progress.stop_if_cancelled()
        place = (folder / entry["path"]).resolve()
        if not place.is_relative_to(folder.resolve()):
            raise RunFailed(f"{link.host} offered a file outside the working folder: {entry['path']}.", code="workdir")
        place.parent.mkdir(parents=True, exist_ok=True)
        if entry["sha256"] in first:
            shutil.copyfile(first[entry["sha256"]], place)
            continue
        digest, offset = hashlib.sha256(), 0
        with place.open("wb") as file:
            while offset < entry["size"]:
                piece = link.call("snapshot.get", {"sha256": entry["sha256"], "offset": offset})
                data = base64.b64decode(piece["data"])
                if not data:
                    break
                file.write(data)
                digest.update(data)
                # The received bytes are counted here, so that the loop ends even if the host reports wrong sizes.
                offset += len(data)
        if digest.hexdigest() != entry["sha256"]:
            raise RunFailed(f"{entry['path']} is damaged on {link.host}.", code="code_gone", hint=LaunchTopology())
        first[entry["sha256"]] = place


def check_resumed(again: EndedRun, planned: Plan, prepared: Mapping[str, Prepared]) -> Check:
    """Returns the checklist line about the checkpoint from which the run resumes."""
    if again.from_beginning:
        return Check("resume", "", True, f"begins at the first step, without the checkpoints of {again.run_id}")
    shared = planned.topology.program.checkpoint_dir
    if shared is not None:
        return Check("resume", "", True, f"resumes from the newest checkpoint of {again.run_id} in {shared}")
    found = {host: prepared[host].get("checkpoint", "") for host in planned.hosts}
    newest = max(found.values(), default="")
    if not newest:
        message = f"no host of the run has a complete checkpoint of {again.run_id}: it begins at the first step"
        return Check("resume", "", True, message, warning=True)
    step = int(newest.removeprefix("step-"))
    where = " and ".join(host for host, name in found.items() if name == newest)
    return Check("resume", "", True, f"resumes from step {step} of {again.run_id}, stored on {where}")
