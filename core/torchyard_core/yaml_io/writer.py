"""Writes plain data as readable YAML."""

from __future__ import annotations

from typing import Any

import yaml

from torchyard_core.yaml_io.parser import plain_value


class _Dumper(yaml.SafeDumper):
    """Dumper that indents lists below their key and writes no anchors."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Quotes text that `parser` would read as another type, in addition to text that PyYAML quotes."""
    style = None if isinstance(plain_value(text), str) else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


class _BlockDumper(_Dumper):
    """Dumper that writes multi-line text as a literal block (`|`)."""


def _represent_lines(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    if "\n" in text:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|")
    if text in ("y", "Y", "n", "N"):  # The parser of kubectl reads these words as booleans.
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="'")
    return _represent_text(dumper, text)


_BlockDumper.add_representer(str, _represent_lines)


def dump_flow(value: Any) -> str:
    """Returns a value as YAML in flow style on one line."""
    text: str = yaml.dump(
        [value], Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=True, width=10_000_000
    )
    return text.strip()[1:-1]


def dump_yaml(data: Any, *, lines: bool = False) -> str:
    """Returns plain data as YAML in block style, without anchors.

    `lines` writes multi-line text as a literal block (`|`).
    """
    text: str = yaml.dump(
        data,
        Dumper=_BlockDumper if lines else _Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=False,
        width=10_000,
    )
    return text
