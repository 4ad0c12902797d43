"""The console script. The command is imported inside `main`, so that Ctrl-C during the import prints no traceback."""

from __future__ import annotations

import os
import sys


def main() -> None:
    open_closed_streams()
    try:
        from torchyard_core.cli.root_command import main as run_command

        run_command()
    except KeyboardInterrupt:
        sys.stderr.write("torchyard: interrupted.\n")
        sys.exit(130)


def open_closed_streams() -> None:
    """Opens /dev/null for each standard stream that is closed (`<&-`).

    Otherwise the next file that the program opens would get the descriptor of the closed stream.
    """
    while (lowest := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(lowest)
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - stays open


if __name__ == "__main__":
    main()
