"""Determines why a rank exited.

The cause is taken from torch's error file, the last traceback in the rank's log, its signal or its exit code.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from typing import Any

from torchyard_agent.keeper.decisions.events import Cause

TAIL = 64 * 1024
"""Number of bytes at the end of a log that are searched."""
MAX_QUOTE = 300
"""Maximum number of characters that are quoted from a program's output."""

_PREFIX = re.compile(r"^\[(?:rank|default)\d*\]:? ?")
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning|Timeout)\b(?::.*)?$")
_PEER_LOST = re.compile(
    r"connection (?:was )?(?:reset|closed|refused|aborted|lost)|broken ?pipe|connection(?:reset|refused|aborted)error"
    r"|socket closed|gloo|nccl|DistNetworkError|DistStoreError|DistBackendError|TCPStore"
    r"|failed to recv|failed to connect to all addresses|UnavailableError"
    r"|\bPeerLost\b|\bStoreLost\b|^(?:torchyard: )?\S+-\d+(?:\.\d+)? on \S+ is gone:",
    re.IGNORECASE,
)


_INCURABLE = re.compile(r"^(?:torchyard_roles\.errors\.)?(?:UsageProblem|NotInThisVersion)\b")
"""Errors of torchyard_roles for which a restart cannot help, because the script or the topology is wrong."""
_LACKS_TORCH = re.compile(r"\bNo module named '?torch'?(?![\w.])")
_SYNTAX_ERROR = re.compile(r"^(?:SyntaxError|IndentationError|TabError)\b")
_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line \d+(?:, in (?P<function>.+))?$')


def of_exit(code: int, error_file: str, log_file: str, *, out_of_memory: bool = False) -> Cause:
    """Returns the cause of a rank's exit with code `code`. A code of -N means that signal N killed the rank."""
    tail = read_tail(log_file)
    quoted = _from_error_file(error_file) or last_exception(tail)
    if code < 0:
        return _of_signal(-code, quoted, out_of_memory=out_of_memory)
    if quoted:
        is_curable = not _INCURABLE.search(quoted) and not (_SYNTAX_ERROR.match(quoted) and has_broken_code(tail))
        return Cause(f"exited with {code}: {quoted}", bool(_PEER_LOST.search(quoted)), is_curable)
    last = last_line(tail)
    if last:
        return Cause(f"exited with {code}; its last line was: {last}", bool(_PEER_LOST.search(last)))
    return Cause(f"exited with {code} and printed nothing")


def lacks_torch(cause: Cause) -> bool:
    """Returns whether a rank exited because its interpreter has no torch. A restart does not help in this case."""
    return _LACKS_TORCH.search(cause.text) is not None


def _of_signal(number: int, quoted: str, *, out_of_memory: bool) -> Cause:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    if number == signal.SIGKILL:
        guess = "the host ran out of memory" if out_of_memory else "out of memory, or killed by a user?"
        return Cause(f"was killed by SIGKILL ({guess})")
    if number == signal.SIGTERM:
        return Cause("was ended by SIGTERM, which did not come from Torchyard")
    return Cause(f"was killed by {name}" + (f": {quoted}" if quoted else ""), bool(_PEER_LOST.search(quoted)))


def read_tail(path: str) -> str:
    """Returns the last TAIL bytes of a log as text, or "" if the log cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            return file.read(TAIL).decode("utf-8", "replace")
    except OSError:
        return ""


def _plain_lines(text: str) -> list[str]:
    """Returns the lines without color codes and without the `[rank0]:` that torch writes before traceback lines."""
    return [_PREFIX.sub("", _COLOUR.sub("", line)).rstrip() for line in text.splitlines()]


def last_exception(text: str) -> str:
    """Returns the message line of the last exception in a text, with or without a traceback, or "" if there is none."""
    lines = _plain_lines(text)
    for start in range(len(lines) - 1, -1, -1):
        if lines[start].strip() == _TRACEBACK:
            for line in lines[start + 1 :]:
                if line and not line[0].isspace() and re.match(r"[A-Za-z_]", line):
                    return _shortened(line)
            break
    for line in reversed(lines):
        # A syntax error in the script is printed without a traceback's header, and an abort of gloo prints `what():`.
        if _EXCEPTION.match(line):
            return _shortened(line)
        if line.lstrip().startswith("what():"):
            return _shortened(line.lstrip()[len("what():") :].strip())
    return ""


def has_broken_code(text: str) -> bool:
    """Returns whether the last syntax error in a text is in a file that the program reads when it starts.

    Such a file is the script, or a module that is imported at the top level of the script or of another module. Its
    syntax error recurs after every restart, unlike an error in code that the program evaluates later.
    """
    lines = _plain_lines(text)
    last = max((number for number, line in enumerate(lines) if _SYNTAX_ERROR.match(line)), default=0)
    frames = []
    for line in reversed(lines[:last]):
        if line and not line[0].isspace():
            break
        if (frame := _FRAME.match(line)) is not None:
            frames.append((frame["file"], frame["function"]))
    if not frames:
        return False
    (file, function), *callers = frames
    return function is None and not file.startswith("<") and all(_is_import(*caller) for caller in callers)


def _is_import(file: str, function: str | None) -> bool:
    """Returns whether a stack frame is the top level of a module, or part of Python's import system."""
    return function == "<module>" or file.startswith("<frozen ") or os.path.basename(file) == "runpy.py"


def last_line(text: str) -> str:
    lines = [line for line in _plain_lines(text) if line.strip()]
    return _shortened(lines[-1].strip()) if lines else ""


def _shortened(line: str) -> str:
    return line if len(line) <= MAX_QUOTE else line[: MAX_QUOTE - 1] + "…"


def _from_error_file(path: str) -> str:
    """Returns the first line of the message in an error file of torch's `@record`, or "" if there is no message.

    The file contains {"message": {"message": "ValueError: bad", …}} or {"message": "…"}.
    """
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
    """Returns how many processes the kernel's OOM killer has killed since boot, or 0 if this is unknown."""
    with contextlib.suppress(OSError), open("/proc/vmstat", encoding="ascii") as file:
        for line in file:
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
