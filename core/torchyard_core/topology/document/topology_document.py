"""The topology that is open in an editor, and its file. The window listens to the document's signals."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from psygnal import Signal

from torchyard_core.atomic_write import write_atomically
from torchyard_core.errors import FileProblem
from torchyard_core.problems import Problem, no_lines
from torchyard_core.topology.document.edits import empty_topology, with_parts
from torchyard_core.topology.document.typed_text import BOM, shown_text, typed_over
from torchyard_core.topology.document.yaml_patch import patch_yaml
from torchyard_core.topology.file import TopologyFile, dump, topology_from_text
from torchyard_core.topology.model import Pool, Role, Topology
from torchyard_core.yaml_io.document import Document, parse_document
from torchyard_core.yaml_io.file_reader import read_text
from torchyard_core.yaml_io.model_validation import validate

UNTITLED = "untitled"

DiskState = Literal["same", "changed", "gone"]


@dataclass(frozen=True)
class Written:
    """A topology, and the text of its file."""

    value: Topology
    text: str


@dataclass(frozen=True, eq=False)
class DocumentState:
    """The state that an edit changes and undo restores."""

    value: Topology
    typed: Written | None = None
    """The last valid text that the user typed, with its topology. Later edits are applied to this text as patches."""
    invalid_text: str = ""
    """Invalid text that was opened or typed after `value` was set; empty if there is none."""
    problems: tuple[Problem, ...] = ()
    """The problems of `invalid_text`; empty if there is none."""


class TopologyDocument:
    """An open topology. States are immutable; `replace` and `restore` set a new state."""

    changed = Signal()
    """Emitted after the state was replaced."""
    path_changed = Signal()
    """Emitted after a document was created, opened or saved, and by `keep_mine`."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self._state = DocumentState(empty_topology(UNTITLED))
        self._first: Written | None = None
        self._saved: Written | None = None
        self._on_disk: bytes | None = None
        self._text: str | None = None

    @property
    def state(self) -> DocumentState:
        return self._state

    @property
    def value(self) -> Topology:
        """The topology of the text or, while the text is invalid, of the last valid text.

        After an invalid file was opened, the topology has no pools.
        """
        return self._state.value

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems of invalid text. While there are any, the topology can be edited only by editing the text."""
        return self._state.problems

    def replace(self, value: Topology) -> None:
        """Replaces the topology and updates the text. Raises FileProblem while the text is invalid."""
        if value is not self.value:
            self.restore(self.with_value(value))

    def with_value(self, value: Topology) -> DocumentState:
        """Returns the state after an edit whose result is `value`. Raises FileProblem while the text is invalid."""
        if self.problems:
            raise self._invalid()
        return replace(self._state, value=value)

    def with_shown_text(self, shown: str) -> DocumentState:
        """Returns the state after the user has replaced the text in an editor by `shown`."""
        text = typed_over(self.text, shown)
        value, problems = topology_in(text, self.path)
        if value is None:
            return replace(self._state, invalid_text=text, problems=problems)
        return DocumentState(value, Written(value, text))

    def restore(self, state: DocumentState) -> None:
        """Sets the state. Used to make, undo and redo edits."""
        self._state = state
        self._text = None
        self.changed.emit()

    @property
    def text(self) -> str:
        """The text of the document. Text that was typed, read or saved is kept, and only changed parts are rewritten.

        While the typed text is invalid, this is the invalid text.
        """
        if self.problems:
            return self._state.invalid_text
        if self._text is None:
            self._text = self._written()
        return self._text

    @property
    def shown_text(self) -> str:
        """The text for an editor, with line breaks normalized and without a byte order mark."""
        return shown_text(self.text)

    def _written(self) -> str:
        typed = self._state.typed
        # Text typed after the last save differs from the saved text, even if their topologies are equal.
        known_texts = (typed,) if typed is not None else (self._first, self._saved)
        for known in known_texts:
            if known is not None and known.value == self.value:
                return known.text
        for known in (typed, self._saved, self._first):
            if known is not None:
                bom = BOM if known.text.startswith(BOM) else ""
                text = patch_yaml(known.text.removeprefix(BOM), known.value, self.value)
                if text is not None:
                    return bom + text
        return dump(self.value)

    @property
    def is_modified(self) -> bool:
        if self.problems or self._state.typed is not None:
            new = dump(empty_topology(UNTITLED)).encode() if self.path is None else None
            return self.text.encode("utf-8") != (self._on_disk if self._on_disk is not None else new)
        if self._saved is None:
            return self.path is not None or self.value != empty_topology(UNTITLED)
        return self.value != self._saved.value

    def _invalid(self) -> FileProblem:
        """Returns the error for text that is not a valid topology."""
        first = self.problems[0]
        where = f"line {first.line} of the text" if first.line is not None else "the text"
        hint = "Correct the text, or undo what was typed."
        return FileProblem(f"{where} has an error: {first.message}", code="broken_file", hint=hint)

    @property
    def name(self) -> str:
        """The name of the file, for titles."""
        return self.path.name if self.path is not None else UNTITLED

    @property
    def folder(self) -> Path | None:
        """The folder of the file, to which `workdir` is relative; None without a file."""
        return self.path.parent if self.path is not None else None

    def as_file(self) -> TopologyFile:
        """Returns the document as if read from its file, with line numbers for problems. There may be no pools."""
        parsed = parse_document(self.text.removeprefix(BOM), str(self.path or UNTITLED))
        return TopologyFile(parsed, self.folder, self.value, parsed.problems)

    def start_new(self, value: Topology | None = None) -> None:
        """Creates a document that has no file yet."""
        self._become(None, DocumentState(value or empty_topology(UNTITLED)), None, None)

    def open(self, path: Path | str) -> None:
        """Opens a file. Raises FileProblem without changing the document if the file is not readable text.

        Text that is not a valid topology is opened as invalid text, with its `problems`.
        """
        path = Path(path).absolute()
        text = read_text(path)
        raw = path.read_bytes()
        exact = raw.decode("utf-8")
        value, problems = topology_in(text, path)
        if value is None:
            self._become(path, DocumentState(empty_topology(path.stem), None, exact, problems), None, raw)
        else:
            self._become(path, DocumentState(value), Written(value, exact), raw)

    def reload(self) -> None:
        """Reads the file again. Raises FileProblem if it is not readable text."""
        if self.path is not None:
            self.open(self.path)

    def _become(self, path: Path | None, state: DocumentState, written: Written | None, raw: bytes | None) -> None:
        self.path, self._state = path, state
        self._first, self._saved, self._on_disk = written, written, raw
        self._text = None
        self.path_changed.emit()
        self.changed.emit()

    def save(self, path: Path | str | None = None) -> None:
        """Writes the document atomically to `path`, by default to its file. `path` becomes the document's file.

        Raises FileProblem with the code `no_file`, `broken_file`, `read_only_file`, `changed_on_disk` (see `keep_mine`)
        or `unwritable_file`.
        """
        target = Path(path).absolute() if path is not None else self.path
        if target is None:
            raise FileProblem("this topology has no file yet.", code="no_file", hint="Save it under a name.")
        if self.problems:
            problem = self._invalid()
            raise FileProblem(f"{target} is not saved: {problem.message}", code=problem.code, hint=problem.hint)
        _refuse_read_only(target)
        if target == self.path and self.disk_state() == "changed":
            message = f"{target} was changed by another program since it was read."
            hint = "Save under another name, read it again, or write over it."
            raise FileProblem(message, code="changed_on_disk", hint=hint)
        text = self.text
        write_atomically(target, text)
        self.path = target
        self._saved = Written(self.value, text)
        self._on_disk = text.encode("utf-8")
        self._text = text
        self.path_changed.emit()

    def disk_state(self) -> DiskState:
        """Compares the file on disk with the content that the document last read or wrote."""
        if self.path is None or self._on_disk is None:
            return "same"
        try:
            return "same" if self.path.read_bytes() == self._on_disk else "changed"
        except FileNotFoundError:
            return "gone"
        except OSError:
            return "changed"

    def keep_mine(self) -> None:
        """Allows the next save to overwrite a file that another program has changed."""
        if self.path is None:
            return
        try:
            self._on_disk = self.path.read_bytes()
        except OSError:
            self._on_disk = None  # The file was removed. The next save creates it.
        self._saved = None
        self.path_changed.emit()

    @property
    def is_read_only(self) -> bool:
        return self.path is not None and _is_read_only(self.path)


def topology_in(text: str, path: Path | None = None) -> tuple[Topology | None, tuple[Problem, ...]]:
    """Parses a topology, which may have no pools. Returns the topology, or None and the problems of the text."""
    source = str(path or UNTITLED)
    try:
        file = topology_from_text(text.removeprefix(BOM), source, path.parent if path is not None else None)
    except FileProblem as problem:
        return None, (_as_problem(problem, source),)
    if file.topology is None and (draft := _draft(file.document)) is not None:
        return draft, ()
    return file.topology, file.problems


def _draft(document: Document) -> Topology | None:
    """Returns a topology that lacks only pools, or None for any other text.

    An editor may save such a topology before the first pool is drawn.
    """
    data = document.data
    if not isinstance(data, dict) or document.problems or data.get("pools") != []:
        return None
    stand_in = Pool(name="none yet", role=Role.WORKER, replicas=1).model_dump(mode="json", exclude_unset=True)
    written = {place: text for place, text in document.composed.written.items() if place[:1] != ("pools",)}
    topology, _ = validate(Topology, {**data, "pools": [stand_in]}, written, no_lines)
    return with_parts(topology, pools=()) if topology is not None else None


def _as_problem(problem: FileProblem, source: str) -> Problem:
    """Returns the error of an invalid file as a problem with a line."""
    text = problem.message.removeprefix(f"{source}:")
    number, colon, rest = text.partition(":")
    line = int(number) if colon and number.isdecimal() else None
    message = (rest if line is not None else text).strip()
    return Problem("error", problem.code, f"{message} {problem.hint}".strip(), line)


def _is_read_only(path: Path) -> bool:
    """Returns whether the file lacks write permission, even for root, who could write the file anyway."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH) or not os.access(path, os.W_OK)


def _refuse_read_only(path: Path) -> None:
    if _is_read_only(path):
        raise FileProblem(
            f"{path} is read-only.", code="read_only_file", hint="Save under another name, or make it writable."
        )
