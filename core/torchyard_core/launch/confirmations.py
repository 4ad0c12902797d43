"""What a launch asks before it goes on, through the terminal, the window, or `-y`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torchyard_core.errors import RunFailed
from torchyard_core.formatting import size
from torchyard_core.text_sanitizer import one_line

LARGE_FILE = 100_000_000
LARGE_FOLDER = 2_000_000_000
"""Bytes, beyond which sending asks first."""
NAMED = 5


@dataclass(frozen=True)
class Question:
    """Something that the user is to say yes to. `hint` is what to do where the answer is no."""

    code: str
    message: str
    question: str
    hint: str
    accept: str = ""
    """What the window's button for yes says: `book`, `launch`, `secrets`, or empty for sending files."""


Ask = Callable[[Question], bool | None]
"""The user's answer; None where there is nobody to ask."""


def no_answer(question: Question) -> None:
    """For a launch without a user to ask."""


def settle(question: Question | None, ask: Ask) -> None:
    """Returns where there is no question, or the answer is yes. Raises RunFailed with the question's own words."""
    if question is None or ask(question):
        return
    raise RunFailed(question.message, code=question.code, hint=question.hint)


def about_size(folder: Path, new: Mapping[str, int], hosts: int) -> Question | None:
    """Whether so much shall be sent. `new`: bytes by path of the files that were never sent from here as they are."""
    large = {path: size for path, size in new.items() if size > LARGE_FILE}
    total = sum(new.values())
    if not large and total <= LARGE_FOLDER:
        return None
    biggest = sorted(new, key=lambda path: (-new[path], path))[:NAMED]
    listed = ", ".join(f"{path} ({size(new[path])})" for path in biggest if path in large or not large)
    more = f" and {len(large) - NAMED} more" if len(large) > NAMED else ""
    if not large:
        what = f"holds {size(total)} in {len(new):,} files; the biggest are {listed}"
    elif len(large) == 1:
        what = f"holds a file over {size(LARGE_FILE)}: {listed}"
    else:
        what = f"holds {len(large)} files over {size(LARGE_FILE)}: {listed}{more}"
    if large and total > LARGE_FOLDER:
        what += f"; {size(total)} in all"
    where = "1 host" if hosts == 1 else f"{hosts} hosts"
    return Question(
        "large_files",
        f"the working folder {folder} {what}.",
        f"Send it to {where}?",
        "Name what a run does not need in `program.exclude` or .gitignore, or add -y to send it all.",
    )


def about_outside(folder: Path, own: Path) -> Question | None:
    """Whether a working folder that does not lie in the topology file's own folder shall be sent."""
    if folder.is_relative_to(own.resolve()):
        return None
    return Question(
        "workdir_outside",
        f"the file's `program.workdir` is {one_line(str(folder))}, outside the file's own folder {one_line(str(own))}.",
        "Send that folder to the hosts?",
        "Look what the file wants there; add -y to send it.",
    )
