"""Where the command begins: before anything heavy is imported, so that Ctrl-C is a sentence from the start."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command."""
    try:
        from torchyard_core.cli.main import main as run_command

        run_command()
    except KeyboardInterrupt:
        sys.stderr.write("torchyard: interrupted.\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
