"""Bookings on a host: the calendar that desktops send, the observation of GPU use, and enforcement.

The calendar is stored in the host's folder with mode 0600, so that a restarted daemon can read it. The GPUs are sampled
only when needed: every 10 s while enforcement is on and the calendar's period has not ended, and otherwise once per
minute while a GPU of this host is booked. If telemetry took a sample recently, that sample is used.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from torchyard_agent.daemon.runs import Runs
from torchyard_agent.daemon.subscriptions import Telemetry
from torchyard_agent.enforcement import booking_usage
from torchyard_agent.enforcement.booking_usage import Idle, Used
from torchyard_agent.enforcement.enforcer import Enforcer
from torchyard_agent.enforcement.process_activity import Activity
from torchyard_agent.protocol import calendar, timestamps
from torchyard_agent.protocol import paths as places
from torchyard_agent.protocol.calendar import OFF, Calendar
from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.telemetry.process_owners import UNKNOWN
from torchyard_agent.telemetry.procfs import read_all
from torchyard_agent.unix_socket_rpc import Connection, Method

SAVE_EVERY_S = 120.0
TOO_OLD_S = 14 * 86400.0
"""Age in seconds at which a stored calendar is ignored."""
_LOCK = "@" + places.gpu_socket("")[1:]

Params = dict[str, Any]

log = logging.getLogger(__name__)


class Pace(NamedTuple):
    """Sampling intervals in seconds. Tests set shorter ones by variables such as `TORCHYARD_BOOKINGS_ENFORCE_S`."""

    enforce_s: float = 10.0
    evidence_s: float = 60.0

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Pace:
        given = {name: f"TORCHYARD_BOOKINGS_{name.upper()}" for name in cls._fields}
        return cls(**{name: float(environ[variable]) for name, variable in given.items() if variable in environ})

    @property
    def gap_s(self) -> float:
        """The longest time between two samples that counts as continuous observation."""
        return max(5.0, 3.0 * max(self.enforce_s, self.evidence_s))


class Bookings:
    """The methods `bookings.*`, and the task that samples the GPUs."""

    def __init__(self, agent_dir: str, node: str, runs: Runs, telemetry: Telemetry, pace: Pace | None = None):
        self._file = os.path.join(places.host_dir(agent_dir, node), "bookings.json")
        self._evidence_file = os.path.join(places.host_dir(agent_dir, node), "evidence.json")
        self._runs = runs
        self._telemetry = telemetry
        self._pace = pace or Pace.read(os.environ)
        self._enforcer = Enforcer(agent_dir, node, runs)
        self._activity = Activity(self._pace.evidence_s)
        self._host = node
        self._calendar: Calendar | None = None
        self._snapshot: dict[str, Any] = {}
        """The received calendar, parts of which are sent to keepers."""
        self._revision = ""
        """The ID that the desktop gave to this revision of the calendar, or "" if it gave none."""
        self._here: set[str] | None = None
        """The UUIDs of this host's GPUs, or None before the first sample."""
        self._idle: dict[str, Idle] = {}
        self._uses: list[Used] = []
        self._saved_at = 0.0
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def table(self) -> dict[str, Method]:
        return {
            "bookings.snapshot": self.take,
            "bookings.confirm": self.confirm,
            "bookings.status": self.status,
            "bookings.evidence": self.evidence,
        }

    def begin(self) -> None:
        """Loads the calendar and the evidence that an earlier daemon stored. Must be called in the event loop."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RpcError):
            with open(self._file, encoding="utf-8") as file:
                kept = json.load(file)
            known = calendar.parse(kept["snapshot"])
            if time.time() - known.taken < TOO_OLD_S:
                self._hold(known, kept["snapshot"], str(kept["host"]), str(kept.get("revision", "")))
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError), open(self._evidence_file) as file:
            self._idle, self._uses = booking_usage.from_json(json.load(file))

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._save_evidence()

    async def take(self, connection: Connection, params: Params) -> Any:
        """Stores a desktop's calendar, unless a newer one is stored."""
        snapshot, host = params["snapshot"], _host(params)
        received = calendar.parse(snapshot)
        _check_clock(received.taken)
        known = self._calendar
        kept = known is None or received.taken >= known.taken
        if kept:
            await self._keep(received, snapshot, host, str(params.get("revision", ""))[: calendar.MAX_TEXT])
        assert self._calendar is not None
        return {"kept": kept, "taken": timestamps.rfc3339(self._calendar.taken)}

    async def confirm(self, connection: Connection, params: Params) -> Any:
        """Confirms that the stored calendar is still valid at the time `taken`.

        In the result, `kept` is false if the stored calendar has another `revision`.
        """
        host = _host(params)
        try:
            taken = timestamps.parse_timestamp(params.get("taken"))
        except ValueError as error:
            raise RpcError(str(error), "params") from None
        _check_clock(taken)
        known, revision = self._calendar, params.get("revision")
        if known is None or not self._revision or revision != self._revision:
            return {"kept": False}
        if taken > known.taken or host != self._host:
            taken = max(taken, known.taken)
            renewed = {**self._snapshot, "taken": timestamps.rfc3339(taken)}
            await self._keep(known._replace(taken=taken), renewed, host, self._revision)
        return {"kept": True}

    async def _keep(self, received: Calendar, snapshot: dict[str, Any], host: str, revision: str) -> None:
        self._hold(received, snapshot, host, revision)
        self._write(self._file, {"host": host, "snapshot": snapshot, "revision": revision})
        await self._update_keepers()

    async def status(self, connection: Connection, params: Params) -> Any:
        """Returns the state of the calendar, the classified GPU uses, and the recent actions."""
        return self.summary()

    async def evidence(self, connection: Connection, params: Params) -> Any:
        """Returns the evidence of idle bookings and of GPU use since the time `since`, or all of it without `since`."""
        since = params.get("since")
        try:
            after = 0.0 if since is None else timestamps.parse_timestamp(since)
        except ValueError as error:
            raise RpcError(str(error), "params") from None
        return {"host": self._host, **booking_usage.to_json(self._idle, self._uses, after)}

    def summary(self) -> dict[str, Any]:
        """Returns the result of `bookings.status`, which `host.facts` also contains."""
        known, now = self._calendar, time.time()
        enforcement = known.enforcement_on(self._host) if known is not None else calendar.Enforcement()
        return {
            "taken": timestamps.rfc3339(known.taken) if known is not None else None,
            "fresh": known is not None and known.is_fresh(now),
            "from": known.person if known is not None else None,
            "host": self._host,
            "enforcement": enforcement._asdict(),
            "capabilities": self._enforcer.capabilities(),
            **self._enforcer.summary(),
        }

    async def update_keeper(self, run_id: str) -> None:
        """Sends a keeper the part of the calendar that concerns its run.

        Errors are ignored, because keepers of older agents do not have the method `calendar`.
        """
        known = self._calendar
        if known is None:
            return
        gpus = self._runs.planned_gpus(run_id)
        part = {**self._snapshot, "bookings": [one for one in self._snapshot["bookings"] if gpus & set(one["gpus"])]}
        keeper = await self._runs.keeper(run_id)
        if keeper is not None:
            with contextlib.suppress(RpcError):
                await keeper.call("calendar", {"snapshot": {**part, "logins": [], "enforcement": []}}, timeout=5.0)

    async def _update_keepers(self) -> None:
        alive = [run_id for run_id in self._runs.ids() if await self._runs.keeper(run_id) is not None]
        for run_id in alive:
            await self.update_keeper(run_id)

    def _hold(self, known: Calendar, snapshot: dict[str, Any], host: str, revision: str) -> None:
        self._calendar, self._snapshot, self._host, self._revision = known, snapshot, host, revision
        self._news.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            self._news.clear()
            try:
                wait_s = await self._sample()
            except Exception:  # An error in one sample must not end the sampling task.
                log.exception("sampling the GPUs for bookings failed")
                wait_s = self._pace.evidence_s
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), wait_s)

    async def _sample(self) -> float | None:
        """Samples the GPUs if needed.

        Returns the time in seconds until the next call, or None to wait for a new calendar.
        """
        known, now = self._calendar, time.time()
        assert known is not None
        enforcement = known.enforcement_on(self._host)
        # If the calendar is stale, GPU uses are still classified until the end of its period, but no actions are taken.
        enforces = enforcement.level != OFF and now < known.until
        if not enforces:
            self._enforcer.forget()
        wait_s = next_sample(known, self._here, enforces, now, self._pace)
        booked_now = any(one.is_running(now) and self._is_here(one.gpus) for one in known.bookings)
        if not enforces and not booked_now:
            return wait_s
        sample = await self._telemetry.recent(min(self._pace) / 2)
        now = time.time()
        self._here = {gpu["uuid"] for gpu in sample["gpus"] if gpu["uuid"]}
        if not self._here:
            return max(300.0, self._pace.evidence_s)  # This host currently has no GPU or no driver.
        held = held_gpus()
        self._note(known, sample, held, now)
        if enforces:
            await self._enforcer.enforce(known, enforcement, self._host, sample, now)
        return wait_s

    def _is_here(self, gpus: tuple[str, ...]) -> bool:
        return self._here is None or not self._here.isdisjoint(gpus)

    def _note(self, known: Calendar, sample: dict[str, Any], held: set[str], now: float) -> None:
        pids = {process["pid"] for gpu in sample["gpus"] for process in gpu["processes"]}
        asleep = self._activity.asleep(pids, time.monotonic())
        busy = {gpu["uuid"] for gpu in sample["gpus"] if booking_usage.is_busy(gpu, held, asleep)}
        assert self._here is not None
        self._idle = booking_usage.update_idle(self._idle, known.bookings, busy, self._here, now, self._pace.gap_s)
        seen = []
        for gpu in sample["gpus"]:
            for process in gpu["processes"]:
                if process["draws_screen"]:
                    continue
                run_id = (process["replica"] or "").partition("/")[0]
                user = "" if process["user"] == UNKNOWN else process["user"]
                seen.append((gpu["uuid"] or "", user, self._runs.person_of(run_id) if run_id else "", run_id))
        self._uses = booking_usage.note_uses(self._uses, seen, now, self._pace.gap_s)
        if now - self._saved_at >= SAVE_EVERY_S or now < self._saved_at:
            self._save_evidence()
            self._saved_at = now

    def _save_evidence(self) -> None:
        if self._idle or self._uses:
            self._write(self._evidence_file, booking_usage.to_json(self._idle, self._uses))

    def _write(self, path: str, data: dict[str, Any]) -> None:
        """Replaces a file atomically. Errors are logged. After an error, a restarted daemon reads the older file."""
        scratch = f"{path}.{os.getpid()}"
        try:
            file = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(file, "w", encoding="utf-8") as target:
                json.dump(data, target, separators=(",", ":"))
            os.replace(scratch, path)
        except OSError as error:
            log.warning("%s cannot be written: %s", path, error)
            with contextlib.suppress(OSError):
                os.unlink(scratch)


