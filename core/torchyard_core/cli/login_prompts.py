"""Prompts on the terminal during logins: passphrases, passwords, one-time codes."""

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
    """Returns the prompts on the terminal, or None if there is no terminal.

    Without a terminal, logins that need an answer fail.
    """
    return TerminalQuestions() if sys.stdin.isatty() else None


class TerminalQuestions:
    """Prompts on the terminal, even if stdout is redirected. Ctrl-D cancels; an empty line is an empty answer."""

    def ask(self, question: CredentialPrompt) -> str | None:
        """Returns the answer, or None after Ctrl-D. A hidden answer is typed without echo."""
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
    """Restores the terminal's settings after the block, or when the program exits inside the block.

    Ctrl-C may end the program inside the block while another thread prompts the user. Has no effect if stdin is not a
    terminal.
    """
    try:
        import termios  # This module does not exist on Windows.

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
