"""Patterns as .gitignore has them. Those of a `.gitignore` that mean nothing are passed over, as git does it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pathspec import GitIgnoreSpec


def ignoring(patterns: Iterable[str]) -> GitIgnoreSpec:
    """What these patterns leave out, together."""
    return GitIgnoreSpec.from_lines([pattern for pattern in patterns if has_meaning(pattern)])


def has_meaning(pattern: str) -> bool:
    """Whether it can match anything: `!` alone, `[z-a]` and a lone backslash at the end cannot."""
    try:
        GitIgnoreSpec.from_lines([pattern])
    except (ValueError, re.error):
        return False
    return True
