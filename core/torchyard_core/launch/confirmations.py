"""Yes-or-no questions before a launch. They are answered on the terminal, in the window, or by `-y`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torchyard_core.errors import RunFailed
from torchyard_core.formatting import size
from torchyard_core.next_steps import Advice, AnswerYes, SetField, joined
from torchyard_core.text_sanitizer import one_line

LARGE_FILE = 100_000_000
LARGE_FOLDER = 2_000_000_000
"""Sizes in bytes of one file and of all files together, above which the user must confirm an upload."""
NAMED = 5


@dataclass(frozen=True)
class Confirmation:
    """A yes-or-no question to the user. `advice` is shown if the answer is no."""

    code: str
    message: str
    question: str
    advice: Advice
    accept: str = ""
    """Selects the label of the window's button for yes: `book`, `launch` or `secrets`. Empty for sending files."""


Ask = Callable[[Confirmation], bool | None]
"""A function that returns the user's answer, or None if no user can be asked."""


def no_answer(question: Confirmation) -> None:
    """Returns None, which means no answer. This is the `Ask` of launches without a user who could answer."""


def settle(question: Confirmation | None, ask: Ask) -> None:
    """Asks the question, if there is one. Raises RunFailed with the question's message unless the answer is yes."""
    if question is None or ask(question):
        return
    raise RunFailed(question.message, code=question.code, hint=joined(question.advice, AnswerYes()))


def confirm_size(folder: Path, new: Mapping[str, int], hosts: int) -> Confirmation | None:
    """Returns the question about a large upload, or None if the upload is not large.

    Args:
        folder: The working folder.
        new: The sizes in bytes of new and changed files by path.
        hosts: The number of hosts that receive the files.
    """
    large = {path: size for path, size in new.items() if size > LARGE_FILE}
    total = sum(new.values())
    if not large and total <= LARGE_FOLDER:
        return None
    biggest = sorted(new, key=lambda path: (-new[path], path))[:NAMED]
    listed = ", ".join(f"{path} ({size(new[path])})" for path in biggest if path in large or not large)
    more = f" and {len(large) - NAMED} more" if len(large) > NAMED else ""
    if not large:
        summary = f"holds {size(total)} in {len(new):,} files; the biggest are {listed}"
    elif len(large) == 1:
        summary = f"holds a file over {size(LARGE_FILE)}: {listed}"
    else:
        summary = f"holds {len(large)} files over {size(LARGE_FILE)}: {listed}{more}"
    if large and total > LARGE_FOLDER:
        summary += f"; {size(total)} in all"
    count = "1 host" if hosts == 1 else f"{hosts} hosts"
    return Confirmation(
        "large_files",
        f"the working folder {folder} {summary}.",
        f"Send it to {count}?",
        ("Exclude what a run does not need, in the topology or in .gitignore.", SetField("program.exclude")),
    )


def confirm_outside_folder(folder: Path, own: Path) -> Confirmation | None:
    """Returns the question about uploading a working folder outside the topology file's folder.

    Returns None if `folder` is inside `own`, the topology file's folder.
    """
    if folder.is_relative_to(own.resolve()):
        return None
    return Confirmation(
        "workdir_outside",
        f"the file's `program.workdir` is {one_line(str(folder))}, outside the file's own folder {one_line(str(own))}.",
        "Send that folder to the hosts?",
        ("Check why the file needs that folder.", SetField("program.workdir")),
    )
