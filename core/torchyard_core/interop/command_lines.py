"""Shell text in other systems' documents: commands with backslashes at line ends, and their options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from torchyard_core.interop.reading import refuse

_BETWEEN = {"&&", "||", ";", "&", "|"}
_REDIRECTION = re.compile(r"(?:[0-9]|&)?(?:>>?|<)")


@dataclass(frozen=True)
class CommandLine:
    """One command's words."""

    words: tuple[str, ...]
    line: int
    """Where it begins, counted from 1."""

    def options(self) -> Iterator[tuple[str, str]]:
        """Its options as (name without dashes, value): `--name=value`, `--name value` or `-name value`."""
        words = list(self.words)
        while words:
            word = words.pop(0)
            if not word.startswith("-") or word in ("-", "--"):
                continue
            name, equals, value = word.lstrip("-").partition("=")
            if not equals and words and not words[0].startswith("-"):
                value = words.pop(0)
            yield name, value

    def beyond(self, start: int, but: re.Pattern[str]) -> list[str]:
        """The words from a position on as they are, without the options that `but` matches and their values."""
        words, kept = list(self.words[start:]), []
        while words:
            word = words.pop(0)
            if not but.match(word):
                kept.append(word)
            elif "=" not in word and words and not words[0].startswith("-"):
                words.pop(0)
        return kept

    def program(self) -> list[str]:
        """What is run: the words before the first option of two dashes."""
        end = next((at for at, word in enumerate(self.words) if word.startswith("--")), len(self.words))
        return list(self.words[:end])


def command_lines(text: str, source: str) -> list[CommandLine]:
    """The commands in a text, comments and empty lines left out. Raises FileProblem where a quote is not closed."""
    found: list[CommandLine] = []
    pending, first = "", 0
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        if not pending:
            first = number
        pending += line
        if pending.endswith("\\"):
            pending = pending[:-1] + " "
            continue
        try:
            words = shlex.split(pending, comments=True)
        except ValueError as error:
            refuse(source, first, f"this command cannot be read: {str(error).lower()}.", "Close its quotes.")
        pending = ""
        if words and words[0] == "$":
            words = words[1:]  # Copied from a terminal, or from a page that shows one.
        found += [CommandLine(tuple(command), first) for command in _parted(words)]
    return found


def _parted(words: list[str]) -> list[list[str]]:
    """The commands of one line, without what goes to files."""
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
