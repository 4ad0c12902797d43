"""The check of a request for nodes before its submission, with `sbatch --test-only`.

Slurm gives one answer, "Requested node configuration is not available", both to a request that it can never satisfy and
to one that only waits for the end of reservations. A test with a later start, when no reservation is left, tells them
apart.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
from typing import Any

from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.slurm import calendar, commands

MOST_TESTS = 8
"""Maximum number of tests to find a job's earliest start, and again to find a time limit that lets it start earlier."""
MARGIN_S = 60
"""Margin in seconds from a reservation's end to the start that is tested, and from a job's end to a reservation."""
_DELAY = re.compile(r"^#SBATCH --begin=now\+(\d+)\n", re.MULTILINE)
_TIME = re.compile(r"^#SBATCH --time=.*\n", re.MULTILINE)
_COMPONENT = "#SBATCH --job-name="
"""The beginning of the first line of each job component in a script."""


async def check(script: str) -> dict[str, Any] | None:
    """Checks a script's request for nodes.

    Returns:
        None if no reservation delays the job, otherwise `reservations` (those that delay the job), `until` (the end of
        the last of them in seconds since 1970) and `limit_s` (the longest time limit in seconds with which the job
        would end before the next reservation begins, or None if there is no such limit).

    Raises:
        RpcError: The cluster can never satisfy the request (`never_starts`).
    """
    said = await _refusal(script)
    if not said:
        return None
    if "Invalid job array specification" in said:
        most = commands.settings(await commands.output(["scontrol", "show", "config"])).get("MaxArraySize", "0")
        message = f"an array of jobs of this cluster has at most {int(most) - 1} trials (MaxArraySize)"
        raise RpcError(message, "never_starts", "Write a smaller number of `trials` to the search file.")
    with open(script, encoding="utf-8") as file:
        text = file.read()
    if "#SBATCH --reservation=" in text:  # A job in a reservation does not wait for another reservation.
        # Slurm refuses to test a start shortly before the reservation begins, although a submitted job would wait.
        if "nvalid time" in said and not await _refusal_of(script, with_begin(text, _delay_s(text) + MARGIN_S)):
            return None
        waits = None
    else:
        waits = await _reservations_in_the_way(script, text)
    if waits is None:
        message = f"the cluster can never start this run: {said.rstrip('.')}"
        raise RpcError(message, "never_starts", "Ask for fewer or other nodes, or for another partition.")
    return waits


async def _reservations_in_the_way(script: str, text: str) -> dict[str, Any] | None:
    """Returns the reservations that delay the job, as `check` does, or None if it is refused for another reason."""
    now = time.time()
    begin = now + _delay_s(text)
    found = calendar.parse_reservations(await commands.output(["scontrol", "-o", "show", "reservation"]))
    found = [one for one in found if one["end"] > begin]
    ends = sorted({one["end"] for one in found})
    if not ends or await _refusal_of(script, with_begin(text, ends[-1] + MARGIN_S - now)):
        return None
    until = ends[-1]
    for end in ends[:-1][:MOST_TESTS]:
        if not await _refusal_of(script, with_begin(text, end + MARGIN_S - now)):
            until = end
            break
    limit = None
    starts = sorted({one["start"] for one in found if one["start"] > begin}, reverse=True)
    for start in starts[-MOST_TESTS:]:
        minutes = int((start - begin - MARGIN_S) // 60)
        if minutes > 0 and not await _refusal_of(script, with_limit(text, minutes)):
            limit = minutes * 60
            break
    return {"until": until, "limit_s": limit, "reservations": [one for one in found if one["start"] < until]}


def _delay_s(text: str) -> int:
    delay = _DELAY.search(text)
    return int(delay[1]) if delay else 0


def with_begin(text: str, delay_s: float) -> str:
    """Returns the script `text` with an option by which its job starts no earlier than in `delay_s` seconds."""
    return _with_option(_DELAY.sub("", text), f"--begin=now+{math.ceil(delay_s)}")


def with_limit(text: str, minutes: int) -> str:
    """Returns the script `text` with a time limit of `minutes`."""
    return _with_option(_TIME.sub("", text), f"--time={minutes}")


def _with_option(text: str, option: str) -> str:
    return text.replace(_COMPONENT, f"#SBATCH {option}\n{_COMPONENT}")


async def _refusal_of(script: str, text: str) -> str:
    """Returns why Slurm refuses `text`, a variant of a script, or "" if Slurm accepts it."""
    variant = f"{script}.test"
    try:
        with open(variant, "w", encoding="utf-8") as file:
            file.write(text)
        return await _refusal(variant)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(variant)


async def _refusal(script: str) -> str:
    """Returns why `sbatch --test-only` refuses a script, or "" if it accepts the script."""
    code, text, errors = await commands.outcome(["sbatch", "--test-only", script])
    if code == 0:
        return ""
    said = " ".join((errors.strip() or text.strip()).splitlines()[-1:])
    return re.sub(r"^(\w+: )?(error: )?(allocation failure: )?", "", said) or f"exit status {code}"
