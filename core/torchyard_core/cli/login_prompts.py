"""Terminal prompts for logins: passphrases, passwords, one-time codes."""

from __future__ import annotations

import atexit
import getpass
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from torchyard_core.cli.output import quiet_screen, remark
from torchyard_core.fleet.credential_prompts import CredentialPrompt, Prompter
from torchyard_core.text_sanitizer import printable


def terminal_questions() -> Prompter | None:
    """Prompts on the terminal; None without one, and then a login that needs an answer fails."""
    return TerminalQuestions() if sys.stdin.isatty() else None


class TerminalQuestions:
    """Asks on the terminal, wherever stdout goes. Ctrl-D refuses to answer; an empty line is an empty answer."""

    def ask(self, question: CredentialPrompt) -> str | None:
        """The answer, typed without echo where the question is hidden; None after Ctrl-D."""
        with quiet_screen(), _restored_terminal():
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
def _restored_terminal() -> Iterator[None]:
    """Restores the terminal even if Ctrl-C ends the program, which does not wait for the asking thread."""
    try:
        import termios  # missing on Windows

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
