"""Profile: the measured parts of a training script's steps on one kind of host, as a small JSON file.

`torchyard_roles.profiling.step_recorder` measures the steps. The desktop adds the host and the snapshot to the profile.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from torchyard_core.atomic_write import write_atomically
from torchyard_core.errors import FileProblem
from torchyard_core.formatting import age, counted
from torchyard_core.next_steps import ProfileScript
from torchyard_core.topology.host_facts import HostFacts
from torchyard_core.topology.model import FrozenModel, Launcher, Program

MAX_BYTES = 4 * 1024 * 1024
FORMAT = 1

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Duration(FrozenModel):
    """The mean of measured durations, and their standard deviation, in seconds."""

    mean: Seconds
    spread: Seconds = 0.0


class StepSize(FrozenModel):
    """The measured parts of a training step with one batch size."""

    batch: Annotated[int, Field(ge=1)] | None
    """Number of samples in a trainer's batch; None if the script does not use `cluster.loader`."""
    steps: Annotated[int, Field(ge=1)]
    """Number of measured steps."""
    step: Duration
    forward: Duration
    """The forward pass, including the loss, up to the first gradient."""
    backward: Duration
    optimizer: Duration
    other: Duration
    """Data loading and the rest of the loop. For a black box, everything except the optimizer."""


class Gradient(FrozenModel):
    """One gradient, or several gradients that become ready one after another."""

    bytes: Count
    ready_s: Seconds
    """Seconds from the beginning of the backward pass until the gradient is ready."""


class Profile(FrozenModel):
    """The measurement of one script on one kind of host."""

    format: Literal[1]
    program: str
    """The script or module."""
    snapshot: str | None
    """The hash of the program's files (`launch.snapshots.program_files`); None if there is no working folder."""
    settings: str = ""
    """The hash of arguments, environment and setup (`profile_run.program_settings`); empty in older profiles."""
    host: str
    host_kind: str
    measured_at: str
    """The time of the measurement: RFC 3339, in UTC."""
    black_box: bool
    """Whether the script did not call `distribute()`. If so, only whole steps and the optimizer were measured."""
    torch: str
    device: str
    parameter_bytes: dict[str, Count]
    """Size of the parameters, by dtype."""
    gradient_bytes: dict[str, Count]
    """Size of the gradients, by dtype."""
    optimizer_bytes: Count
    gradients: tuple[Gradient, ...]
    """The gradients in the order in which they become ready; empty for a black box."""
    sizes: Annotated[tuple[StepSize, ...], Field(min_length=1)]
    """The measurements by batch size. The script's own batch size comes first."""
    peak_bytes: Count
    """Peak memory of the process: GPU memory if it uses a GPU, otherwise host memory."""
    memory_bytes_s: Rate
    """Rate of copies within host memory, in bytes per second."""
    to_gpu_bytes_s: Rate | None = None
    from_gpu_bytes_s: Rate | None = None
    chunk_cpu_s: Seconds | None = None
    """CPU time of a worker and a reducer together for one chunk of 48 KiB (`torchyard_roles.profiling.chunk_cost`)."""

    @property
    def model_bytes(self) -> int:
        """M: the gradient bytes exchanged per step, summed over dtypes."""
        return sum(self.gradient_bytes.values())

    @property
    def batch(self) -> int | None:
        return self.sizes[0].batch

    def has_settings(self, settings: str) -> bool:
        """Returns whether the profile was measured with settings of the given hash.

        Returns True as well if either hash is empty, that is, unknown.
        """
        return not settings or not self.settings or settings == self.settings

    def age_s(self, now: datetime) -> float | None:
        """Returns the age in seconds, or None if `measured_at` is invalid."""
        try:
            return (now - datetime.fromisoformat(self.measured_at)).total_seconds()
        except (ValueError, TypeError):
            return None

    def as_text(self) -> str:
        """Returns the content of the profile's file."""
        return json.dumps(self.model_dump(mode="json"), indent=1) + "\n"


def host_kind(host: HostFacts) -> str:
    """Returns a host's kind: its GPU model, or else its CPU count. Hosts of one kind are assumed to be equally fast."""
    if host.gpus:
        return host.gpus[0].name
    return counted(host.cpus, "CPU") if host.cpus is not None else "unknown"


def profile_of(
    measured: Any, program: str, snapshot: str | None, settings: str, host: HostFacts, now: datetime
) -> Profile:
    """Returns the profile with the measurements of a host. Raises ValueError if they are malformed."""
    if not isinstance(measured, dict):
        raise ValueError("the measurements are not an object")
    stamp = now.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    known = {"format": FORMAT, "program": program, "snapshot": snapshot, "settings": settings, "host": host.name}
    return Profile.model_validate_json(
        json.dumps({**measured, **known, "host_kind": host_kind(host), "measured_at": stamp})
    )


