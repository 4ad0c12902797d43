"""Slurm's commands, run with explicit text formats and a clean environment, and the parsers of their output."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping, Sequence

from torchyard_agent.protocol.jsonrpc import RpcError

TIMEOUT_S = 60.0
MOST_NODES = 100_000
"""Maximum number of nodes in a range of a node list."""
_INHERITED = ("SLURM_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SINFO_", "SCANCEL_")
_PAIR = re.compile(r"(?:^|\s)([A-Za-z][\w:/]*)=")


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment for Slurm's commands: without the settings of an enclosing job, except for SLURM_CONF.

    In this environment, the commands print times in seconds since 1970, and messages in English.
    """
    kept = {name: value for name, value in environ.items() if not name.startswith(_INHERITED) or name == "SLURM_CONF"}
    return {**kept, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}


async def output(argv: Sequence[str], timeout_s: float = TIMEOUT_S) -> str:
    """Returns the stdout of a command. If the command fails, raises RpcError with its last line of error output."""
    code, text, errors = await outcome(argv, timeout_s)
    if code:
        said = (errors.strip() or text.strip() or f"exit status {code}").splitlines()[-1]
        raise RpcError(f"{os.path.basename(argv[0])}: {_without_prefix(said)}", "slurm_failed")
    return text


async def outcome(argv: Sequence[str], timeout_s: float = TIMEOUT_S) -> tuple[int, str, str]:
    """Returns the exit status, stdout and stderr of a command.

    Raises RpcError if the command cannot be run or does not end within `timeout_s`.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment(os.environ),
        )
    except OSError as error:
        hint = "Is this a login node of the cluster? A line in `setup` may have to load Slurm's module."
        raise RpcError(f"{argv[0]} cannot be run: {error.strerror}", "slurm_missing", hint) from error
    try:
        text, errors = await asyncio.wait_for(process.communicate(), timeout_s)
    except asyncio.TimeoutError:
        process.kill()
        await process.wait()
        raise RpcError(f"{argv[0]} did not answer within {timeout_s:.0f} s", "slurm_timeout") from None
    assert process.returncode is not None
    return process.returncode, text.decode(errors="replace"), errors.decode(errors="replace")


def _without_prefix(message: str) -> str:
    """Returns a message of a Slurm command without the command's name and the word `error:`."""
    return re.sub(r"^(\w+: )?(error: )?", "", message)


def pairs(line: str) -> dict[str, str]:
    """Parses a line of `scontrol -o`, such as `NodeName=n1 State=IDLE Reason=not responding`."""
    found = list(_PAIR.finditer(line))
    ends = [match.start() for match in found[1:]] + [len(line)]
    return {match[1]: line[match.end() : end].strip() for match, end in zip(found, ends)}


def settings(text: str) -> dict[str, str]:
    """Parses the output of `scontrol show config`: lines such as `KillWait                = 30 sec`."""
    found = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals:
            found[name.strip()] = value.strip()
    return found


def table(text: str, columns: int) -> list[list[str]]:
    """Parses lines with `|` after each field.

    Lines with a different number of fields, such as messages, are omitted.
    """
    rows = [[field.strip() for field in line.split("|")[:-1]] for line in text.splitlines()]
    return [row for row in rows if len(row) == columns]


def seconds(text: str) -> float | None:
    """Parses a time in seconds since 1970. Returns None if the text is not a number, such as `N/A` or `Unknown`."""
    try:
        return float(text)
    except ValueError:
        return None


def duration(text: str) -> float | None:
    """Parses a duration: `30 sec`, `00:05:00`, `1-00:00:00` or `15` (minutes). Returns None if unlimited."""
    match = re.fullmatch(r"(\d+) sec", text)
    if match:
        return float(match[1])
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if not match:
        return None
    days, first, second, third = (int(part or 0) for part in match.groups())
    if match[1] is not None or match[4] is not None:
        return float(((days * 24 + first) * 60 + second) * 60 + third)
    return float(first * 60 + second)


def hostlist(text: str) -> list[str]:
    """Expands a Slurm hostlist expression: `gpu[1-3,07-08],login` to gpu1, gpu2, gpu3, gpu07, gpu08, login.

    Returns [] for `(null)`, which Slurm prints if there is no node.
    """
    names: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text.strip()):
        expanded = [""]
        for plain, ranges in re.findall(r"([^\[]+)|\[([^\]]*)\]", part):
            endings = [plain] if plain else [number for one in ranges.split(",") for number in _numbers(one)]
            expanded = [name + ending for name in expanded for ending in endings]
        names += expanded
    return [] if names == ["(null)"] else names


def _numbers(text: str) -> list[str]:
    """Expands a range such as `07-10`. Numbers keep their leading zeros."""
    first, dash, last = text.partition("-")
    if not dash or not first.isdigit() or not last.isdigit():
        return [text]
    return [str(number).zfill(len(first)) for number in range(int(first), min(int(last), int(first) + MOST_NODES) + 1)]


def gres(text: str) -> dict[str, int]:
    """Parses generic resources such as `gpu:a100:4(S:0-1),gpu:2` to {"a100": 4, "": 2}. Other resources are omitted."""
    found: dict[str, int] = {}
    for part in re.sub(r"\([^)]*\)", "", text).split(","):
        words = part.strip().split(":")
        if words[0] != "gpu":
            continue
        kind = words[1] if len(words) > 1 and not words[1].isdigit() else ""
        count = int(words[-1]) if words[-1].isdigit() else 1
        found[kind] = found.get(kind, 0) + count
    return found
