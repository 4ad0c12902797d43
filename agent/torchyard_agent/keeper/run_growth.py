"""Adds replicas to a live run: the primary's methods `invite`, `grow` and `withdraw`."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from typing import Any, Callable

from torchyard_agent.keeper.assignments import Assignments
from torchyard_agent.keeper.decisions import growth_policy
from torchyard_agent.keeper.decisions.events import Event, ReplicasAdded, ReplicasWithdrawn
from torchyard_agent.keeper.decisions.state import Run
from torchyard_agent.keeper.run_status import RunStatus
from torchyard_agent.protocol.growth_messages import Grow, Invitation
from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.protocol.messages import Member, ReplicaPlan

log = logging.getLogger(__name__)


class RunGrowth:
    """Adds replicas to one run.

    Args:
        primary: The address of the primary.
        join_within_s: The time in seconds within which an added host must connect to the primary.
        run: Returns the state of the run.
        feed: Passes an event to the decisions.
        expect_host: Allows the keeper of an added host to connect.
    """

    def __init__(
        self,
        run_id: str,
        folder: str,
        primary: Member,
        secret: bytes,
        join_within_s: float,
        status: RunStatus,
        assignments: Assignments,
        run: Callable[[], Run],
        feed: Callable[[Event], None],
        expect_host: Callable[[str], None],
    ):
        self._run_id = run_id
        self._folder = folder
        self._primary = primary
        self._secret = secret
        self._join_within_s = join_within_s
        self._status = status
        self._assignments = assignments
        self._run = run
        self._feed = feed
        self._expect_host = expect_host
        self._unrecorded: dict[str, str] = {}
        """The hosts of added replicas by replica name. An entry is removed when the replica becomes a member."""

    def invite(self, host: str) -> Invitation:
        """Returns the data that `host` needs to join the run. Raises RpcError if no worker can be added on `host`."""
        self._require_growth(host)
        replicas = [{"name": one.name, "host": "" if one.withdrawn else one.host} for one in self._run().replicas]
        return Invitation(primary=self._primary, secret=self._secret.hex(), replicas=replicas)

    def _require_growth(self, host: str) -> None:
        why = growth_policy.refusal(self._run(), host)
        if why:
            raise RpcError(f"no worker can be added to run {self._run_id}: {why}", "cannot_grow")

    def check(self, request: Grow) -> str:
        """Returns the host on which the requested replicas will be added. Raises RpcError if they cannot be added."""
        run, replicas, member = self._run(), request["replicas"], request["member"]
        host = str(member["host"]) if member is not None else str(replicas[0]["host"]) if replicas else ""
        self._require_growth(host)
        names = {one["name"] for one in replicas}
        gangs = {one.gang for one in run.replicas if one.trainer}
        fit = bool(replicas) and all(
            one["host"] == host and one["trainer"] and one["role"] == "worker" and one["gang"] in gangs
            for one in replicas
        )
        taken = names & {one.name for one in run.replicas}
        is_new = growth_policy.is_new_host(run, host)
        if not fit or taken or len(names) != len(replicas) or (member is not None) != is_new:
            raise RpcError("the replicas to add do not fit the run; another command may have added some", "params")
        return host

    def grow(self, host: str, replicas: Sequence[ReplicaPlan], entry: dict[str, Any]) -> None:
        """Adds replicas that `check` accepted.

        Args:
            entry: The journal entry of the user's request.
        """
        self._status.asked(entry)
        why = growth_policy.refusal(self._run(), host)
        if why:  # The state of the run has changed since `check` was called.
            for replica in replicas:
                self._status.withdrawal(replica["name"], why)
            return
        if growth_policy.is_new_host(self._run(), host):
            self._expect_host(host)
        self._assignments.add(replicas)
        self._unrecorded.update({replica["name"]: host for replica in replicas})
        self._feed(ReplicasAdded(host, tuple(replicas), self._join_within_s))

    def withdraw(self, names: Sequence[str], why: str) -> None:
        """Cancels the addition of the named replicas, except those that are already members."""
        self._feed(ReplicasWithdrawn(tuple(names), why))

    def on_membership(self, members: Sequence[str]) -> None:
        """Writes replicas that have become members to the run's record, which other desktops read."""
        joined = {name: self._unrecorded.pop(name) for name in members if name in self._unrecorded}
        if not joined:
            return
        path = os.path.join(self._folder, "run.json")
        try:
            with open(path, encoding="utf-8") as file:
                record = json.load(file)
            about = record.get("record") or {}
            hosts = list(dict.fromkeys([*about.get("hosts", []), *joined.values()]))
            replicas = [{"name": name, "host": host, "gpus": []} for name, host in joined.items()]
            record["record"] = {**about, "hosts": hosts, "replicas": [*about.get("replicas", []), *replicas]}
            with open(f"{path}.new", "w", encoding="utf-8") as file:
                json.dump(record, file)
            os.rename(f"{path}.new", path)
        except (OSError, ValueError) as error:
            log.warning("the run's record was not updated: %s", error)
