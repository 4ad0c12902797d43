"""Edits of one entry in the text of the fleet file. The rest of the text, comments included, is kept where possible.

PyYAML drops comments, so the text is cut at the positions of the parsed values. If the result does not parse to the
expected data, because of an unusual layout, the changed entry is rewritten, and if necessary the whole file.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from torchyard_core.errors import FileProblem
from torchyard_core.topology.document.yaml_value_edits import UnsupportedStyle, ValueEdits
from torchyard_core.yaml_io.parser import ParsedYaml, parse_yaml
from torchyard_core.yaml_io.writer import dump_yaml
from torchyard_core.yaml_io.yaml_file import parse_document

NEW_FILE = """\
# The hosts that Torchyard may use. Every key is described in docs/fleet-file.md.
version: 1
hosts:
  - name: this-computer
    local: true
"""

Entry = dict[str, Any]


def with_entry(text: str, entry: Entry) -> str:
    """Returns the text with a host appended."""
    document = parse_yaml(text, "fleet")
    data = dict(document.data)
    entries = list(data.get("hosts") or [])
    return _checked(_inserted(text, document, len(entries), entry), {**data, "hosts": [*entries, entry]})


def without_entry(text: str, position: int) -> str:
    """Returns the text without the host at the given position."""
    document = parse_yaml(text, "fleet")
    data = dict(document.data)
    entries = list(data["hosts"])
    wanted = {**data, "hosts": entries[:position] + entries[position + 1 :]}
    return _checked(_removed(text, document, len(entries), position), wanted)


def with_changed_entry(text: str, position: int, entry: Entry) -> str:
    """Returns the text with a new value for the host at that position. New keys follow the existing keys."""
    text = _ended(text)
    data = dict(parse_yaml(text, "fleet").data)
    entries = list(data["hosts"])
    old: Entry = dict(entries[position])
    edited = old
    written = text
    # Keys are changed one by one, because one edit in place cannot both remove and add keys.
    for key in [*(key for key in old if key not in entry), *(key for key in entry if entry[key] != old.get(key))]:
        step = {**edited, key: entry[key]} if key in entry else {k: v for k, v in edited.items() if k != key}
        changed = _changed_in_place(written, position, edited, step)
        if changed is None:
            written = _rewritten(text, position, entry)
            break
        written, edited = changed, step
    return _checked(written, {**data, "hosts": [*entries[:position], entry, *entries[position + 1 :]]})


def _changed_in_place(text: str, position: int, old: Entry, new: Entry) -> str | None:
    edits = ValueEdits(parse_document(text, "fleet"))
    try:
        edits.record(("hosts", position), old, new)
        changed = edits.text_with_edits(0, len(text))
        return changed if parse_yaml(changed, "fleet").data["hosts"][position] == new else None
    except (UnsupportedStyle, FileProblem):
        return None


def _rewritten(text: str, position: int, entry: Entry) -> str:
    """Returns the text with the old entry, including its comments, replaced by a new entry."""
    document = parse_yaml(text, "fleet")
    hosts, here = document.spans[("hosts",)], document.spans[("hosts", position)]
    if hosts.flow:
        return text[: here.start] + _flow(entry) + text[here.end :]
    column = _column(text, hosts.start)
    start = _dash(text, document, position)
    return text[:start] + _block(text, entry, "", column) + text[_content_end(text, document, position) :]


def _checked(text: str, wanted: Any) -> str:
    try:
        if parse_yaml(text, "fleet").data == wanted:
            return text
    except FileProblem:
        pass
    return dump_yaml(wanted)


def _inserted(text: str, document: ParsedYaml, count: int, entry: Entry) -> str:
    hosts = document.spans.get(("hosts",))
    if hosts is None:
        return _ended(text) + _block(text, entry, "hosts:", 2)
    if count == 0:
        # The empty value or `[]` after `hosts:` is removed, and the list begins on the next line.
        value_gone = text[: hosts.start].rstrip(" ") + text[hosts.end :]
        at = _line_end(value_gone, len(text[: hosts.start].rstrip(" ")))
        return _ended(value_gone[:at]) + _block(text, entry, "", 2) + value_gone[at:]
    if hosts.flow:
        inside = text[: hosts.end - 1].rstrip()
        return f"{inside}, {_flow(entry)}{text[len(inside) :]}"
    at = _content_end(text, document, count - 1)
    return _ended(text[:at]) + _block(text, entry, "", _column(text, hosts.start)) + text[at:]


def _removed(text: str, document: ParsedYaml, count: int, position: int) -> str:
    hosts = document.spans[("hosts",)]
    if hosts.flow:
        start, end = _flow_cut(document, count, position)
        return text[:start] + text[end:]
    start = _dash(text, document, position)
    left = text[:start] + text[_content_end(text, document, position) :]
    if count == 1:
        left = re.sub(r"^(hosts\s*:)", r"\1 []", left, count=1, flags=re.MULTILINE)
    return left


def _dash(text: str, document: ParsedYaml, position: int) -> int:
    """Returns the position of the first line of an entry in a block list."""
    start = document.spans[("hosts",)].start
    search_from = _content_end(text, document, position - 1) if position else _line_start(text, start)
    dash = re.compile(rf"^ {{{_column(text, start)}}}-(?=\s)", re.MULTILINE).search(text, search_from)
    # The layout is unusual. With the result 0, the edit removes too much, and `_checked` then rewrites the file.
    return dash.start() if dash is not None else 0


def _flow_cut(document: ParsedYaml, count: int, position: int) -> tuple[int, int]:
    """Returns the range to cut for an entry of a flow list: the entry and one comma."""
    here = document.spans[("hosts", position)]
    if position + 1 < count:
        return here.start, document.spans[("hosts", position + 1)].start
    if position:
        return document.spans[("hosts", position - 1)].end, here.end
    return here.start, here.end


def _content_end(text: str, document: ParsedYaml, position: int) -> int:
    """Returns the position after the last line of an entry."""
    place = ("hosts", position)
    end = max(span.end for inner, span in document.spans.items() if inner[:2] == place and span.exact)
    return end if text[end - 1 : end] == "\n" else _line_end(text, end)


def _block(text: str, entry: Entry, head: str, column: int) -> str:
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = [" " * column + line for line in dump_yaml([entry]).splitlines()]
    return newline.join([head, *lines] if head else lines) + newline


def _flow(entry: Entry) -> str:
    return str(
        yaml.safe_dump(entry, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10_000)
    ).strip()


def _ended(text: str) -> str:
    """Returns the text with a newline at its end, unless it is empty."""
    return text if not text or text.endswith("\n") else text + ("\r\n" if "\r\n" in text else "\n")


def _line_start(text: str, at: int) -> int:
    return text.rfind("\n", 0, at) + 1


def _line_end(text: str, at: int) -> int:
    newline = text.find("\n", at)
    return len(text) if newline < 0 else newline + 1


def _column(text: str, at: int) -> int:
    return at - _line_start(text, at)
