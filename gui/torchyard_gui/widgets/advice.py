"""Converts messages of the core to the window: capitalized, with buttons in place of commands."""

from __future__ import annotations

import re
from collections.abc import Callable

from PySide6.QtCore import QCoreApplication

_translate = QCoreApplication.translate

_PRESSED = (
    (re.compile(r"([Rr])un `torchyard deploy [^`]*`"), "Deploy"),
    (re.compile(r"([Rr])un `torchyard hosts trust [^`]*`"), "Trust …"),
)
_REMOVE = re.compile(r"or `torchyard hosts remove [^`]*` first")
_OLD_RUNS = re.compile(r"\(`torchyard runs list` shows old runs\)")
_LIST = re.compile(r"`torchyard runs list` shows")
_LIST_TELLS = re.compile(r"`torchyard runs list` tells")
_STOP_ENDS = re.compile(r"`torchyard runs stop [^`]*` ends it")
_VALIDATE = re.compile(r"`torchyard validate [^`]*` lists")
_ADD = re.compile(r"with `torchyard hosts add`")
_CHECK = re.compile(r"see `torchyard hosts check`")
_AT_THEN = re.compile(r" ?`torchyard run [^`]* --at [^`]*` books that and starts then\.")
_BOOK_WITH = re.compile(r"Add --book \S+ \(or another length\) to book them with the launch, [^.]*\.")
_IMAGE = re.compile(r"`--image` names it")
_YES = re.compile(r", or add -y to send it all(?=\.)")
_EXCLUDE = re.compile(r"in `program\.exclude`")
_CODE = re.compile(r"`([^`]+)`")
_BEGINNINGS = {"a", "compare", "no", "only", "port", "something", "the", "there", "this"}
"""First words of core sentences to capitalize; other first words are names."""


def as_sentence(message: str, hint: str = "", *, host: str = "", elsewhere: bool = False) -> str:
    """Returns a core message with its hint.

    A leading `host` name is not capitalized. `elsewhere`: the hint's buttons are on the Fleet page, and another page is
    shown.
    """
    message = in_the_window(message, elsewhere=elsewhere)
    if not message.endswith((".", "!", "?")):
        message += "."
    first = message.split(" ")[0]
    if first in _BEGINNINGS and first != host:
        message = message[0].upper() + message[1:]
    return f"{message} {in_the_window(hint, elsewhere=elsewhere)}".strip()


def in_the_window(text: str, *, elsewhere: bool = False) -> str:
    """Replaces advice about commands by advice about the window."""
    for command, button in _PRESSED:
        for found in command.finditer(text):
            text = text.replace(found[0], _press(found[1] == "R", button, elsewhere))
    for command, words in _elsewhere_in_the_window():
        text = command.sub(_always(words), text)
    return _CODE.sub(r"“\1”", text)


def _always(words: str) -> Callable[[re.Match[str]], str]:
    """Returns a replacement that is taken literally, backslashes included."""
    return lambda _: words


def _elsewhere_in_the_window() -> tuple[tuple[re.Pattern[str], str], ...]:
    """Returns commands and the place of the window with the same function."""
    return (
        (_OLD_RUNS, _translate("Advice", "(the Runs page shows old runs)")),
        (_REMOVE, _translate("Advice", "or remove that one first")),
        (_LIST, _translate("Advice", "the Runs page shows")),
        (_LIST_TELLS, _translate("Advice", "The Runs page tells")),
        (_STOP_ENDS, _translate("Advice", "“Stop” there ends it")),
        (_VALIDATE, _translate("Advice", "Problems on the Topology page lists")),
        (_ADD, _translate("Advice", "on the Fleet page")),
        (_CHECK, _translate("Advice", "see the Fleet page")),
        (_EXCLUDE, _translate("Advice", "in the field Not sent")),
        (_IMAGE, _translate("Advice", "name it in the field Image")),
        (_YES, ""),
        (_AT_THEN, ""),
        (_BOOK_WITH, _translate("Advice", "The booking ends with the run. For another length, press “When” first.")),
    )


def _press(begins: bool, button: str, elsewhere: bool) -> str:
    words = _translate("Advice", "Press “{button}”") if begins else _translate("Advice", "press “{button}”")
    if elsewhere:
        words = (
            _translate("Advice", "On the Fleet page, press “{button}”")
            if begins
            else _translate("Advice", "press “{button}” on the Fleet page")
        )
    return words.format(button=button)
