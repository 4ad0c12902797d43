"""A log of any length, of which only some blocks are loaded.

Lines are addressed by byte offset and never counted, so that a log of several gigabytes can be opened at its end
without reading the beginning.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass

BLOCK = 64 * 1024
KEPT = 96
"""Maximum number of blocks in memory, which is 6 MiB in total."""
LONGEST = 4096
"""Maximum length of a line in bytes; longer lines are split."""

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a log. `begin` and `end` are byte offsets; the newline is included."""

    begin: int
    end: int
    text: str


class MissingPage(Exception):
    """Raised if the block at `offset` must be loaded first."""

    def __init__(self, offset: int):
        super().__init__(offset)
        self.offset = offset


class PagedLog:
    """Cache of a log's loaded blocks. The least recently used blocks are discarded."""

    def __init__(self, kept: int | None = None) -> None:
        """Creates an empty cache.

        Args:
            kept: Maximum number of blocks, by default KEPT.
        """
        self.size = 0
        self._kept = kept
        self._blocks: OrderedDict[int, bytearray] = OrderedDict()

    def put(self, offset: int, data: bytes, size: int) -> None:
        """Adds data at an offset. Data that neither begin a block nor continue a loaded block are ignored."""
        self.size = max(self.size, size, offset + len(data))
        while data:
            number, inside = divmod(offset, BLOCK)
            part = data[: BLOCK - inside]
            block = self._blocks.get(number)
            if block is None and inside == 0:
                self._blocks[number] = bytearray(part)
            elif block is not None and len(block) >= inside:
                block[inside : inside + len(part)] = part
            if number in self._blocks:
                self._blocks.move_to_end(number)
            offset, data = offset + len(part), data[len(part) :]
        while len(self._blocks) > (self._kept or KEPT):
            self._blocks.popitem(last=False)

    def lines(self, begin: int, count: int) -> list[Line]:
        """Returns at most `count` lines, starting with the line at `begin`.

        Raises MissingPage if a block must be loaded first.
        """
        found: list[Line] = []
        while len(found) < count and begin < self.size:
            line = self._line(begin)
            found.append(line)
            begin = line.end
        return found

    def begin_of_line(self, offset: int) -> int:
        """Returns the offset of the line that contains the byte at `offset`.

        Raises MissingPage if a block must be loaded first.
        """
        offset = min(max(0, offset), self.size)
        lowest = max(0, offset - LONGEST)
        data = self._read(lowest, offset)
        newline = data.rfind(b"\n")
        return lowest + newline + 1 if newline >= 0 else lowest

    def back(self, begin: int, count: int) -> int:
        """Returns the offset of the line `count` lines before the line at `begin`, or 0 if there are fewer lines.

        Raises MissingPage if a block must be loaded first.
        """
        for _ in range(count):
            if begin <= 0:
                break
            begin = self.begin_of_line(begin - 1)
        return begin

    def last_page(self, count: int) -> int:
        """Returns the offset at which the last `count` lines begin.

        Raises MissingPage if a block must be loaded first.
        """
        return self.back(self.size, count)

    def _line(self, begin: int) -> Line:
        data = self._read(begin, min(begin + LONGEST, self.size))
        newline = data.find(b"\n")
        end = newline + 1 if newline >= 0 else len(data)
        return Line(begin, begin + end, text_of(data[:end]))

    def _read(self, begin: int, end: int) -> bytes:
        parts = []
        while begin < end:
            number, inside = divmod(begin, BLOCK)
            block = self._blocks.get(number)
            wanted = min(BLOCK, end - number * BLOCK)
            if block is None or len(block) < wanted:
                raise MissingPage(number * BLOCK)
            self._blocks.move_to_end(number)
            parts.append(bytes(block[inside:wanted]))
            begin = number * BLOCK + wanted
        return b"".join(parts)


def text_of(data: bytes) -> str:
    """Returns a line as a terminal displays it: without colour codes and earlier states of a progress bar."""
    text = _COLOUR.sub("", data.decode("utf-8", "replace").rstrip("\r\n"))
    return text.rpartition("\r")[2].expandtabs(8)
