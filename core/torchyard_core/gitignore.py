"""Patterns in the syntax of .gitignore. As git does, this module ignores invalid patterns."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pathspec import GitIgnoreSpec


def gitignore_spec(patterns: Iterable[str]) -> GitIgnoreSpec:
    """Returns a matcher for the files that a .gitignore file with these patterns would exclude."""
    return GitIgnoreSpec.from_lines([pattern for pattern in patterns if is_valid_pattern(pattern)])


def is_valid_pattern(pattern: str) -> bool:
    """Returns whether the pattern is valid. `!` alone, `[z-a]` and a single trailing backslash are not."""
    try:
        GitIgnoreSpec.from_lines([pattern])
    except (ValueError, re.error):
        return False
    return True
