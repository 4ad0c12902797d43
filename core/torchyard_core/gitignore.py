"""Patterns in the syntax of .gitignore. Invalid ones are ignored, as git does."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pathspec import GitIgnoreSpec


def gitignore_spec(patterns: Iterable[str]) -> GitIgnoreSpec:
    """A matcher for the files that the patterns exclude together."""
    return GitIgnoreSpec.from_lines([pattern for pattern in patterns if is_valid_pattern(pattern)])


def is_valid_pattern(pattern: str) -> bool:
    """Whether the pattern can match anything; `!` alone, `[z-a]` and a single backslash at the end cannot."""
    try:
        GitIgnoreSpec.from_lines([pattern])
    except (ValueError, re.error):
        return False
    return True
