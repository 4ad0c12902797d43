"""Messages about errors of YAML syntax."""

from __future__ import annotations

import yaml

from torchyard_core.errors import FileProblem
from torchyard_core.next_steps import Advice


def problem_at(source: str, line: int | None, message: str, hint: Advice = "") -> FileProblem:
    """Returns a FileProblem with source and line in its message."""
    where = f"{source}:{line}" if line else source
    return FileProblem(f"{where}: {message}", code="unreadable_file", hint=hint)


def explain_yaml_error(error: yaml.YAMLError, text: str) -> tuple[int | None, str, str]:
    """Returns the line (None if unknown), the message and the hint for an error of the YAML parser."""
    if isinstance(error, yaml.reader.ReaderError):
        return _explain_character(error, text)
    problem = str(getattr(error, "problem", None) or error)
    context = str(getattr(error, "context", None) or "")
    at = getattr(error, "problem_mark", None)
    since = getattr(error, "context_mark", None)
    line = at.line + 1 if at is not None else None
    began = since.line + 1 if since is not None else line
    lines = text.splitlines()
    here = lines[at.line][at.column : at.column + 1] if at is not None and at.line < len(lines) else ""

    if "maximum nesting depth" in problem:
        return line, "the document is nested too deep.", ""
    if "\t" in problem or "tab character" in problem or (here == "\t" and "cannot start" in problem):
        return line, "a tab is used where YAML requires spaces.", "Indent with spaces only."
    if "cannot start any token" in problem:
        return line, f"text cannot begin with `{here}`.", "Put the text in quotes."
    if "mapping values are not allowed" in problem:
        hint = "Indent it like the adjacent lines, or put the text in quotes."
        return line, "a `:` is in a place where no key is allowed.", hint
    if "quoted scalar" in context and ("unexpected end" in problem or "document indicator" in problem):
        return began, "the quote that begins here is never closed.", "Add the closing quote."
    if "unknown escape" in problem:
        hint = "Use single quotes, or double it: `\\\\`."
        return line, "a backslash in double quotes begins something unknown.", hint
    if "flow" in context:
        began, bracket = _opener(lines, at)
        closing = "]" if bracket == "[" else "}"
        return began, f"the `{bracket}` that begins here is not closed by `{closing}`, or lacks a comma.", "Close it."
    if "block mapping" in context or "block collection" in context:
        return line, "the indentation of this line matches no line above it.", "Indent it like the adjacent lines."
    if "simple key" in context or "could not find expected ':'" in problem:
        return began, "a key has no `:` after it.", "Write `key: value`."
    if "undefined alias" in problem:
        return line, problem.replace("found ", "there is an ") + ".", "Define it before it is used."
    return line, f"this is not valid YAML ({problem}).", ""


def _opener(lines: list[str], mark: yaml.Mark | None) -> tuple[int | None, str]:
    """Returns the line (None if unknown) and the text of the innermost bracket that is open at a mark.

    If no bracket is found, the result is the line of the mark and `[`.
    """
    still_open: list[tuple[int, str]] = []
    for number, line in enumerate(lines[: mark.line + 1] if mark is not None else lines):
        text = line[: mark.column] if mark is not None and number == mark.line else line
        for character in text.split(" #")[0]:
            if character in "[{":
                still_open.append((number + 1, character))
            elif character in "]}" and still_open:
                still_open.pop()
    return still_open[-1] if still_open else (mark.line + 1 if mark is not None else None, "[")


def _explain_character(error: yaml.reader.ReaderError, text: str) -> tuple[int | None, str, str]:
    character = error.character
    code = ord(character[:1]) if isinstance(character, (str, bytes)) else int(character)
    position = text.find(chr(code))
    line = text.count("\n", 0, position) + 1 if position >= 0 else None
    return line, f"the file holds a control character (U+{code:04X}).", "Remove it."
