"""YAML in a few inks: keys, text in quotes, comments. Colours only help; nothing is said by them alone."""

from __future__ import annotations

import re

from PySide6.QtGui import QSyntaxHighlighter, QTextCharFormat, QTextDocument

from torchyard_gui.theme.theme import theme

_KEY = re.compile(r"(?:^|[{,]|^\s*-)\s*([A-Za-z_][\w.-]*)\s*:(?=\s|$)")
_QUOTED = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^']|'')*'")
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*$")


class YamlColors(QSyntaxHighlighter):
    """Follows the theme."""

    def __init__(self, document: QTextDocument) -> None:
        super().__init__(document)
        theme().changed.connect(self.rehighlight)

    def highlightBlock(self, text: str) -> None:
        for match in _KEY.finditer(text):
            self.setFormat(match.start(1), len(match[1]), _ink("accent"))
        for match in _QUOTED.finditer(text):
            self.setFormat(match.start(), len(match[0]), _ink("reducer"))
        for match in _COMMENT.finditer(text):
            self.setFormat(match.start(), len(match[0]), _ink("text3"))


def _ink(token: str) -> QTextCharFormat:
    ink = QTextCharFormat()
    ink.setForeground(theme().brush(token))
    return ink
