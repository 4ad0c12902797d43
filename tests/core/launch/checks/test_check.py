"""Tests that the table of checks matches the source code, the documentation and the command."""

from __future__ import annotations

import re

import pytest

from tests import REPOSITORY
from tests.core.test_docs import anchors
from torchyard_core.cli.views.run_progress import PlainView
from torchyard_core.launch.checks.check import CHECKLIST, Check

DOCS = REPOSITORY / "docs"
CHECKS = [spec.name for spec in CHECKLIST if spec.anchor.endswith(f"#check-{spec.name}")]
ANCHOR = re.compile(r'<a id="([\w-]+)"></a>')


def test_every_check_has_one_name_and_one_title() -> None:
    assert len({spec.name for spec in CHECKLIST}) == len({spec.title for spec in CHECKLIST}) == len(CHECKLIST)


def test_every_check_that_the_sources_make_is_in_the_table() -> None:
    files = [*(REPOSITORY / "core").rglob("*.py"), *(REPOSITORY / "gui").rglob("*.py")]
    made = {name for file in files for name in re.findall(r'\bCheck\(\s*"(\w+)"', file.read_text())}
    assert made >= {"booking", "clock", "resume"}
    assert made <= {spec.name for spec in CHECKLIST}


def test_the_docs_describe_every_check_in_the_order_of_the_table() -> None:
    text = (DOCS / "launch.md").read_text()
    assert re.findall(r'^\| <a id="check-\w+"></a>`(\w+)` \|', text, re.MULTILINE) == CHECKS


def test_every_anchor_leads_to_a_place_in_the_docs() -> None:
    for spec in CHECKLIST:
        page, _, anchor = spec.anchor.partition("#")
        assert anchor in anchors(DOCS / page) | set(ANCHOR.findall((DOCS / page).read_text())), spec


def test_the_command_shows_a_line_of_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    with PlainView() as view:
        for name in CHECKS:
            view.show(Check(name, "gpu-a", False, f"no {name}").to_event())
    assert capsys.readouterr().err.splitlines() == [f"✗ gpu-a: no {name}" for name in CHECKS]
