"""Selects the files of a working folder that are sent to hosts. By default, files such as credentials are excluded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pathspec import GitIgnoreSpec

from torchyard_core.gitignore import gitignore_spec

ALWAYS_LEFT_OUT = (".git/", "__pycache__/", ".venv/", "*.pyc")
"""Patterns of files that are excluded by default, because runs do not need them."""
CREDENTIALS = (
    *(".ssh/", ".aws/", ".netrc", ".env", "id_rsa", "id_dsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk"),
    *("*.pem", "*.key", "*.ppk"),
)
"""Patterns of credentials. They are excluded unless `exclude` or .gitignore has a pattern such as `!.env`."""


def included_files(folder: Path, exclude: tuple[str, ...]) -> Iterator[tuple[str, os.stat_result | None]]:
    """Yields the files, links and empty folders of `folder` that are sent to hosts, and the status of each file.

    Args:
        folder: The working folder.
        exclude: The topology's patterns, in the syntax of .gitignore.
    """
    return _walk(folder, "", [(0, gitignore_spec([*ALWAYS_LEFT_OUT, *CREDENTIALS, *exclude]))])


def _walk(
    folder: Path, below: str, ignores: list[tuple[int, GitIgnoreSpec]]
) -> Iterator[tuple[str, os.stat_result | None]]:
    """Yields files, links and empty folders below `folder`. Files have their status, and paths of folders end in `/`.

    `ignores` contains the patterns of .gitignore files, each with the length of the path of the file's folder.
    """
    here = folder / below
    own = here / ".gitignore"
    if own.is_file():
        ignores = [*ignores, (len(below), gitignore_spec(own.read_text(errors="replace").splitlines()))]
    with os.scandir(here) as scan:
        entries = sorted(scan, key=lambda entry: entry.name)
    for entry in entries:
        path = below + entry.name
        is_folder = entry.is_dir(follow_symlinks=False)
        # As in git, the innermost .gitignore with a matching pattern takes precedence.
        verdicts = (spec.check_file((path + "/" * is_folder)[start:]).include for start, spec in reversed(ignores))
        if next((verdict for verdict in verdicts if verdict is not None), False):
            continue
        if is_folder:
            inside = _walk(folder, path + "/", ignores)
            # Empty folders are sent, because a script may write to them.
            yield next(inside, (path + "/", None))
            yield from inside
        elif entry.is_symlink():
            yield path, None
        elif entry.is_file():
            yield path, entry.stat()
