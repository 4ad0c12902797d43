"""Parser of lists and dictionaries in Python text, with line numbers.

The text is not executed. Computed values raise FileProblem, or are kept as source text if the caller allows it.
"""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

from torchyard_core.errors import FileProblem
from torchyard_core.interop.document_reader import refuse
from torchyard_core.problems import Place
from torchyard_core.yaml_io.document import Document
from torchyard_core.yaml_io.parser import MAX_DEPTH, ParsedYaml, parse_yaml

MAX_LETTERS = 200_000
"""Maximum number of characters of a script."""
MAX_VALUES = 50_000
"""Maximum number of values in a document after names have been replaced by their values.

Without this limit, text in which each name refers twice to the previous one would grow exponentially.
"""
_STATEMENT = re.compile(r"^[ \t]*[\w.\[\]\"']+[ \t]*(?::[^=\n]*)?=(?!=)|[\w.]+\(", re.MULTILINE)


def is_script(text: str) -> bool:
    """Returns whether `text` contains Python statements and is not a YAML or JSON list or mapping."""
    if not _STATEMENT.search(text):
        return False
    try:
        return not isinstance(parse_yaml(text, "script").data, dict | list)
    except FileProblem:
        return True


def script_in(text: str, source: str) -> PythonText | None:
    """Returns the text as Python, or None if it is not a script or does not parse."""
    try:
        return PythonText(text, source) if is_script(text) else None
    except FileProblem:
        return None


class PythonText:
    """Text that parses as Python: a module, or an indented part of a module."""

    def __init__(self, text: str, source: str) -> None:
        """Parses the text. Raises FileProblem for invalid syntax."""
        self._text = text
        self._source = source
        if len(text) > MAX_LETTERS:
            refuse(source, None, f"this Python is longer than {MAX_LETTERS} letters.", "Paste just the statement.")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Python would print warnings about invalid escapes in the user's text.
                tree = ast.parse(textwrap.dedent(text))
        except SyntaxError as error:
            refuse(source, error.lineno, f"this Python cannot be read: {error.msg}.", "Paste whole statements.")
        except (ValueError, RecursionError, MemoryError):
            refuse(source, None, "this Python cannot be read: it holds a NUL, or is nested too deep.")
        self._nodes = list(ast.walk(tree))
        self._given = [one for node in self._nodes for one in _given(node)]
        times = Counter(name for name, _, is_variable in self._given if is_variable)
        # Only a variable that is assigned once has the same value everywhere.
        self._constants = {name: node for name, node, is_variable in self._given if is_variable and times[name] == 1}

    def find(self, names: Collection[str]) -> ast.expr | None:
        """Returns the first value that is given one of the names, or None if there is none.

        A name may be that of a variable, an argument or a key, as in `os.environ[…]`. A list or dictionary is preferred
        to any other value. `json.dumps(…)` is replaced by its argument.
        """
        found = [self.settled(_dumped(self.settled(node))) for name, node, _ in self._given if name in names]
        literal = (node for node in found if isinstance(node, ast.List | ast.Tuple | ast.Dict))
        return next(literal, found[0] if found else None)

    def argument(self, function: str) -> ast.expr | None:
        """Returns the first dictionary that is passed as the first argument of a call to `function`.

        Returns None if there is no such call.
        """
        calls = (one for one in self._nodes if isinstance(one, ast.Call) and one.args and _name(one.func) == function)
        found = (self.settled(one.args[0]) for one in calls)
        return next((one for one in found if isinstance(one, ast.Dict)), None)

    def settled(self, node: ast.expr) -> ast.expr:
        """Returns the value of a name that the text assigns exactly once. Returns any other node unchanged."""
        for _ in range(MAX_DEPTH):
            if not isinstance(node, ast.Name) or node.id not in self._constants:
                break
            node = self._constants[node.id]
        if isinstance(node, ast.Tuple) and len(node.elts) == 1 and isinstance(node.elts[0], ast.List):
            return node.elts[0]  # An argument that was copied with its trailing comma parses as a tuple.
        return node

    def document(self, node: ast.expr, as_written: Collection[str] = ()) -> Document:
        """Converts an expression to plain data.

        Computed values under the keys `as_written` are kept as source text; other computed values raise FileProblem.
        """
        values = _Values(self, self._source, as_written)
        values.composed.data = values.of(node, ())
        return Document(self._source, self._text, values.composed)


