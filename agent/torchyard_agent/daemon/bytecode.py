"""Compilation of an archive's modules to bytecode in a separate process: `python bytecode.py FOLDER`.

If the disk is full, Python before late 3.12 (including compileall) leaves a truncated bytecode file, and every import
of the module then fails. Therefore this module reads each file back before it renames the file to its final name, and
no other program writes bytecode into an archive.
"""

from __future__ import annotations

import importlib.util
import marshal
import os
import py_compile
import sys
from contextlib import suppress

HEADER_BYTES = 16


def compile_all(folder: str) -> None:
    """Compiles all modules that have no bytecode yet.

    Write errors are ignored, because they only make later starts slower.
    """
    for parent, _, names in os.walk(folder):
        for name in names:
            if name.endswith(".py"):
                compile_one(os.path.join(parent, name))


def compile_one(path: str) -> None:
    place = importlib.util.cache_from_source(path)
    scratch = f"{place}.{os.getpid()}"
    if is_whole(place):
        return
    with suppress(OSError, py_compile.PyCompileError):
        py_compile.compile(path, cfile=scratch, doraise=True)
        if is_whole(scratch):
            os.replace(scratch, place)
    for half in (scratch, place):
        if os.path.exists(half) and not is_whole(half):
            os.unlink(half)


def is_whole(path: str) -> bool:
    """Returns whether a bytecode file exists and is complete."""
    try:
        with open(path, "rb") as file:
            marshal.loads(file.read()[HEADER_BYTES:])
    except (OSError, EOFError, ValueError, TypeError):
        return False
    return True


if __name__ == "__main__":
    compile_all(sys.argv[1])
