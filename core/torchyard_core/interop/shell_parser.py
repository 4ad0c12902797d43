"""Parser of shell commands and their options.

It joins lines that a backslash continues, and also parses the commands that `ssh` and `sh -c` run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from torchyard_core.interop.document_reader import refuse

MAX_LETTERS = 128 * 1024
"""Maximum number of characters of a command: the maximum length of an argument in Linux."""
MAX_DEPTH = 4
"""Maximum nesting depth of commands, for example of `ssh` commands that run `ssh` on another host."""
_BEFORE = {"nohup", "sudo", "exec", "time", "setsid"}
_SHELLS = {"sh", "bash", "dash", "zsh"}
_SSH_TAKES = set("BbcDEeFIiJLlmOopQRSWw")
"""Options of `ssh` that take a value."""
_BETWEEN = {"&&", "||", ";", "&", "|"}
_REDIRECTION = re.compile(r"(?:[0-9]|&)?(?:>>?|<)")


@dataclass(frozen=True)
class CommandLine:
    """The words of a command, and the line where it begins."""

    words: tuple[str, ...]
    line: int
    """The line where the command begins, counted from 1."""
    host: str = ""
    """The host on which `ssh` runs the command; empty if the command does not run through `ssh`."""

    def options(self) -> Iterator[tuple[str, str]]:
        """Yields the name (without dashes) and value of each `--name=value`, `--name value` or `-name value`."""
        words = list(self.words)
        while words:
            word = words.pop(0)
            if not word.startswith("-") or word in ("-", "--"):
                continue
            name, equals, value = word.lstrip("-").partition("=")
            if not equals and words and not words[0].startswith("-"):
                value = words.pop(0)
            yield name, value

    def arguments_after(self, start: int, omitted: re.Pattern[str]) -> list[str]:
        """Returns the words from position `start`, without the options that match `omitted` and their values."""
        words, kept = list(self.words[start:]), []
        while words:
            word = words.pop(0)
            if not omitted.match(word):
                kept.append(word)
            elif "=" not in word and words and not words[0].startswith("-"):
                words.pop(0)
        return kept

    def program(self) -> list[str]:
        """Returns the words that start the program, which are the words before the first option with two dashes."""
        end = next((at for at, word in enumerate(self.words) if word.startswith("--")), len(self.words))
        return list(self.words[:end])


def command_lines(text: str, source: str, line: int = 1, depth: int = 0) -> list[CommandLine]:
    """Returns the commands in a text whose first line has the number `line`.

    They include the commands that `ssh` and `sh -c` run. Raises FileProblem for invalid syntax.
    """
    found: list[CommandLine] = []
    pending, quote, first = "", "", line
    for number, piece in enumerate(text.splitlines(), start=line):
        if not pending:
            first = number
        piece, quote, goes_on = _read_line(piece, quote)
        pending += piece
        if goes_on:
            continue
        if quote:
            pending += "\n"
            continue
        found += _commands(pending, source, first, depth)
        pending = ""
    found += _commands(pending, source, first, depth)
    return found


def _read_line(line: str, quote: str) -> tuple[str, str, bool]:
    """Reads one line of a shell script.

    Args:
        line: The line.
        quote: The quotation mark that is open at the beginning of the line, or an empty string.

    Returns:
        The line without its comment and final backslash, the quotation mark that is open at its end, and whether the
        next line continues it.
    """
    escaped = False
    for at, letter in enumerate(line):
        if escaped:
            escaped = False
        elif letter == "\\" and quote != "'":
            escaped = True
        elif quote:
            quote = "" if letter == quote else quote
        elif letter in ("'", '"'):
            quote = letter
        elif letter == "#" and (at == 0 or line[at - 1] in " \t;&|("):
            return line[:at], "", False
    return (line[:-1], quote, True) if escaped else (line, quote, False)


def _commands(text: str, source: str, line: int, depth: int) -> Iterator[CommandLine]:
    if len(text) > MAX_LETTERS:
        refuse(source, line, f"this command is longer than {MAX_LETTERS} letters.", "Is a quote in it not closed?")
    try:
        words = shlex.split(text)
    except ValueError as error:
        refuse(source, line, f"this command cannot be read: {str(error).lower()}.", "Close its quotes.")
    if words and words[0] == "$":
        words = words[1:]  # The user has copied the command together with the shell prompt.
    for command in _split_commands(words):
        remote = _remote_commands(command) if depth < MAX_DEPTH else None
        if remote is None:
            yield CommandLine(tuple(command), line)
        else:
            host, inner = remote
            for one in command_lines(inner, source, line, depth + 1):
                yield replace(one, host=one.host or host)


def _remote_commands(words: list[str]) -> tuple[str, str] | None:
    """Returns the host and command of `ssh HOST …`, or "" and the command of `sh -c …`. Returns None for others."""
    before = next((at for at, word in enumerate(words) if word not in _BEFORE), len(words))
    name, rest = PurePosixPath(words[before]).name if before < len(words) else "", words[before + 1 :]
    if name in _SHELLS:
        at = next((at for at, word in enumerate(rest) if re.fullmatch("-[a-z]*c", word)), len(rest))
        return ("", rest[at + 1]) if at + 1 < len(rest) else None
    if name != "ssh":
        return None
    rest = _after_ssh_options(rest)
    inner = _after_ssh_options(rest[1:])
    # ssh joins its words with spaces, and the remote shell parses the result.
    return (rest[0].rpartition("@")[2], " ".join(inner)) if inner else None


def _after_ssh_options(words: list[str]) -> list[str]:
    while words and words[0].startswith("-") and len(words[0]) > 1:
        letters = words[0][1:]
        takes = next((at for at, letter in enumerate(letters) if letter in _SSH_TAKES), None)
        words = words[2:] if takes == len(letters) - 1 else words[1:]
    return words


def _split_commands(words: list[str]) -> list[list[str]]:
    """Splits the words of a line into commands, without redirections."""
    commands: list[list[str]] = [[]]
    skip = False
    for word in words:
        redirects = _REDIRECTION.match(word)
        if skip or redirects is not None:
            skip = not skip and redirects is not None and redirects.end() == len(word)
        elif word in _BETWEEN:
            commands.append([])
        else:
            commands[-1].append(word.removesuffix(";"))
            if word.endswith(";"):
                commands.append([])
    return [command for command in commands if command]
