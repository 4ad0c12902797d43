"""Reading the last lines of a log."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from torchyard_core.launch.runs import logs
from torchyard_core.launch.runs.logs import LogReader


class LogOnAHost:
    """Answers `logs.read` as the agent does, for a log that has ended."""

    is_open = True
    host = "gpu-a"

    def __init__(self, log: bytes):
        self._log = log

    def call(self, method: str, params: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        assert method == "logs.read"
        start = params["offset"]
        data = self._log[start : start + params.get("limit", 7)]
        end = start + len(data)
        size = len(self._log)
        return {"data": base64.b64encode(data).decode(), "next": end, "size": size, "ended": end == size}


def last_lines(log: bytes, count: int) -> list[str]:
    reader = LogReader("run", "worker-0", 0, LogOnAHost(log), lambda host: pytest.fail("reattached"))
    reader.skip_to_last(count)
    return list(reader.lines(wait=False))


@pytest.mark.parametrize("piece", [1, 2, 3, 5, 64])
@pytest.mark.parametrize("log", ["", "\n", "a", "a\n", "a\nb", "a\nb\n", "\n\n\n", "eins\nzwölf\n\ndrei €\nend"])
def test_the_last_lines_are_those_of_the_whole_log(log: str, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "TAIL_PIECE", piece)
    lines = log.removesuffix("\n").split("\n") if log else []
    for count in range(len(lines) + 2):
        assert last_lines(log.encode(), count) == lines[max(0, len(lines) - count) :], count
