"""Runs a training script to measure its steps: `python -m torchyard_roles.profiling.script_runner FILE SCRIPT ARGS`.

`-m MODULE` in place of SCRIPT runs a module. The measurements are written to FILE below TORCHYARD_RUN_DIR
(`step_recorder`). Hooks on all optimizers also measure scripts that do not import `torchyard_roles`.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

VARIABLE = "TORCHYARD_PROFILE"


def main(arguments: list[str]) -> None:
    """Runs the script. Raises SystemExit with a message if the script ends before a step was measured."""
    file, *rest = arguments
    path = str(Path(os.environ.get("TORCHYARD_RUN_DIR", "")) / file)
    os.environ[VARIABLE] = path
    _watch_optimizers(path)
    _run(rest)
    _end(path)


def _run(command: list[str]) -> None:
    """Runs the script or module. If it raises an exception, prints the traceback and raises SystemExit.

    As without this module, the traceback begins with the script's own frames, and a syntax error has none.
    """
    try:
        if command[0] == "-m":
            sys.argv = command[1:]
            runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = command
            sys.path[0] = str(Path(command[0]).absolute().parent)
            runpy.run_path(command[0], run_name="__main__")
    except Exception as error:
        # sys.excepthook prints the exception's own __traceback__, whatever its third argument is.
        error.__traceback__ = _in_the_script(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        raise SystemExit(1) from None


def _in_the_script(frames: TracebackType | None) -> TracebackType | None:
    """Returns the traceback without the frames of this module and of `runpy` at its beginning."""
    while frames is not None:
        file = frames.tb_frame.f_code.co_filename
        if file != __file__ and file != runpy.__file__ and not file.startswith("<frozen "):
            break
        frames = frames.tb_next
    return frames


def _watch_optimizers(path: str) -> None:
    """Registers hooks that measure the steps of all optimizers until the script calls distribute()."""
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
    """Writes the measurements of a script that ended by itself. Raises SystemExit if no step was measured."""
    from torchyard_roles.profiling.step_recorder import recorder_for

    recorder_for(path).write()
    if not Path(path).exists():
        raise SystemExit(
            "torchyard: the script ended before enough steps were measured: a profile needs at least five steps of an "
            "optimizer."
        )


if __name__ == "__main__":
    main(sys.argv[1:])
