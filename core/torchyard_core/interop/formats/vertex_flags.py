"""Conversion between `--worker-pool-spec` flags of `gcloud ai custom-jobs create` and `workerPoolSpecs`."""

from __future__ import annotations

import re
import shlex
from typing import Any

from torchyard_core.interop.document_reader import refuse
from torchyard_core.interop.remarks import Remark
from torchyard_core.interop.shell_parser import CommandLine, command_lines
from torchyard_core.problems import nearest

FLAG = "worker-pool-spec"
KEYS = {
    "machine-type": ("machineSpec", "machineType"),
    "accelerator-type": ("machineSpec", "acceleratorType"),
    "accelerator-count": ("machineSpec", "acceleratorCount"),
    "replica-count": ("replicaCount",),
    "boot-disk-type": ("diskSpec", "bootDiskType"),
    "boot-disk-size": ("diskSpec", "bootDiskSizeGb"),
    "container-image-uri": ("containerSpec", "imageUri"),
    "executor-image-uri": ("pythonPackageSpec", "executorImageUri"),
    "python-module": ("pythonPackageSpec", "pythonModule"),
    "local-package-path": ("pythonPackageSpec", "localPackagePath"),
    "script": ("pythonPackageSpec", "script"),
    "output-image-uri": ("pythonPackageSpec", "outputImageUri"),
    "requirements": ("pythonPackageSpec", "requirements"),
    "extra-packages": ("pythonPackageSpec", "extraPackages"),
    "extra-dirs": ("pythonPackageSpec", "extraDirs"),
}
"""Maps each key of a `--worker-pool-spec` flag to the path of its key in an item of `workerPoolSpecs`."""
_LEFT = {
    "python-package-uris": "the folder `program.workdir` is sent to every host",
    "config": "import that file by itself",
}


def are_flags(text: str) -> bool:
    return f"--{FLAG}" in text


def job_of_flags(text: str, source: str) -> tuple[dict[str, Any], list[int], list[Remark]]:
    """Parses `gcloud` commands. Raises FileProblem for an unknown key of a `--worker-pool-spec` flag.

    Returns:
        The job, the line of each pool, and remarks on other flags.
    """
    job: dict[str, Any] = {"workerPoolSpecs": []}
    lines: list[int] = []
    left: list[Remark] = []
    for command in command_lines(text, source):
        for (name, value), line in zip(command.options(), _option_lines(text, command), strict=True):
            if name == FLAG:
                job["workerPoolSpecs"].append(_pool(value, source, line))
                lines.append(line)
            elif name == "display-name":
                job["displayName"] = value
            elif name in ("args", "command"):
                job[name] = _listed(value)
            else:
                why = _LEFT.get(name, "it is that cloud's")
                left.append(Remark(f"`--{name}` is left out: {why}.", line))
    return job, lines, left


def _listed(value: str) -> list[str]:
    """Returns the entries of a list flag. They are separated by commas, or by the separator given as `^SEPARATOR^`."""
    match = re.match(r"\^([^^]+)\^", value)
    return value.split(",") if match is None else value[match.end() :].split(match[1])


def _as_list(entries: list[str]) -> str:
    """Formats the value of a list flag.

    The separator is a comma unless an entry contains a comma, or the first entry begins with `^`.
    """
    if not any("," in entry for entry in entries) and not entries[0].startswith("^"):
        return ",".join(entries)
    sign = next(
        sign for sign in (*";|#@~%:!", *map("--{}--".format, range(100))) if all(sign not in one for one in entries)
    )
    return f"^{sign}^{sign.join(entries)}"


def _option_lines(text: str, command: CommandLine) -> list[int]:
    """Returns the line of each option, found by searching the text for the option names in order."""
    lines = text.splitlines()
    at, found = command.line - 1, []
    column = 0
    for name, _ in command.options():
        while at < len(lines):
            position = lines[at].find(f"-{name}", column)
            if position >= 0:
                column = position + len(name) + 1
                break
            at, column = at + 1, 0
        found.append(min(at, len(lines) - 1) + 1)
    return found


def _pool(value: str, source: str, line: int) -> dict[str, Any]:
    pool: dict[str, Any] = {}
    key = ""
    for part in value.split(",") if value.strip() else ():
        name, equals, item = part.partition("=")
        name = name.strip()
        if not equals and key in ("requirements", "extra-packages", "extra-dirs"):
            continue  # The list that began with `key` continues with this part.
        if name not in KEYS:
            hint = nearest(name, KEYS) or f"Allowed are {', '.join(KEYS)}."
            refuse(source, line, f"--{FLAG} has no key `{name}`.", hint)
        key = name
        *around, last = KEYS[name]
        block = pool
        for step in around:
            block = block.setdefault(step, {})
        block[last] = item
    return pool


def as_flags(job: dict[str, Any]) -> str:
    """Returns the `gcloud` command that creates a job. Keys for which there is no flag are omitted."""
    flag_names = {path: key for key, path in KEYS.items()}
    words = ["gcloud ai custom-jobs create", f"--display-name={job['displayName']}"]
    for pool in job["workerPoolSpecs"]:
        parts = []
        for key, value in pool.items():
            inner = {(key, name): one for name, one in value.items()} if isinstance(value, dict) else {(key,): value}
            parts += [f"{flag_names[path]}={one}" for path, one in inner.items() if path in flag_names]
        words.append(f"--{FLAG}={','.join(parts)}")
    for name in ("command", "args"):
        if job.get(name):
            words.append(f"--{name}={shlex.quote(_as_list(job[name]))}")
    return " \\\n  ".join(words) + "\n"
