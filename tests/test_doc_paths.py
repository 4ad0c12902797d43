"""Tests that all test files that the documentation names exist."""

from __future__ import annotations

import re

from tests import REPOSITORY


def test_every_test_file_that_a_page_names_exists() -> None:
    pages = [*(REPOSITORY / "docs").rglob("*.md"), REPOSITORY / "CONTRIBUTING.md", REPOSITORY / "tests" / "README.md"]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    text = text.replace("test_NAME.py", "")  # test_NAME.py is a placeholder and not a file.
    paths = re.findall(r"`(tests/[\w/]+\.\w+)`", text)
    assert not [path for path in paths if not (REPOSITORY / path).exists()]
    names = {path.name for path in (REPOSITORY / "tests").rglob("test_*.py")}
    assert set(re.findall(r"\btest_\w+\.py\b", text)) <= names
