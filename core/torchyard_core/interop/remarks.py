"""What is said beside a document that was read or written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Remark:
    """A sentence about what could not be carried over, or was decided. `line` is the document's, where there is one."""

    message: str
    line: int | None = None

    def printed(self, source: str) -> str:
        where = f"{source}:{self.line}" if self.line else source
        return f"{where}: {self.message}"

    def to_json(self) -> dict[str, Any]:
        return {"message": self.message, "line": self.line}
