"""The settings of the strategy, which the process receives in the environment variable TORCHYARD_OPTIONS."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from typing import Any

from torchyard_roles.errors import EnvironmentProblem


@dataclass(frozen=True)
class Options:
    """The fields of `strategy:` with the topology's defaults, and two fields of `program:`.

    The fields are documented in the topology's schema (`torchyard_core.topology.model.Strategy`). A test compares the
    fields with the schema.
    """

    kind: str = "all_reduce"
    worker_groups: int | None = None
    server_groups: int = 1
    push_every: int = 1
    pull_every: int = 1
    sync_every: int = 8
    max_staleness: int = 16
    backup_workers: int = 0
    warm_start_steps: int = 0
    reduction_order: str = "rank"
    """The order in which gradients are summed: `rank` or `arrival`."""
    inner_steps: int = 50
    warmup_steps: int = 0
    outer_lr: float = 0.7
    outer_momentum: float = 0.9
    quorum: int | None = None
    grace_s: float = 0.0
    fragments: int = 1
    overlap_steps: int = 0
    mixing: float = 0.0
    wire: str = "float32"
    """The encoding of the values that worker groups send: `float32`, `bfloat16`, `int8` or `int4`."""
    error_feedback: bool = True
    shard: str = "none"
    """The ranks among which the model is sharded: `none`, those of one `host`, or `all`."""
    shard_modules: tuple[str, ...] = ()
    shard_dtype: str = "model"
    """The dtype in which a sharded model computes: `model` (the model's own), `bfloat16` or `float16`."""
    shard_offload: bool = False
    on_nan: str = "fail"
    """The reaction to gradients that are not finite: `fail` or `skip`."""
    on_worker_loss: str = "restart"
    """The reaction to the loss of a worker: `restart` or `continue`."""
    bucket_mb: int = 64
    start_wait_s: float = 600.0
    """Longest time in seconds for which the first round of diloco waits for worker groups that have not started."""
    checkpoint_every_s: float = 600.0
    """`program.checkpoint_every_s`: the interval between checkpoints in seconds."""
    stop_grace_s: float = 30.0
    """`program.stop_grace_s`: the time in seconds between SIGTERM and SIGKILL."""


def read_options(text: str, kind: str) -> Options:
    """Parses TORCHYARD_OPTIONS, or returns the defaults of the strategy `kind` if the variable is empty.

    Unknown names are ignored, since a desktop may be newer than a run's agent. Raises EnvironmentProblem if the text is
    not a JSON object, a value has the wrong type, or a number is negative.
    """
    if not text:
        return Options(kind=kind)
    try:
        values: Any = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise EnvironmentProblem(f"TORCHYARD_OPTIONS is {text[:60]!r}, but it must be a JSON object.")
    names = {one.name for one in fields(Options)}
    chosen: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items() if name in names
    }
    for name, value in chosen.items():
        if not _fits(getattr(Options, name), value):
            raise EnvironmentProblem(f"TORCHYARD_OPTIONS has an invalid value of {name}: {value!r}.")
    return replace(Options(kind=kind), **chosen)


def _fits(default: object, value: object) -> bool:
    """Returns whether `value` has the type of the default and is not negative. An int may replace a float."""
    if isinstance(default, (str, bool)):
        return isinstance(value, type(default))
    if isinstance(default, tuple):
        return isinstance(value, tuple) and all(isinstance(each, str) for each in value)
    if default is None and value is None:
        return True
    numbers = (int, float) if isinstance(default, float) else int
    return isinstance(value, numbers) and not isinstance(value, bool) and value >= 0
