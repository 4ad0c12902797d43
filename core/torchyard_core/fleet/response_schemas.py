"""Schemas of hosts' answers. Answers are checked on arrival, so a faulty daemon affects only its own host.

A schema is one of:

- a type or a tuple of types,
- a dictionary of keys to schemas, in which keys ending in `?` are optional and additional keys are allowed,
- a list with one schema for all items, or with one schema for each item,
- an instance of Each, OneOf, Between or ByWord.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle
from typing import Any

from torchyard_agent.protocol.metrics_report import METRICS
from torchyard_agent.protocol.run_states import ReplicaState, RunState

LATEST = 253402214400.0
"""The last day that datetime supports, 9999-12-31, in seconds since 1970."""


@dataclass(frozen=True)
class Each:
    """Schema of a dictionary with arbitrary keys. Each value has the schema `shape`."""

    shape: Any


@dataclass(frozen=True)
class OneOf:
    """Schema of a string that is one of `words`."""

    words: frozenset[str]


@dataclass(frozen=True)
class Between:
    """Schema of a number from `least` to `most`. NaN is invalid."""

    least: float
    most: float


@dataclass(frozen=True)
class ByWord:
    """Schema of a dictionary: a common schema, and a second schema that the value of `key` selects from `shapes`."""

    key: str
    common: Any
    shapes: dict[str, Any]


NUMBER = (int, float)
MAYBE_NUMBER = (int, float, type(None))
MAYBE_TEXT = (str, type(None))
_PROCESS = {"pid": int, "user": MAYBE_TEXT, "program": MAYBE_TEXT, "replica": MAYBE_TEXT, "draws_screen?": bool}
_GPU = {
    "index": int,
    "uuid": str,
    "name": str,
    "memory_mb": MAYBE_NUMBER,
    "memory_used_mb": MAYBE_NUMBER,
    "utilisation": MAYBE_NUMBER,
    "power_w?": MAYBE_NUMBER,
    "temperature_c?": MAYBE_NUMBER,
    "throttling?": [str],
    "problem": MAYBE_TEXT,
    "processes": [_PROCESS],
}
_SAMPLE = {
    "time": Between(0.0, LATEST),
    "host": {"cpus": MAYBE_NUMBER, "cpu": MAYBE_NUMBER, "memory_mb": MAYBE_NUMBER, "memory_used_mb": MAYBE_NUMBER},
    "gpus": [_GPU],
    "replicas": Each(dict),
    "reports?": Each({"step?": MAYBE_NUMBER}),
    "missing?": Each(str),
}
_RECORD = {
    "primary?": str,
    "hosts?": [str],
    "submitted?": str,
    "booking?": str,
    "launched_from?": str,
    "topology?": str,
    "lineage?": str,
    "restarted_from?": str,
    "sweep?": str,
    "sweep_run?": str,
    "replicas?": [{"name": str, "host": str, "gpus": [str]}],
}
_BOOKINGS = {
    "fresh": bool,
    "enforcement": {"level": str, "dry_run": bool},
    "capabilities": {"acts_on": str},
    "findings": [{"verdict": str, "pid": int, "user": MAYBE_TEXT, "program": MAYBE_TEXT}],
}
_STATE = OneOf(frozenset(state.value for state in RunState))
_STATE_ON_HOST = {"host": str, "state": OneOf(frozenset(state.value for state in ReplicaState))}
_REPLICA = {"name": str, **_STATE_ON_HOST}
_RUN = {"state": _STATE, "reason": str, "as_of": MAYBE_TEXT, "alive": bool, "silent?": bool, "died?": MAYBE_TEXT}
_MEMBERSHIP = {"number": int, "step": int, "members": [str], "lost": [str], "cause": str}
_INTERRUPTION = {"job": str, "restart": int, "cause": str}
_ENTRY = ByWord(
    "event",
    {"event": str, "time": str, "epoch": str, "seq": int},
    {
        "run_state": {"state": _STATE, "reason?": MAYBE_TEXT},
        "replica_state": {"replica": str, **_STATE_ON_HOST, "reason?": MAYBE_TEXT},
        "gang_restart": {"gang": str, "generation": int, "cause": str},
        "membership": _MEMBERSHIP,
        "interrupted": {**_INTERRUPTION, "metrics?": Each(dict)},
        "withdrawal": {"replica": str, "reason": str},
        "booking_ends": {"booking": str, "at": str, "reason": str},
        "report": {
            "replica": str,
            "custom?": dict,
            "not_finite?": [str],
            **{f"{name}?": MAYBE_NUMBER for name in METRICS},
        },
        "run_ended": {
            "run_id": str,
            "state": _STATE,
            "reason": str,
            "timings": {"ended_s?": MAYBE_NUMBER},
            "replicas": [{"name": str}],
            "metrics?": Each(dict),
        },
    },
)
"""Schema of an entry of a run's journal."""

