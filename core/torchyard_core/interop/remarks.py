"""Remarks about an imported or exported document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Remark:
    """A sentence for the user about a key that was not converted, or about a choice that the conversion made."""

    message: str
    line: int | None = None

    def printed(self, source: str) -> str:
        where = f"{source}:{self.line}" if self.line else source
        return f"{where}: {self.message}"

    def to_json(self) -> dict[str, Any]:
        return {"message": self.message, "line": self.line}