def read_profile(path: Path) -> Profile:
    """Reads a profile. Raises FileProblem if the file is unreadable or not a profile."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES)
        return Profile.model_validate_json(text)
    except OSError as error:
        raise FileProblem(f"{path}: {error.strerror or error}.", code="unreadable_file") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        what = f"{place}: {first['msg']}" if place else first["msg"]
        message = f"this is not a profile ({what})."
        if place == "format" and isinstance(first["input"], int):
            message = f"the profile has format {first['input']}, but this version of Torchyard reads format {FORMAT}."
        raise FileProblem(f"{path}: {message}", code="wrong_profile", hint=ProfileScript("FILE")) from None


def is_profile(content: bytes) -> bool:
    """Returns whether `content` is the content of a valid profile file."""
    try:
        Profile.model_validate_json(content)
    except ValidationError:
        return False
    return True


def program_name(program: Program) -> str:
    """Returns the script, module or command of a program. Profiles are stored under this name."""
    if program.launcher is Launcher.COMMAND:
        return " ".join(program.command)
    return program.module or program.script or ""


class ProfileCache:
    """The newest profile of each program and kind of host, stored in a folder on the desktop."""

    def __init__(self, folder: Path):
        self._folder = folder

    def keep(self, workdir: Path | None, profile: Profile) -> Path:
        """Writes a profile and returns its path. Raises FileProblem if the profile cannot be written."""
        kind = re.sub(r"[^A-Za-z0-9]+", "-", profile.host_kind).strip("-") or "unknown"
        path = self._folder / f"{_key(workdir, profile.program)}-{kind}.json"
        write_atomically(path, profile.as_text(), 0o600)
        return path

    def find(self, workdir: Path | None, program: str) -> tuple[Profile, ...]:
        """Returns the newest profile of each kind of host, newest first. Unreadable files are ignored."""
        found = []
        for path in sorted(self._folder.glob(f"{_key(workdir, program)}-*.json")):
            try:
                found.append(read_profile(path))
            except FileProblem:
                continue
        return tuple(sorted(found, key=lambda profile: profile.measured_at, reverse=True))


def _key(workdir: Path | None, program: str) -> str:
    return hashlib.sha256(f"{workdir or ''}\0{program}".encode("utf-8", "surrogateescape")).hexdigest()[:16]


@dataclass(frozen=True)
class ChosenProfiles:
    """Profiles by kind of host, with remarks for the user."""

    by_kind: dict[str, Profile]
    remarks: tuple[str, ...]

    def of(self, host: HostFacts) -> Profile | None:
        return self.by_kind.get(host_kind(host))


def choose_profiles(
    profiles: Sequence[Profile],
    snapshot: str | None,
    hosts: Sequence[HostFacts],
    now: datetime,
    settings: str = "",
) -> ChosenProfiles:
    """Returns the profiles to use on a fleet.

    A profile that was measured with other files or settings than the current ones is also used, with a remark that
    states its age. If no profile matches the kind of any host, as in a fleet that was never checked, the first profile
    is used for all hosts.
    """
    by_kind: dict[str, Profile] = {}
    for profile in profiles:
        by_kind.setdefault(profile.host_kind, profile)
    remarks = []
    for profile in by_kind.values():
        has_other_files = snapshot is not None and profile.snapshot != snapshot
        if has_other_files or not profile.has_settings(settings):
            passed = profile.age_s(now)
            when = f"{age(passed)} ago" if passed is not None else "at an unknown time"
            other = "files than the working folder" if has_other_files else "arguments or environment than the topology"
            remarks.append(f"The profile of {profile.host_kind} was measured {when} with other {other} has now.")
        if profile.black_box:
            remarks.append(
                f"The profile of {profile.host_kind} is that of a black box: {profile.program} does not call "
                "distribute(). Its gradients are assumed to become ready evenly in the last two thirds of a step."
            )
    kinds = {host_kind(host) for host in hosts}
    if by_kind and hosts and not kinds & by_kind.keys():
        first = next(iter(by_kind.values()))
        remarks.append(f"No host of the fleet is of the profiled kind ({first.host_kind}): all are assumed to be.")
        by_kind = dict.fromkeys(kinds, first) | by_kind
    return ChosenProfiles(by_kind, tuple(remarks))
