"""Every row of the checklist has a title."""

from __future__ import annotations

import re

from tests.lab.boot import REPOSITORY
from torchyard_gui.launch.checklist_row import title_of


def test_each_check_that_the_docs_name_has_a_title_of_its_own() -> None:
    text = (REPOSITORY / "docs" / "launch.md").read_text()
    table = text[text.index("## The checklist") : text.index("Everything but")]
    rows = re.findall(r"^\| (`.+?) \|", table, re.MULTILINE)
    names = [name for row in rows for name in re.findall(r"`(\w+)`", row) if name != "name"]
    assert len(names) == 17
    plain = {"python", "torch"}
    for name in names:
        assert title_of(name) != name or name in plain, name


def test_each_check_of_a_launch_is_in_the_docs() -> None:
    text = (REPOSITORY / "docs" / "launch.md").read_text()
    folder = REPOSITORY / "core" / "torchyard_core" / "launch"
    named = {name for file in folder.glob("*.py") for name in re.findall(r'\bCheck\(\s*"(\w+)"', file.read_text())}
    assert named - {"settings"} <= set(re.findall(r"`(\w+)`", text))
