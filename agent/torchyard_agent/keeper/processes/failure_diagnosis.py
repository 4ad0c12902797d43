"""Why a rank ended, in plain words: from torch's error file, its log's last traceback, its signal or its code."""

from __future__ import annotations

import json
import os
import re
import signal
from typing import Any

from torchyard_agent.keeper.decisions.events import Cause

TAIL = 64 * 1024
"""Bytes of a log that are searched."""
LONGEST = 300
"""Characters of a sentence taken from a program's output."""

_PREFIX = re.compile(r"^\[(?:rank|default)\d*\]:? ?")
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning|Timeout)\b(?::.*)?$")
_OF_A_PEER = re.compile(
    r"connection (?:was )?(?:reset|closed|refused|aborted|lost)|broken ?pipe|connection(?:reset|refused|aborted)error"
    r"|socket closed|gloo|nccl|DistNetworkError|DistStoreError|DistBackendError|TCPStore"
    r"|failed to recv|failed to connect to all addresses|UnavailableError"
    r"|\bPeerLost\b|\bStoreLost\b|^(?:torchyard: )?\S+-\d+(?:\.\d+)? on \S+ is gone:",
    re.IGNORECASE,
)


_HOPELESS = re.compile(r"^(?:torchyard_roles\.errors\.)?(?:UsageProblem|NotInThisVersion)\b")
"""What torchyard_roles says of a script or topology that will be no better the next time."""


def of_exit(code: int, error_file: str, log_file: str, *, out_of_memory: bool = False) -> Cause:
    """The cause of a rank's end with `code` (negative: the signal that killed it)."""
    said = _from_error_file(error_file) or last_exception(read_tail(log_file))
    if code < 0:
        return _of_signal(-code, said, out_of_memory=out_of_memory)
    if said:
        return Cause(f"exited with {code}: {said}", bool(_OF_A_PEER.search(said)), not _HOPELESS.search(said))
    last = last_line(read_tail(log_file))
    if last:
        return Cause(f"exited with {code}; its last line was: {last}", bool(_OF_A_PEER.search(last)))
    return Cause(f"exited with {code} and printed nothing")


def _of_signal(number: int, said: str, *, out_of_memory: bool) -> Cause:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    if number == signal.SIGKILL:
        guess = "the host ran out of memory" if out_of_memory else "out of memory, or somebody killed it?"
        return Cause(f"was killed by SIGKILL ({guess})")
    if number == signal.SIGTERM:
        return Cause("was ended by SIGTERM, which did not come from Torchyard")
    return Cause(f"was killed by {name}" + (f": {said}" if said else ""), bool(_OF_A_PEER.search(said)))


def read_tail(path: str) -> str:
    """The end of a log; empty where there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            return file.read(TAIL).decode("utf-8", "replace")
    except OSError:
        return ""


def _plain_lines(text: str) -> list[str]:
    """Without colours and without the `[rank0]:` that torch puts before each line of a traceback."""
    return [_PREFIX.sub("", _COLOUR.sub("", line)).rstrip() for line in text.splitlines()]


def last_exception(text: str) -> str:
    """The line that names the last uncaught exception; empty where there is none."""
    lines = _plain_lines(text)
    for start in range(len(lines) - 1, -1, -1):
        if lines[start].strip() == _TRACEBACK:
            for line in lines[start + 1 :]:
                if line and not line[0].isspace() and re.match(r"[A-Za-z_]", line):
                    return _shortened(line)
            break
    for line in reversed(lines):  # a syntax error of the script itself has no header; gloo's abort has `what()`
        if _EXCEPTION.match(line):
            return _shortened(line)
        if line.lstrip().startswith("what():"):
            return _shortened(line.lstrip()[len("what():") :].strip())
    return ""


def last_line(text: str) -> str:
    lines = [line for line in _plain_lines(text) if line.strip()]
    return _shortened(lines[-1].strip()) if lines else ""


def _shortened(line: str) -> str:
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"


def _from_error_file(path: str) -> str:
    """What torch's `@record` wrote: {"message": {"message": "ValueError: bad", …}} or {"message": "…"}."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            message: Any = json.loads(file.read(1 << 20))
        message = message["message"]
        if isinstance(message, dict):
            message = message["message"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""
    lines = str(message).strip().splitlines()
    return _shortened(lines[0]) if lines else ""


def oom_kills() -> int:
    """How many processes the kernel has killed on this host for want of memory; 0 where it does not say."""
    try:
        with open("/proc/vmstat", encoding="ascii") as file:
            for line in file:
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    except OSError:
        pass
    return 0
