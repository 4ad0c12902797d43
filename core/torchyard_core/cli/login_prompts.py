"""What a login needs to know of the user, asked on the terminal: passphrases, passwords, one-time codes."""

from __future__ import annotations

import atexit
import getpass
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from torchyard_core.cli.output import quiet_screen, remark
from torchyard_core.fleet.credential_prompts import Question, Questions
from torchyard_core.text_sanitizer import printable


def terminal_questions() -> Questions | None:
    """Whoever sits at the terminal; None where there is none, and a login that needs an answer says so instead."""
    return TerminalQuestions() if sys.stdin.isatty() else None


class TerminalQuestions:
    """Asks on the terminal, whatever stdout and stderr are. Ctrl-D gives up; an empty line goes on without."""

    def ask(self, question: Question) -> str | None:
        """The answer, never shown where it is hidden."""
        with quiet_screen(), _echo_comes_back():
            if question.complaint:
                remark(question.complaint)
            if question.instructions:
                remark(f"{question.host} says: {question.instructions}")
            words = printable(f"{question.prompt} for {question.about}: ")
            try:
                return getpass.getpass(words) if question.hidden else _typed(words)
            except EOFError:
                remark("")
                return None


def _typed(words: str) -> str:
    sys.stderr.write(words)
    sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\n")


@contextmanager
def _echo_comes_back() -> Iterator[None]:
    """Leaves the terminal as it was even if Ctrl-C ends the program: the thread that asks is not waited for."""
    try:
        import termios  # not there on Windows

        terminal = sys.stdin.fileno()
        before = termios.tcgetattr(terminal)
    except (ImportError, OSError, ValueError):
        yield
        return

    def restore() -> None:
        with suppress(OSError, termios.error):
            termios.tcsetattr(terminal, termios.TCSADRAIN, before)

    atexit.register(restore)
    try:
        yield
    finally:
        atexit.unregister(restore)
