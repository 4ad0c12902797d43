"""Tests that `requirements.lock` contains every dependency with its version and hashes, and no other package."""

from __future__ import annotations

import re
import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import REPOSITORY

_ENTRY = re.compile(
    r"^([\w.-]+)(?:\[[\w,]+\])?==(\S+)(?: ; .*)? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n?)+)", re.M
)


def locked() -> dict[str, str]:
    """Returns the locked version of each package."""
    text = (REPOSITORY / "requirements.lock").read_text()
    entries = _ENTRY.findall(text)
    assert len(entries) == len(re.findall(r"(?m)^[a-z]", text)), "an entry without hashes"
    return {canonicalize_name(name): version for name, version, _ in entries}


def test_every_dependency_of_the_desktop_is_locked_to_a_version_that_fits() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    versions = locked()
    wanted = [Requirement(text) for text in [*project["dependencies"], *project["optional-dependencies"]["postgres"]]]
    unfit = [
        str(one) for one in wanted if not one.specifier.contains(versions.get(canonicalize_name(one.name), "0.dev0"))
    ]
    assert unfit == [], "run `make lock`"
