"""Enforces the calendar on this host: finds the owners of processes, warns them, and ends processes.

Every action is recorded. A user's agent acts only on that user's processes, and root's agent acts on the processes of
all users. The PID, start time and UID of a process are compared again before each signal (`process_identity`). A
process of a run is ended by stopping the run. The run can then save its state, and the keeper does not restart the
process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections import deque
from functools import partial
from typing import Any

from torchyard_agent.daemon import audit
from torchyard_agent.daemon.runs import Runs
from torchyard_agent.enforcement import escalation, process_identity, terminal_messages
from torchyard_agent.enforcement.classification import CGROUP, Finding, Origin, Use, classify
from torchyard_agent.enforcement.escalation import Act
from torchyard_agent.enforcement.process_identity import Identity
from torchyard_agent.enforcement.process_origin import find_origin, is_in_group_below
from torchyard_agent.enforcement.warning_text import warning
from torchyard_agent.peer_credentials import peer_pid
from torchyard_agent.protocol.calendar import Calendar, Enforcement
from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.protocol.paths import gpu_socket
from torchyard_agent.protocol.timestamps import rfc3339
from torchyard_agent.telemetry.display_servers import is_display_server
from torchyard_agent.telemetry.process_owners import user_name

KEPT_ACTS = 50
"""Maximum number of actions that `bookings.status` returns. The audit log contains all of them."""

log = logging.getLogger(__name__)


class Enforcer:
    """The state of enforcement on this host."""

    def __init__(self, agent_dir: str, node: str, runs: Runs):
        self._agent_dir = agent_dir
        self._node = node
        self._runs = runs
        self._state = escalation.EMPTY
        self._was_dry_run: bool | None = None
        self._findings: list[Finding] = []
        self._identified: set[int] = set()
        """The PIDs in the last sample that have been identified since the driver began to list them."""
        self._acts: deque[dict[str, Any]] = deque(maxlen=KEPT_ACTS)

    @staticmethod
    def capabilities() -> dict[str, Any]:
        """Returns whether this agent may signal processes of all users (as root), and whether it uses pidfds."""
        is_root = os.getuid() == 0
        return {"acts_on": "all" if is_root else "own", "root": is_root, "pidfd": process_identity.HAS_PIDFD}

    def summary(self) -> dict[str, Any]:
        """Returns the classified GPU uses in the last sample, and the most recent actions."""
        return {"findings": [_finding_json(one) for one in self._findings], "acts": list(self._acts)}

    def forget(self) -> None:
        """Discards the state. Users are then warned again."""
        self._state, self._findings = escalation.EMPTY, []

    async def enforce(
        self, known: Calendar, policy: Enforcement, host: str, sample: dict[str, Any], now: float
    ) -> None:
        """Classifies the uses of GPUs in a sample, and carries out the resulting actions.

        If the calendar is stale or this is a dry run, uses and actions are only recorded.
        """
        if policy.dry_run != self._was_dry_run:
            self.forget()  # In a dry run no warnings were sent, so the users must be warned again.
            self._was_dry_run = policy.dry_run
        self._findings = [classify(use, known, host, now) for use in self._uses(sample)]
        reach = None if os.getuid() == 0 else os.getuid()
        self._state, acts = escalation.proceed(
            self._state, self._findings, policy, reach, now, is_fresh=known.is_fresh(now)
        )
        for act in acts:
            outcome = "" if policy.dry_run else await self._do(act, host)
            self._note(act, policy, host, outcome, now)

    def _uses(self, sample: dict[str, Any]) -> list[Use]:
        uses = []
        self._identified &= {process["pid"] for gpu in sample["gpus"] for process in gpu["processes"]}
        for gpu in sample["gpus"]:
            for process in gpu["processes"]:
                if process["draws_screen"]:
                    continue
                use = self._use(gpu["uuid"] or "", process)
                if use.uid is not None:
                    self._identified.add(use.pid)
                elif use.pid in self._identified:
                    continue  # The process is not hidden. It has exited, but the driver still lists it.
                uses.append(use)
        return uses

    def _use(self, gpu: str, process: dict[str, Any]) -> Use:
        pid, program = process["pid"], process["program"]
        found = process_identity.identify(pid)
        if found is None:
            return Use(gpu, pid, 0, None, process["user"], program)
        origin = find_origin(pid, found.uid)
        run_id = str(process["replica"] or "").partition("/")[0]
        keeper = 0 if run_id else keeper_above(gpu, pid)
        if keeper and origin.container:
            # The container belongs to the run's user, because a rank started it in the run's control group.
            holder = process_identity.identify(keeper)
            if holder is not None:
                origin = Origin(holder.uid, CGROUP, container=origin.container)
        use = Use(gpu, pid, found.started, found.uid, "", program, run_id, keeper, origin=origin)
        return use._replace(
            user=process["user"] if use.by is None else user_name(use.by),
            claimed=self._runs.person_of(run_id) if run_id else "",
            display_server=is_display_server(pid) is True,
        )

    async def _do(self, act: Act, host: str) -> str:
        """Carries out an action, and returns its outcome in a few words, or "" if the action is only recorded."""
        use = act.case.finding.use
        if act.what in (escalation.NOTE, escalation.REPORT) or use.uid is None or use.by is None:
            return ""
        if act.what == escalation.WARN:
            writing = partial(terminal_messages.write, use.by, warning(act, host))
            reached = await asyncio.get_running_loop().run_in_executor(None, writing)
            return f"on {reached} terminals"
        if use.run_id:
            return await self._stop_run(use.run_id, act, host)
        number = signal.SIGTERM if act.what == escalation.TERMINATE else signal.SIGKILL
        keeper = process_identity.identify(use.keeper) if use.keeper else None
        if keeper is not None and keeper.uid == use.by:
            # The keeper would restart its ranks, so the signal is sent to the keeper. On SIGTERM, the keeper stops the
            # run with the run's grace period.
            return f"to its keeper, PID {keeper.pid}: {process_identity.send(keeper, number)}"
        return process_identity.send(Identity(use.pid, use.started, use.uid), number)

    async def _stop_run(self, run_id: str, act: Act, host: str) -> str:
        force = act.what == escalation.KILL
        reason = f"stopped by the agent of {host}: {warning(act, host)}"
        try:
            await self._runs.forward("stop", {"run_id": run_id, "reason": reason, "force": force, "by": ""})
        except RpcError as refused:
            return str(refused)
        return "its keeper was asked to stop the run"

    def _note(self, act: Act, policy: Enforcement, host: str, outcome: str, now: float) -> None:
        finding = act.case.finding
        fields = {
            "act": act.what,
            "level": policy.level,
            "dry_run": policy.dry_run,
            "verdict": finding.verdict,
            "pid": finding.use.pid,
            "started": finding.use.started,
            "user": finding.use.user,
            "persons": list(finding.persons),
            "program": finding.use.program,
            "gpus": list(act.case.gpus),
            "booking": finding.booking.id if finding.booking is not None else None,
            "owner": finding.booking.owner if finding.booking is not None else None,
            "outcome": outcome,
        }
        if (came_from := _origin_json(finding.use)) is not None:
            fields["origin"] = came_from
        audit.note(self._agent_dir, self._node, "enforcement", **fields)
        self._acts.append({"time": rfc3339(now), **fields})
        if act.what not in (escalation.NOTE, escalation.REPORT):
            log.info(
                "enforcement: %s%s PID %d: %s",
                "would have " if policy.dry_run else "",
                act.what,
                finding.use.pid,
                warning(act, host),
            )


def keeper_above(gpu: str, pid: int) -> int:
    """Returns the PID of the keeper that has locked the GPU if the process belongs to the keeper's run, otherwise 0."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as client:
        client.setblocking(False)
        try:
            client.connect(gpu_socket(gpu))
            holder = peer_pid(client)
        except OSError:
            return 0  # No process has locked the GPU, or too many clients are connecting at this moment.
    is_of_run = holder > 1 and (holder in process_identity.ancestors(pid) or is_in_group_below(pid, holder))
    return holder if is_of_run else 0


def _finding_json(finding: Finding) -> dict[str, Any]:
    use = finding.use
    return {
        "gpu": use.gpu,
        "pid": use.pid,
        "user": use.user,
        "program": use.program,
        "verdict": finding.verdict,
        "who": finding.persons_text,
        "booking": finding.booking.id if finding.booking is not None else None,
        "origin": _origin_json(use),
    }


def _origin_json(use: Use) -> dict[str, Any] | None:
    """Returns the fields of the origin and the `user`, or None if the origin is the process's own UID."""
    origin = use.origin
    if origin is None or not (origin.as_root or origin.container or origin.uid != use.uid):
        return None
    return {**origin._asdict(), "user": use.user if origin.uid is not None else None}
