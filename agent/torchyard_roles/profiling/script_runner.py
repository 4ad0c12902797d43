"""Runs a training script to measure its steps: `python -m torchyard_roles.profiling.script_runner FILE SCRIPT ARGS`.

`-m MODULE` in place of SCRIPT runs a module. The measurements are written to FILE below TORCHYARD_RUN_DIR
(`step_recorder`). Hooks on all optimizers also measure scripts that do not import `torchyard_roles`.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Any

VARIABLE = "TORCHYARD_PROFILE"


def main(arguments: list[str]) -> None:
    """Runs the script. Raises SystemExit with a message if the script ends before a step was measured."""
    file, *rest = arguments
    path = str(Path(os.environ.get("TORCHYARD_RUN_DIR", "")) / file)
    os.environ[VARIABLE] = path
    _watch_optimizers(path)
    if rest[0] == "-m":
        sys.argv = rest[1:]
        runpy.run_module(rest[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = rest
        sys.path[0] = str(Path(rest[0]).absolute().parent)
        runpy.run_path(rest[0], run_name="__main__")
    _end(path)


def _watch_optimizers(path: str) -> None:
    """Measures the steps of all optimizers, until the script calls distribute()."""
    from torchyard_roles.optimizer_hooks import after_every_step, before_every_step
    from torchyard_roles.profiling.step_recorder import recorder_for

    recorder = recorder_for(path)
    first: list[int] = []

    def before(optimizer: Any, *_: Any) -> None:
        if recorder.is_black_box:
            recorder.watch_optimizer(optimizer)
            recorder.before_optimizer()

    def after(optimizer: Any, *_: Any) -> None:
        if not recorder.is_black_box:
            return
        recorder.after_optimizer()
        if not first:
            first.append(id(optimizer))
        if id(optimizer) == first[0]:
            recorder.stepped()

    before_every_step(before)
    after_every_step(after)


def _end(path: str) -> None:
    """Writes the measurements of a script that ended by itself."""
    from torchyard_roles.profiling.step_recorder import recorder_for

    recorder_for(path).write()
    if not Path(path).exists():
        raise SystemExit(
            "torchyard: the script ended before a step could be measured: at least five steps of an optimizer are "
            "needed."
        )


if __name__ == "__main__":
    main(sys.argv[1:])
