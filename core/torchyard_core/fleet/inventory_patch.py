"""Edits of one entry in the text of the fleet file. The rest of the text, comments included, is kept where possible.

PyYAML drops comments, so the text itself is edited, at the positions of the parsed values. If the layout is unusual and
the result does not parse to the expected data, the changed entry is rewritten, and if that does not help, the whole
file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from torchyard_core.errors import FileProblem
from torchyard_core.yaml_io.document import parse_document
from torchyard_core.yaml_io.in_place_edits import InPlaceEdits, UnsupportedStyle
from torchyard_core.yaml_io.parser import ParsedYaml, parse_yaml
from torchyard_core.yaml_io.writer import dump_yaml

NEW_FILE = """\
# The hosts that Torchyard may use. Every key is described in docs/fleet-file.md.
version: 1
hosts:
  - name: this-computer
    local: true
"""

Entry = dict[str, Any]


def with_entry(text: str, entry: Entry, section: str = "hosts") -> str:
    """Returns the text with an entry appended to a section: a host to `hosts`, or a cluster to `clusters`."""
    document = parse_yaml(text, "fleet")
    data = dict(document.data)
    entries = list(data.get(section) or [])
    return _checked(_inserted(text, document, len(entries), entry, section), {**data, section: [*entries, entry]})


def without_entry(text: str, position: int, section: str = "hosts") -> str:
    """Returns the text without the entry at the given position of a section."""
    document = parse_yaml(text, "fleet")
    data = dict(document.data)
    entries = list(data[section])
    wanted = {**data, section: entries[:position] + entries[position + 1 :]}
    return _checked(_removed(text, document, len(entries), position, section), wanted)


def with_changed_entry(text: str, position: int, entry: Entry, section: str = "hosts") -> str:
    """Returns the text with `entry` in place of the entry at `position` of a section.

    Keys that are new in the entry are written after the existing keys.
    """
    text = _ended(text)
    data = dict(parse_yaml(text, "fleet").data)
    entries = list(data[section])
    old: Entry = dict(entries[position])
    edited = old
    written = text
    for step in _steps(old, entry):
        changed = _changed_in_place(written, (section, position), edited, step)
        if changed is None:
            written = _rewritten(text, position, entry, section)
            break
        written, edited = changed, step
    return _checked(written, {**data, section: [*entries[:position], entry, *entries[position + 1 :]]})


def _steps(old: Entry, new: Entry) -> Iterator[Entry]:
    """Yields the intermediate values of an entry between `old` and `new`, and finally `new`.

    Keys are changed one by one, because one edit in place cannot both remove and add keys. This includes the keys of
    nested entries such as `login`.
    """
    state = dict(old)
    for key in [*(key for key in old if key not in new), *(key for key in new if new[key] != old.get(key))]:
        before, after = state.get(key), new.get(key)
        if key not in new:
            del state[key]
        elif isinstance(before, dict) and isinstance(after, dict):
            for nested in _steps(before, after):
                state[key] = nested
                yield dict(state)
            continue
        else:
            state[key] = after
        yield dict(state)


def _changed_in_place(text: str, place: tuple[str, int], old: Entry, new: Entry) -> str | None:
    section, position = place
    edits = InPlaceEdits(parse_document(text, "fleet"))
    try:
        edits.record(place, old, new)
        changed = edits.text_with_edits(0, len(text))
        return changed if parse_yaml(changed, "fleet").data[section][position] == new else None
    except (UnsupportedStyle, FileProblem):
        return None


def _rewritten(text: str, position: int, entry: Entry, section: str) -> str:
    """Returns the text in which the old entry, including its comments, is replaced by `entry`."""
    document = parse_yaml(text, "fleet")
    whole, here = document.spans[(section,)], document.spans[(section, position)]
    if whole.flow:
        return text[: here.start] + _flow(entry) + text[here.end :]
    column = _column(text, whole.start)
    start = _dash(text, document, position, section)
    return text[:start] + _block(text, entry, "", column) + text[_content_end(text, document, position, section) :]


def _checked(text: str, wanted: Any) -> str:
    try:
        if parse_yaml(text, "fleet").data == wanted:
            return text
    except FileProblem:
        pass
    return dump_yaml(wanted)


def _inserted(text: str, document: ParsedYaml, count: int, entry: Entry, section: str) -> str:
    entries = document.spans.get((section,))
    if entries is None:
        return _ended(text) + _block(text, entry, f"{section}:", 2)
    if count == 0:
        # The empty value or `[]` after `hosts:` is removed, and the list begins on the next line.
        value_gone = text[: entries.start].rstrip(" ") + text[entries.end :]
        at = _line_end(value_gone, len(text[: entries.start].rstrip(" ")))
        return _ended(value_gone[:at]) + _block(text, entry, "", 2) + value_gone[at:]
    if entries.flow:
        inside = text[: entries.end - 1].rstrip()
        return f"{inside}, {_flow(entry)}{text[len(inside) :]}"
    at = _content_end(text, document, count - 1, section)
    return _ended(text[:at]) + _block(text, entry, "", _column(text, entries.start)) + text[at:]


def _removed(text: str, document: ParsedYaml, count: int, position: int, section: str) -> str:
    entries = document.spans[(section,)]
    if entries.flow:
        start, end = _flow_cut(document, count, position, section)
        return text[:start] + text[end:]
    start = _dash(text, document, position, section)
    left = text[:start] + text[_content_end(text, document, position, section) :]
    if count == 1:
        left = re.sub(rf"^({section}\s*:)", r"\1 []", left, count=1, flags=re.MULTILINE)
    return left


def _dash(text: str, document: ParsedYaml, position: int, section: str = "hosts") -> int:
    """Returns the offset of the first line of an entry in a block list."""
    start = document.spans[(section,)].start
    search_from = _content_end(text, document, position - 1, section) if position else _line_start(text, start)
    dash = re.compile(rf"^ {{{_column(text, start)}}}-(?=\s)", re.MULTILINE).search(text, search_from)
    # If there is no dash, the layout is unusual. The result 0 makes the edit remove too much. `_checked` detects this
    # and rewrites the file.
    return dash.start() if dash is not None else 0


def _flow_cut(document: ParsedYaml, count: int, position: int, section: str) -> tuple[int, int]:
    """Returns the range of text to remove with an entry of a flow list: the entry and one comma."""
    here = document.spans[(section, position)]
    if position + 1 < count:
        return here.start, document.spans[(section, position + 1)].start
    if position:
        return document.spans[(section, position - 1)].end, here.end
    return here.start, here.end


def _content_end(text: str, document: ParsedYaml, position: int, section: str = "hosts") -> int:
    """Returns the offset after the last line of an entry."""
    place = (section, position)
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
