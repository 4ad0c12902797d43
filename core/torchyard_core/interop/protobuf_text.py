"""Parser of protocol buffers' text format, with line numbers: `name: value`, `name { … }` and lists of both.

SINGA's job files have this format. Source: the specification of the Protocol Buffers text format.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from torchyard_core.interop.document_reader import refuse

_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)|(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
    r"""|(?P<end>[,;])|(?P<sign>[{}<>:\[\]])|(?P<word>(?:-\s*)?[^\s,;#"'{}<>:\[\]]+)"""
)
_NUMBER = re.compile(r"0[xX](?P<hexadecimal>[0-9a-fA-F]+)|0(?P<octal>[0-7]+)|(?P<decimal>0|[1-9][0-9]*)")
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_LETTERS = {b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
MAX_DEPTH = 64
_WRITE = "Write `name: value` or `name { … }`."
_CLOSING = {"{": "}", "<": ">"}


@dataclass(frozen=True)
class Entry:
    """A name with its value, which is a scalar or a block. A list is represented by one entry for each value."""

    name: str
    line: int
    value: str | Block
    is_text: bool = False
    """Whether the value is in quotes."""


@dataclass
class Block:
    """The entries in `{ … }`, or of a whole file."""

    line: int
    entries: list[Entry] = field(default_factory=list)

    def find(self, name: str) -> Entry | None:
        """Returns the last entry with the given name, or None if there is none.

        In this format, the last entry takes precedence.
        """
        return next((entry for entry in reversed(self.entries) if entry.name == name), None)


def parse_proto(text: str, source: str) -> Block:
    """Parses a file. Raises FileProblem for brackets or quotes that are not closed, and for names without a value."""
    return _Parser(text, source).block(Block(1))


def whole_number(value: str) -> int | None:
    """Returns the integer of a literal such as 12, 0xc or 014; None for other text."""
    match = _NUMBER.fullmatch(value)
    if match is None or len(value) > 20:
        return None
    base = {"hexadecimal": 16, "octal": 8, "decimal": 10}[match.lastgroup or ""]
    return int(match[match.lastgroup or ""], base)


class _Parser:
    def __init__(self, text: str, source: str) -> None:
        self._source = source
        self._tokens: list[tuple[str, str, int]] = []
        self._at = 0
        at, line = 0, 1
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                refuse(source, line, f"{text[at]} opens a text that is never closed.", "Close the quote.")
            kind = match.lastgroup or ""
            if kind != "space":
                self._tokens.append((kind, match[0], line))
            line += match[0].count("\n")
            at = match.end()

    def block(self, block: Block, opening: str = "", depth: int = 0) -> Block:
        """Parses entries up to the bracket that closes `opening`, or to the end of the file if `opening` is empty.

        Raises FileProblem for invalid syntax.
        """
        if depth > MAX_DEPTH:
            refuse(self._source, block.line, f"blocks are nested deeper than {MAX_DEPTH} levels.")
        while self._at < len(self._tokens):
            kind, token, line = self._tokens[self._at]
            if kind == "sign" and token in "}>":
                if not opening:
                    refuse(self._source, line, f"`{token}` closes nothing.", "Remove it.")
                self._at += 1
                if token != _CLOSING[opening]:
                    message = f"`{token}` does not close the `{opening}` that begins in line {block.line}."
                    refuse(self._source, line, message, f"Close it with `{_CLOSING[opening]}`.")
                return block
            self._entry(block, depth)
        if opening:
            message = f"the `{opening}` that begins here is not closed."
            refuse(self._source, block.line, message, f"Close it with `{_CLOSING[opening]}`.")
        return block

    def _entry(self, block: Block, depth: int) -> None:
        name, line = self._name()
        has_colon = self._take(":")
        if self._take("["):
            while not self._take("]"):
                if self._kind() not in ("word", "text") and self._sign() not in ("{", "<"):
                    refuse(self._source, line, "the `[` that begins here is not closed.", "Close it with `]`.")
                block.entries.append(self._value(name, line, depth))
                self._take(",")
        elif self._sign() in ("{", "<") or (has_colon and self._kind() in ("word", "text")):
            block.entries.append(self._value(name, line, depth))
        else:
            refuse(self._source, line, f"`{name}` has no value.", _WRITE)
        if self._kind() == "end":
            self._at += 1

    def _name(self) -> tuple[str, int]:
        kind, token, line = self._tokens[self._at]
        extension = [one[1] for one in self._tokens[self._at : self._at + 3]]
        if extension[:1] == ["["] and extension[2:] == ["]"]:
            self._at += 3
            return "".join(extension), line
        if kind != "word":
            refuse(self._source, line, f"`{token}` is in the place of a name.", _WRITE)
        self._at += 1
        return token, line

    def _value(self, name: str, line: int, depth: int) -> Entry:
        kind, token, _ = self._tokens[self._at]
        self._at += 1
        if kind == "sign":
            return Entry(name, line, self.block(Block(line), token, depth + 1))
        if kind == "word":
            return Entry(name, line, "".join(token.split()))
        value = _plain(token)
        while self._kind() == "text":
            value += _plain(self._tokens[self._at][1])  # Adjacent strings are concatenated.
            self._at += 1
        return Entry(name, line, value, is_text=True)

    def _kind(self) -> str:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else ""

    def _sign(self) -> str:
        return self._tokens[self._at][1] if self._kind() == "sign" else ""

    def _take(self, token: str) -> bool:
        """Consumes the next token if it equals `token`, and returns whether it did."""
        matches = self._at < len(self._tokens) and self._kind() != "text" and self._tokens[self._at][1] == token
        self._at += matches
        return matches


def _plain(token: str) -> str:
    """Returns the value of a string literal: its text without quotes, with escapes decoded."""
    raw = _ESCAPE.sub(_unescaped, token[1:-1].encode(errors="replace"))
    return raw.decode(errors="replace")


def _unescaped(match: re.Match[bytes]) -> bytes:
    octal, hexadecimal, short, long, letter = match.groups()
    if letter is not None:
        return _LETTERS.get(letter, letter)
    if octal is not None:
        return bytes([int(octal, 8) & 0xFF])
    if hexadecimal is not None:
        return bytes([int(hexadecimal, 16)])
    code = int(short or long, 16)
    return chr(code).encode(errors="replace") if code <= 0x10FFFF else b"?"
