"""The topology that is open in an editor, and its file. The window listens to the document's signals."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from psygnal import Signal

from torchyard_core.atomic_write import write_atomically
from torchyard_core.errors import FileProblem
from torchyard_core.problems import Problem, no_lines
from torchyard_core.topology.document.edits import empty_topology, with_parts
from torchyard_core.topology.document.yaml_patch import patch_yaml
from torchyard_core.topology.file import TopologyFile, dump, topology_from_text
from torchyard_core.topology.model import Pool, Role, Topology
from torchyard_core.yaml_io.model_validation import validate
from torchyard_core.yaml_io.yaml_file import Document, parse_document, read_text

UNTITLED = "untitled"
BOM = "\ufeff"

DiskState = Literal["same", "changed", "gone"]


@dataclass(frozen=True)
class Written:
    """A topology, and the text of its file."""

    value: Topology
    text: str


class TopologyDocument:
    """An open topology. `value` is immutable, and `replace` sets another value."""

    changed = Signal()
    """Emitted when `value` has been replaced."""
    path_changed = Signal()
    """Emitted when a file was opened, saved, or saved under another name."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self.broken: tuple[Problem, ...] = ()
        """Problems of an invalid file. The value is then empty, and edits are refused."""
        self._value = empty_topology(UNTITLED)
        self._first: Written | None = None
        self._saved: Written | None = None
        self._on_disk: bytes | None = None
        self._text: str | None = None
        self._broken_text = ""

    # Value and text

    @property
    def value(self) -> Topology:
        return self._value

    def replace(self, value: Topology) -> None:
        if self.broken:
            raise FileProblem("this file holds no topology, so there is nothing to change.", code="broken_file")
        if value is self._value:
            return
        self._value = value
        self._text = None
        self.changed.emit()

    @property
    def text(self) -> str:
        """The text of the value: unchanged if the value was read or saved, else with the changed parts rewritten."""
        if self.broken:
            return self._broken_text
        if self._text is None:
            self._text = self._written()
        return self._text

    def _written(self) -> str:
        for known in (self._first, self._saved):
            if known is not None and known.value == self._value:
                return known.text
        for known in (self._saved, self._first):
            if known is not None:
                bom = BOM if known.text.startswith(BOM) else ""
                text = patch_yaml(known.text.removeprefix(BOM), known.value, self._value)
                if text is not None:
                    return bom + text
        return dump(self._value)

    @property
    def is_modified(self) -> bool:
        if self.broken:
            return False
        if self._saved is None:
            return self.path is not None or self._value != empty_topology(UNTITLED)
        return self._value != self._saved.value

    @property
    def name(self) -> str:
        """The name of the file for titles."""
        return self.path.name if self.path is not None else UNTITLED

    @property
    def folder(self) -> Path | None:
        """The folder of the file, to which `workdir` is relative."""
        return self.path.parent if self.path is not None else None

    def as_file(self) -> TopologyFile:
        """Returns the document as if it were read from its file, with lines for problems. It may have no pools."""
        parsed = parse_document(self.text.removeprefix(BOM), str(self.path or UNTITLED))
        return TopologyFile(parsed, self.folder, self._value, parsed.problems)

    # Access to the file

    def start_new(self, value: Topology | None = None) -> None:
        """Starts a document without a file."""
        self._become(None, value or empty_topology(UNTITLED), None, None)

    def open(self, path: Path | str) -> None:
        """Opens a file. Raises FileProblem without changing the document if the file is not readable text.

        Text that is not a topology is opened with its problems in `broken`.
        """
        path = Path(path).absolute()
        text = read_text(path)
        raw = path.read_bytes()
        exact = raw.decode("utf-8")
        value, problems = topology_in(text, path)
        if value is None:
            self._become(path, empty_topology(path.stem), None, raw, broken=problems, broken_text=text)
        else:
            self._become(path, value, Written(value, exact), raw)

    def reload(self) -> None:
        """Reads the file again. Raises FileProblem."""
        if self.path is not None:
            self.open(self.path)

    def _become(
        self,
        path: Path | None,
        value: Topology,
        written: Written | None,
        raw: bytes | None,
        *,
        broken: tuple[Problem, ...] = (),
        broken_text: str = "",
    ) -> None:
        self.path, self.broken, self._broken_text = path, broken, broken_text
        self._value, self._first, self._saved, self._on_disk = value, written, written, raw
        self._text = None
        self.path_changed.emit()
        self.changed.emit()

    def save(self, path: Path | str | None = None) -> None:
        """Writes the file atomically. With `path`, saves the document under another name.

        Raises FileProblem with the code `read_only_file`, `changed_on_disk` (see `keep_mine`) or `unwritable_file`.
        """
        target = Path(path).absolute() if path is not None else self.path
        if target is None:
            raise FileProblem("this topology has no file yet.", code="no_file", hint="Save it under a name.")
        if self.broken:
            raise FileProblem(f"{target} holds no topology, and is left as it is.", code="broken_file")
        _refuse_read_only(target)
        if target == self.path and self.disk_state() == "changed":
            message = f"{target} was changed by another program since it was read."
            hint = "Save under another name, read it again, or write over it."
            raise FileProblem(message, code="changed_on_disk", hint=hint)
        text = self.text
        write_atomically(target, text)
        self.path = target
        self._saved = Written(self._value, text)
        self._on_disk = text.encode("utf-8")
        self._text = text
        self.path_changed.emit()

    def disk_state(self) -> DiskState:
        """Compares the file with its content when it was last read or written."""
        if self.path is None or self._on_disk is None:
            return "same"
        try:
            return "same" if self.path.read_bytes() == self._on_disk else "changed"
        except FileNotFoundError:
            return "gone"
        except OSError:
            return "changed"

    def keep_mine(self) -> None:
        """Allows the next save to overwrite a file that was changed by another program."""
        if self.path is None:
            return
        try:
            self._on_disk = self.path.read_bytes()
        except OSError:
            self._on_disk = None  # The next save creates the removed file.
        self._saved = None
        self.path_changed.emit()

    @property
    def is_read_only(self) -> bool:
        return self.path is not None and _is_read_only(self.path)


def topology_in(text: str, path: Path | None = None) -> tuple[Topology | None, tuple[Problem, ...]]:
    """Returns the topology in a text, which may have no pools, or None and the problems of the text."""
    source = str(path or UNTITLED)
    try:
        file = topology_from_text(text.removeprefix(BOM), source, path.parent if path is not None else None)
    except FileProblem as problem:
        return None, (_as_problem(problem, source),)
    if file.topology is None and (draft := _draft(file.document)) is not None:
        return draft, ()
    return file.topology, file.problems


def _draft(document: Document) -> Topology | None:
    """Returns a topology that lacks only pools, as an editor may save before the first pool is drawn."""
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
    """Returns whether the file has no write permission. This applies to root, too."""
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
