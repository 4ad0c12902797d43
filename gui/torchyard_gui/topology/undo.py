"""The undo command, which holds the states of the document before and after an edit of the topology or the text."""

from __future__ import annotations

import zlib
from collections.abc import Callable

from PySide6.QtGui import QUndoCommand

from torchyard_core.topology.document.topology_document import DocumentState, TopologyDocument

Select = Callable[[tuple[str, ...]], None]


class Edit(QUndoCommand):
    """Command that replaces the document's state. It keeps both states, which is safe because states are immutable.

    Successive edits with the same non-empty `key`, such as changes of one field, are merged. `selections` contains the
    replicas to select after an undo and after a redo.
    """

    def __init__(
        self,
        document: TopologyDocument,
        before: DocumentState,
        after: DocumentState,
        text: str,
        key: str = "",
        select: Select | None = None,
        selections: tuple[tuple[str, ...], tuple[str, ...]] = ((), ()),
    ) -> None:
        super().__init__(text)
        self._document = document
        self._before = before
        self._after = after
        self._key = key
        self._select = select
        self._selections = selections

    def id(self) -> int:
        """Returns the ID by which Qt merges commands. A command with the ID -1 is never merged."""
        return zlib.crc32(self._key.encode()) & 0x7FFFFFFF if self._key else -1

    def redo(self) -> None:
        self._put(self._after, self._selections[1])

    def undo(self) -> None:
        self._put(self._before, self._selections[0])

    def _put(self, state: DocumentState, selection: tuple[str, ...]) -> None:
        self._document.restore(state)
        if self._select is not None:
            self._select(selection)

    def mergeWith(self, other: QUndoCommand) -> bool:
        if not isinstance(other, Edit) or other._key != self._key or other._before is not self._after:
            return False
        self._after = other._after
        self._selections = (self._selections[0], other._selections[1])
        self.setObsolete(self._after.value == self._before.value)
        return True
