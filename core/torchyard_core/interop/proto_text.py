"""Protocol buffers' text format, as SINGA's job files have it: `name: value` and `name { … }`, with lines."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from torchyard_core.interop.reading import refuse

_TOKEN = re.compile(
    r"""(?P<space>[\s,;]+|\#[^\n]*)|(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
    r"""|(?P<sign>[{}<>:\[\]])|(?P<word>[^\s,;#"'{}<>:\[\]]+)""",
)
MAX_DEPTH = 64
_WRITE = "Write `name: value` or `name { … }`."


@dataclass(frozen=True)
class Entry:
    """A name with its value: a word or text, or a block."""

    name: str
    line: int
    value: str | Block


@dataclass
class Block:
    """The entries of `{ … }`, or of a whole file."""

    line: int
    entries: list[Entry] = field(default_factory=list)

    def find(self, name: str) -> Entry | None:
        """The last entry of a name, as the format has it."""
        return next((entry for entry in reversed(self.entries) if entry.name == name), None)


def parse_proto(text: str, source: str) -> Block:
    """Raises FileProblem where brackets or quotes are not closed, or a name has no value."""
    return _Parser(text, source).whole()


class _Parser:
    def __init__(self, text: str, source: str) -> None:
        self._source = source
        self._tokens: list[tuple[str, str, int]] = []
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

    def whole(self) -> Block:
        root = Block(1)
        open_blocks = [root]
        tokens = self._tokens
        at = 0
        while at < len(tokens):
            kind, token, line = tokens[at]
            at += 1
            if token in ("}", ">") and kind == "sign":
                if len(open_blocks) == 1:
                    refuse(self._source, line, f"`{token}` closes nothing.", "Remove it.")
                open_blocks.pop()
                continue
            if token == "[" and kind == "sign" and [one[1] for one in tokens[at + 1 : at + 2]] == ["]"]:
                kind, token, at = tokens[at][0], f"[{tokens[at][1]}]", at + 2  # An extension's name.
            if kind != "word":
                refuse(self._source, line, f"`{token}` stands where a name should.", _WRITE)
            has_colon = at < len(tokens) and tokens[at][1] == ":"
            at += has_colon
            following = tokens[at] if at < len(tokens) else ("", "", line)
            if following[1] in ("{", "<") and following[0] == "sign":
                if len(open_blocks) >= MAX_DEPTH:
                    refuse(self._source, line, f"blocks are nested deeper than {MAX_DEPTH} levels.")
                block = Block(line)
                open_blocks[-1].entries.append(Entry(token, line, block))
                open_blocks.append(block)
                at += 1
            elif following[1] == "[" and following[0] == "sign":
                end = self._end_of_list(at, line)
                # No list says what a cluster is: values are kept, blocks are passed over.
                if all(kind in ("word", "text") for kind, _, _ in tokens[at + 1 : end]):
                    open_blocks[-1].entries += [Entry(token, line, _plain(one[1])) for one in tokens[at + 1 : end]]
                at = end + 1
            elif has_colon and following[0] in ("word", "text"):
                value = _plain(following[1])
                at += 1
                while following[0] == "text" and at < len(tokens) and tokens[at][0] == "text":
                    value += _plain(tokens[at][1])  # Texts side by side are one.
                    at += 1
                open_blocks[-1].entries.append(Entry(token, line, value))
            else:
                refuse(self._source, line, f"`{token}` has no value.", _WRITE)
        if len(open_blocks) > 1:
            refuse(self._source, open_blocks[-1].line, "the `{` that begins here is not closed.", "Close it with `}`.")
        return root

    def _end_of_list(self, at: int, line: int) -> int:
        """Where the list closes that opens at a token."""
        depth = 0
        for kind, token, _ in self._tokens[at:]:
            depth += {"[": 1, "]": -1}.get(token, 0) if kind == "sign" else 0
            if depth == 0:
                break
            at += 1
        if depth:
            refuse(self._source, line, "the `[` that begins here is not closed.", "Close it.")
        return at


def _plain(token: str) -> str:
    return token[1:-1] if token[:1] in ("'", '"') else token
