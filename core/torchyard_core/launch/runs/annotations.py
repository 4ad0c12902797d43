"""Notes and tags of runs, kept on this desktop in one file next to the history."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from torchyard_core.atomic_write import write_atomically
from torchyard_core.errors import FileProblem, UsageError

MAX_NOTE = 10_000
MAX_TAG = 40
_SEPARATORS = re.compile(r"[,;\s]+")


@dataclass(frozen=True)
class Annotation:
    """The note and the tags that the user has given to a run."""

    note: str = ""
    tags: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.note or self.tags)

    @property
    def text(self) -> str:
        """The tags and the note as one string, in which a search looks for text."""
        return " ".join([*(f"#{tag}" for tag in self.tags), self.note])


def tags_from_text(text: str) -> tuple[str, ...]:
    """Parses tags such as `baseline, #lr-3`, and removes duplicates. Raises UsageError for a tag that is too long."""
    found = [part.lstrip("#") for part in _SEPARATORS.split(text)]
    return checked_tags(tag for tag in found if tag)


def checked_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Returns the tags without duplicates. Raises UsageError for a tag that is too long."""
    kept = tuple(dict.fromkeys(tags))
    for tag in kept:
        if len(tag) > MAX_TAG:
            message = f"the tag {tag[:MAX_TAG]}… has {len(tag)} letters."
            raise UsageError(message, code="long_tag", hint=f"A tag has at most {MAX_TAG}; write the rest as a note.")
    return kept


class Annotations:
    """The file of annotations. Before a change, the file is read again, so that changes by other windows are kept."""

    def __init__(self, file: Path):
        self._file = file

    def load(self) -> dict[str, Annotation]:
        """Returns the annotations by run ID. Annotations that cannot be read are omitted."""
        try:
            found = json.loads(self._file.read_text(encoding="utf-8"))
            items = found.items()
        except (OSError, ValueError, AttributeError, RecursionError):
            return {}
        return {run_id: one for run_id, about in items if (one := _annotation(about))}

    def set(self, run_id: str, annotation: Annotation) -> None:
        """Replaces the annotation of a run. An empty annotation is removed from the file.

        Raises UsageError for a note that is too long. Raises FileProblem if the file cannot be read or written, or is
        not a file of annotations.
        """
        if len(annotation.note) > MAX_NOTE:
            message = f"the note has {len(annotation.note):,} letters, and at most {MAX_NOTE:,} are kept."
            raise UsageError(message, code="long_note", hint="Shorten it, or keep it in a file.")
        all_ = self._load_for_change()
        all_.pop(run_id, None)
        if annotation:
            all_[run_id] = asdict(annotation)
        write_atomically(self._file, json.dumps(all_, ensure_ascii=False, indent=1) + "\n")

    def _load_for_change(self) -> dict[str, object]:
        """Returns the content of the file, with annotations of newer versions unchanged.

        Raises FileProblem if the file cannot be read or is not a file of annotations.
        """
        try:
            found = json.loads(self._file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            found = error
        if not isinstance(found, dict):
            raise FileProblem(
                f"{self._file} holds no notes of runs, so nothing is written into it.",
                code="damaged_file",
                hint="Move that file away, then save the note again.",
            )
        return found


def _annotation(about: object) -> Annotation | None:
    if not isinstance(about, dict):
        return None
    note, tags = about.get("note", ""), about.get("tags", ())
    if not isinstance(note, str) or not isinstance(tags, (list, tuple)):
        return None
    return Annotation(note, tuple(tag for tag in tags if isinstance(tag, str)))