FIRST_ANSWER = {"have": bool, "python": str, "python_version": str}
"""Schema of the bootstrap's first answer."""
ANSWERS: dict[str, Any] = {
    "hello": {"version": str, "protocol": int, "sha256": str, "pid": int, "oldest_protocol?": int},
    "host.facts": {
        "cpus?": MAYBE_NUMBER,
        "memory_gb?": MAYBE_NUMBER,
        "gpus?": [{"index": int, "uuid": str, "name": str, "memory_mb": MAYBE_NUMBER}],
        "driver?": MAYBE_TEXT,
        "python?": {"path?": MAYBE_TEXT, "version?": MAYBE_TEXT},
        "torch?": MAYBE_TEXT,
        "packages?": Each(MAYBE_TEXT),
        "disk_free_gb?": MAYBE_NUMBER,
        "daemon?": str,
        "bookings?": _BOOKINGS,
        "problems?": [{"code?": str, "message": str, "hint?": str}],
    },
    "host.pythons": [
        {
            "path": str,
            "version": MAYBE_TEXT,
            "torch": MAYBE_TEXT,
            "torch_cuda": MAYBE_TEXT,
            "numpy": MAYBE_TEXT,
            "problem": MAYBE_TEXT,
        }
    ],
    "telemetry.sample": _SAMPLE,
    "run.list": [{"run_id": str, "name": str, **_RUN, "record": _RECORD}],
    "run.show": {
        **_RUN,
        "replicas": [_REPLICA],
        "metrics": Each(dict),
        "timings": dict,
        "asked?": [dict],
        "memberships?": [_MEMBERSHIP],
        "interruptions?": [_INTERRUPTION],
        "telemetry_problem?": str,
        "jobs?": [{"job_id": str, "group": str, "state": str, "problem": str}],
        "nodes?": Each(str),
        "record": {"name?": str, "snapshot?": MAYBE_TEXT, "record?": _RECORD},
    },
    "run.nodes": Each(str),
    "run.invite": {
        "primary": {"host": str, "address": str, "gang_port": int},
        "secret": str,
        "replicas": [{"name": str, "host": str}],
    },
    "run.hold": {"address": str, "interface": str, "ports": [int], "gang_port": int, "run_dir": str},
    "bookings.evidence": {"idle?": [dict], "uses?": [dict]},
    "bookings.confirm": {"kept": bool},
    "checkpoints.list": {
        "folder": str,
        "checkpoints": [{"step": int, "sharded": bool, "bytes": Between(0, 2**63), "missing": str, "parts": [str]}],
    },
    "model.export": {"path": MAYBE_TEXT, "size": Between(0, 2**63)},
    "logs.list": [{"name": str}],
    "logs.read": {
        "data": str,
        "next": Between(0, 2**63),
        "size": Between(0, 2**63),
        "ended": bool,
        "times": [[Between(0, 2**63), Between(0, LATEST)]],
    },
}
"""Schemas of answers by method. Answers to other methods are not checked."""
NOTIFICATIONS: dict[str, Any] = {
    "fault": {"error": str, "folder": str},
    "telemetry": _SAMPLE,
    "state": {"run_id": str, "entries": [_ENTRY], "alive": bool, "died?": MAYBE_TEXT},
}
"""Schemas of notifications by method."""


def find_mismatch(value: Any, shape: Any, at: str = "") -> str:
    """Returns the path of the first value that violates the schema, such as `gpus[0].uuid`, or an empty string.

    If the value as a whole violates the schema, the path is `the answer`.
    """
    here = at or "the answer"
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return here
        for key, wanted in shape.items():
            name = key.rstrip("?")
            below = f"{at}.{name}" if at else name
            if name not in value:
                if key == name:
                    return below
            elif found := find_mismatch(value[name], wanted, below):
                return found
        return ""
    if isinstance(shape, list):
        if not isinstance(value, list) or (len(shape) > 1 and len(value) != len(shape)):
            return here
        pairs = enumerate(zip(value, cycle(shape), strict=False))
        items = (find_mismatch(item, wanted, f"{at}[{position}]") for position, (item, wanted) in pairs)
        return next((one for one in items if one), "")
    if isinstance(shape, Each):
        if not isinstance(value, dict):
            return here
        values = (find_mismatch(item, shape.shape, f"{at}.{name}" if at else str(name)) for name, item in value.items())
        return next((one for one in values if one), "")
    if isinstance(shape, ByWord):
        return find_mismatch(value, shape.common, at) or find_mismatch(
            value, shape.shapes.get(value[shape.key], dict), at
        )
    if isinstance(shape, OneOf):
        return "" if isinstance(value, str) and value in shape.words else here
    if isinstance(shape, Between):
        fits = isinstance(value, NUMBER) and not isinstance(value, bool) and shape.least <= value <= shape.most
        return "" if fits else here
    types = shape if isinstance(shape, tuple) else (shape,)
    fits = isinstance(value, types) and (bool in types or not isinstance(value, bool))
    return "" if fits else here
