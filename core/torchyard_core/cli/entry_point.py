"""Where the command begins: before anything heavy is imported, so that Ctrl-C is a sentence from the start."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Runs the command."""
    open_what_is_closed()
    try:
        from torchyard_core.cli.root_command import main as run_command

        run_command()
    except KeyboardInterrupt:
        sys.stderr.write("torchyard: interrupted.\n")
        sys.exit(130)


def open_what_is_closed() -> None:
    """A program may be started without stdin, stdout or stderr (`<&-`). Files and sockets would then take their
    numbers, and Python has None in their places: nothing is read or written there from now on."""
    while (lowest := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(lowest)
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - open to the end


if __name__ == "__main__":
    main()
