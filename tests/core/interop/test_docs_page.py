"""Tests that the guide has a section for each format, with an example that can be imported."""

from __future__ import annotations

import re

import pytest

from tests import REPOSITORY
from torchyard_core.interop.format_registry import FORMATS, read_foreign

PAGE = (REPOSITORY / "docs" / "formats.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_has_a_section_and_what_is_read_an_example(name: str) -> None:
    found = re.search(rf"^## {name}\n(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    for form in FORMATS[name].forms:
        assert form in found[1]
    table_row = re.search(rf"^\| `{name}` \| (.*?) \|", PAGE, re.MULTILINE)
    assert table_row is not None
    assert (table_row[1] == "yes") is (FORMATS[name].read is not None)
    if FORMATS[name].read is not None:
        example = re.search(r"^```\w*\n(.*?)^```$", found[1], re.MULTILINE | re.DOTALL)
        assert example is not None
        assert read_foreign(name, example[1], "example").topology.pools