def _host(params: Params) -> str:
    host = params.get("host")
    if not isinstance(host, str) or not 0 < len(host) <= calendar.MAX_TEXT:
        raise RpcError("`host` must be this host's name in the fleet", "params")
    return host


def _check_clock(taken: float) -> None:
    ahead = taken - time.time()
    if ahead > calendar.AHEAD_S:
        hint = "Run a time service on the desktop, the database's host and this one."
        raise RpcError(f"the snapshot was taken {ahead:.0f} s in the future of this host's clock", "clock", hint)


def next_sample(known: Calendar, here: set[str] | None, enforces: bool, now: float, pace: Pace) -> float | None:
    """Returns the time in seconds until the next sample, or None if no sample is needed before a new calendar arrives.

    Args:
        here: The GPUs of this host, or None if they are unknown.
    """
    if enforces:
        return pace.enforce_s
    mine = [one for one in known.bookings if one.end > now and (here is None or not here.isdisjoint(one.gpus))]
    if any(one.start <= now for one in mine):
        return pace.evidence_s
    return max(1.0, min(one.start for one in mine) - now) if mine else None


def held_gpus() -> set[str]:
    """Returns the UUIDs of the GPUs that runs of any user have locked, including idle and restarting runs."""
    try:
        lines = read_all("/proc/net/unix").split(b"\n")
    except OSError:
        return set()
    paths = (line.rsplit(b" ", 1)[-1].decode(errors="replace") for line in lines if b"@torchyard/gpu/" in line)
    return {path[len(_LOCK) :] for path in paths if path.startswith(_LOCK)}