def _given(node: ast.AST) -> Iterator[tuple[str, ast.expr, bool]]:
    """Yields each name that a node gives to a value by an assignment, an argument or a dictionary key.

    Yields tuples of the name, the value, and whether the name is that of a variable.
    """
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Name):
                yield target.id, node.value, True
            elif isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
                yield str(target.slice.value), node.value, False
    elif isinstance(node, ast.AnnAssign):
        if isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node.value, True
    elif isinstance(node, ast.keyword):
        if node.arg is not None:
            yield node.arg, node.value, False
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value, value, False


def _dumped(node: ast.expr) -> ast.expr:
    """Returns the argument of a `json.dumps` call. Returns any other expression unchanged."""
    return node.args[0] if isinstance(node, ast.Call) and _name(node.func) == "dumps" and node.args else node


def _name(node: ast.expr) -> str:
    """Returns the name of a function, without its module."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


class _Values:
    """Converts expressions to plain data."""

    def __init__(self, text: PythonText, source: str, as_written: Collection[str]) -> None:
        self.composed = ParsedYaml()
        self._text = text
        self._source = source
        self._as_written = as_written
        self._count = 0

    def of(self, node: ast.expr, place: Place) -> Any:
        """Converts the expression at a location to plain data. Raises FileProblem for a computed value."""
        self.composed.key_lines.setdefault(place, node.lineno)
        self._count += 1
        if self._count > MAX_VALUES or len(place) > MAX_DEPTH:
            refuse(self._source, node.lineno, "this Python expands to too many values, or is nested too deep.")
        node = self._text.settled(node)
        match node:
            case ast.Constant(value=str() | int() | float() | None as value):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
                return -value
        if isinstance(node, ast.List | ast.Tuple):
            return [self.of(one, (*place, number)) for number, one in enumerate(node.elts)]
        named = self._entries(node)
        if named is None:
            return self._worked_out(node, place)
        lines: dict[str, int] = {}
        for key, line, _ in named:
            if key in lines:
                message = f"`{key}` is given twice, first in line {lines[key]}."
                refuse(self._source, line, message, "Keep one of the two.")
            lines[key] = self.composed.key_lines[(*place, key)] = line
        return {key: self.of(value, (*place, key)) for key, _, value in named}

    def _entries(self, node: ast.expr) -> list[tuple[str, int, ast.expr]] | None:
        """Returns the keys, lines and values of a dictionary, or of a call that has only keyword arguments.

        Returns None for any other expression.
        """
        if isinstance(node, ast.Dict):
            keys = [key for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str | int)]
            if len(keys) == len(node.keys):
                return [(str(key.value), key.lineno, one) for key, one in zip(keys, node.values, strict=True)]
        if isinstance(node, ast.Call) and node.keywords and not node.args and all(one.arg for one in node.keywords):
            return [(str(one.arg), one.lineno, one.value) for one in node.keywords]
        return None

    def _worked_out(self, node: ast.expr, place: Place) -> str:
        """Returns the source text of a computed value. Raises FileProblem unless `place` allows a computed value."""
        if isinstance(node, ast.Attribute) and node.attr.isupper():
            return node.attr  # The value is a member of an enum, such as `AcceleratorType.NVIDIA_TESLA_T4`.
        parts = [self._part(one) for one in (node.values if isinstance(node, ast.JoinedStr) else [node])]
        unknown = next((text for text, known in parts if not known), None)
        if unknown is not None and not any(step in self._as_written for step in place):
            what = f"`{unknown}`" if unknown.isidentifier() else "what stands here"
            message = f"{what} is computed by the script, which is not executed."
            refuse(self._source, node.lineno, message, "Put the value itself there.")
        return "".join(text for text, _ in parts)

    def _part(self, node: ast.expr) -> tuple[str, bool]:
        """Returns the text of one part of an f-string, and whether the part is constant."""
        if isinstance(node, ast.FormattedValue) and node.format_spec is None and node.conversion == -1:
            node = self._text.settled(node.value)
        if isinstance(node, ast.Constant) and isinstance(node.value, str | int):
            return str(node.value), True
        return _name(node) or "…", False
