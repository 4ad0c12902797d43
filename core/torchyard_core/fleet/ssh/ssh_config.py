"""Reads the user's `~/.ssh/config`, and evaluates it for a host.

paramiko evaluates `Host` and `Match`. It ignores `Include`, which is therefore resolved before, as ssh(1) does.
"""

from __future__ import annotations

import glob
import re
import shlex
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import paramiko

from torchyard_core.errors import FileProblem
from torchyard_core.home import expand_user

USER_CONFIG = Path("~/.ssh/config")
MAX_DEPTH = 16
"""Maximum depth of includes, as in OpenSSH."""

Settings = Mapping[str, str | list[str]]
"""The settings of ~/.ssh/config for one host, by lower-case keyword. The value of a repeatable keyword is a list."""

_LINE = re.compile(r"\s*(\w+)(?:\s*=\s*|\s+)(.*?)\s*$")
_COMMANDS = ("proxycommand", "localcommand", "remotecommand", "knownhostscommand")
"""Keywords whose value is the rest of the line, including quotes and `#`."""


class _Unexpanded(paramiko.SSHConfig):
    """An SSHConfig that does not expand tokens.

    Tokens are expanded later, because their values (address, port and user) also depend on the fleet file.
    """

    TOKENS_BY_CONFIG_KEY = {"match-exec": paramiko.SSHConfig.TOKENS_BY_CONFIG_KEY["match-exec"]}  # noqa: RUF012 - as in paramiko


class UserConfig:
    """The user's SSH configuration with its includes. Thread-safe."""

    def __init__(self, path: Path = USER_CONFIG):
        self._path = path
        self._lock = threading.Lock()
        self._config: paramiko.SSHConfig | None = None

    def lookup(self, alias: str) -> Settings:
        """Returns the settings that apply to `ssh ALIAS`. Raises FileProblem if the configuration is malformed."""
        with self._lock:
            try:
                if self._config is None:
                    self._config = _Unexpanded.from_text(config_text(expand_user(self._path)))
                found: dict[str, Any] = dict(self._config.lookup(alias))
            except (paramiko.ConfigParseError, paramiko.SSHException, ValueError, KeyError) as error:
                hint = "`ssh -G HOST` may say more. Hosts with `transport: openssh` or `local: true` do not need it."
                raise FileProblem(f"{self._path} is malformed: {error}.", code="ssh_config", hint=hint) from error
        return {key: value for key, value in found.items() if value is not None}


def config_text(path: Path) -> str:
    """Returns the text of `path` with includes resolved. As in ssh(1), an unreadable file is treated as empty.

    An include inside a `Host` or `Match` block applies only where that block applies. Lines after an `Include` belong
    to the block that contains the `Include`, regardless of blocks in the included file.
    """
    return "\n".join(_lines(path, (), 0))


def _lines(path: Path, outer: tuple[str, ...], depth: int) -> Iterator[str]:
    """Yields the lines of a file. `outer` contains the criteria of the blocks around the `Include` of this file."""
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError:
        return
    block = outer
    for line in text.splitlines():
        key, value = _parsed(line)
        if key == "include":
            if depth < MAX_DEPTH:
                for included in _included(value):
                    yield _heading(block)
                    yield from _lines(included, block, depth + 1)
                yield _heading(block)
        elif key in ("host", "match"):
            block = (*outer, value if key == "match" else f"originalhost {_patterns(value)}")
            yield _heading(block) if outer else f"{key} {value}"
        elif key:
            yield f"{key} {value}"


def _parsed(line: str) -> tuple[str, str]:
    """Returns the keyword in lower case and the value of a line; empty strings for a comment."""
    if line.lstrip().startswith("#"):
        return "", ""
    match = _LINE.match(line)
    if not match:
        return line.strip().lower(), ""
    key = match[1].lower()
    return key, match[2] if key in _COMMANDS else _without_comment(match[2])


def _without_comment(value: str) -> str:
    quoted = False
    for position, letter in enumerate(value):
        if letter == '"':
            quoted = not quoted
        elif letter == "#" and not quoted and (position == 0 or value[position - 1].isspace()):
            return value[:position].rstrip()
    return value


def _included(value: str) -> list[Path]:
    """Returns the files of an `Include` directive. Relative patterns refer to ~/.ssh."""
    found: list[Path] = []
    for pattern in _words(value):
        absolute = expand_user("~/.ssh") / expand_user(pattern)
        found += (Path(name) for name in sorted(glob.glob(str(absolute))))  # noqa: PTH207 - skips hidden files
    return found


def _heading(block: Iterable[str]) -> str:
    """Returns the line that opens a block to which all given criteria apply."""
    criteria = [one for one in block if one.lower() != "all"]
    return f"match {' '.join(criteria)}" if criteria else "match all"


def _patterns(value: str) -> str:
    """Converts the patterns of `Host` to the syntax of `Match`."""
    return shlex.quote(",".join(_words(value)))


def _words(value: str) -> list[str]:
    try:
        return shlex.split(value)
    except ValueError:
        return value.split()


def host_names(text: str) -> list[str]:
    """Returns the host names in a configuration, in file order. Patterns are omitted."""
    names: dict[str, None] = {}
    for line in text.splitlines():
        key, value = _parsed(line)
        words = _words(value)
        # `_lines` writes a `Host` block of an included file as `match originalhost NAMES`.
        if key == "match" and "originalhost" in words[:-1]:
            words = words[max(at for at, word in enumerate(words[:-1]) if word == "originalhost") + 1].split(",")
        elif key != "host":
            continue
        names.update(dict.fromkeys(word for word in words if word and not set(word) & set("*?!")))
    return list(names)
