"""What is said beside a document of another system that was read or written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchyard_gui.widgets.advice import in_the_window

if TYPE_CHECKING:
    from torchyard_core.interop.remarks import Remark


@dataclass(frozen=True)
class Told:
    """A document by its file's name, with what could not be carried over or was decided."""

    document: str
    text: str
    remarks: tuple[Remark, ...]

    def sentences(self) -> list[str]:
        """The remarks, with the advice that the window has for them."""
        return [in_the_window(remark.message) for remark in self.remarks]
