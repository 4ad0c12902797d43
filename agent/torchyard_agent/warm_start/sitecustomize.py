"""Starts a rank's interpreter early. It imports modules such as torch, and then waits for its keeper's orders.

This folder is first on PYTHONPATH, so `site` imports this module before the interpreter opens the script. After the
wait, the interpreter continues as usual with `python script.py` or `python -m module`. Therefore `sys.argv`,
`__main__`, `sys.path[0]`, tracebacks and exit codes are as usual. The keeper's side is in
`torchyard_agent.keeper.processes.warm_interpreters`.

1. The keeper starts `python -c …`. If this interpreter imports this module, the module executes the rank's command
   line. Otherwise the process exits without running any code of the rank.
2. The interpreter of the rank's command sends a byte over the channel, imports `imports`, and sends another byte.
3. The keeper sends two files over the channel: the orders (environment and command line) and the rank's log. If a new
   interpreter might start differently or import other modules, the process executes the command line again. If the
   keeper closes the channel without sending the files, the process exits.

The module runs under the rank's own Python, 3.9 or later.
"""

from __future__ import annotations

import os
import sys

VARIABLE = "TORCHYARD_WARM_START"
NO_INTERPRETER = 97
"""Exit code if the command begins with a program other than a Python that reads PYTHONPATH, such as a wrapper."""
_FOLDER = os.path.dirname(os.path.abspath(__file__))


def _begin() -> None:
    order = os.environ.pop(VARIABLE, None)
    _leave_the_path()
    if order is not None:
        try:
            _serve(order)
        except BaseException as error:  # The script must not run until the keeper orders it.
            os.write(2, f"the interpreter could not be started early: {error!r}\n".encode("utf-8", "replace"))
            os._exit(1)
    _import_the_real_one()


def _leave_the_path() -> None:
    """Removes this folder from `sys.path` and PYTHONPATH."""
    sys.path[:] = [path for path in sys.path if path != _FOLDER]
    first, _, rest = os.environ.get("PYTHONPATH", "").partition(os.pathsep)
    if first == _FOLDER:
        os.environ["PYTHONPATH"] = rest


def _import_the_real_one() -> None:
    """Imports the `sitecustomize` module of the installation or the user, which this module hides."""
    sys.modules.pop("sitecustomize", None)
    import importlib

    # If there is no other module, this raises the ImportError that `site` expects.
    importlib.import_module("sitecustomize")


def _serve(order: str) -> None:
    """Waits for the keeper's orders. Returns when this process must continue as the rank."""
    known = set(sys.modules)
    import json

    described = json.loads(order)
    if "argv" in described:
        _execute_the_command(described.pop("argv"), json.dumps(described))
    import array
    import contextlib
    import gc
    import importlib
    import socket

    channel = socket.socket(fileno=int(described["channel"]))
    channel.set_inheritable(False)
    with contextlib.suppress(BrokenPipeError):
        channel.send(b"i")
    planned = dict(os.environ)
    whole = True
    # Imports create little garbage, but garbage collection would take a fifth of the time of importing torch.
    gc.disable()
    try:
        for name in described["imports"]:
            importlib.import_module(name)
    except BaseException:  # The error is not reported here, because the script's own import will raise it.
        whole = False
    finally:
        gc.freeze()
        gc.unfreeze()  # unfreeze() moves all objects to the oldest generation, as garbage collection would have done.
        gc.enable()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with contextlib.suppress(BrokenPipeError):  # The keeper may already have sent the orders and closed its end.
        channel.send(b"+")
    data, ancillary, _, _ = channel.recvmsg(1, socket.CMSG_SPACE(8), socket.MSG_CMSG_CLOEXEC)
    if not data:
        os._exit(0)
    files = array.array("i", ancillary[0][2])
    channel.close()
    orders = json.loads(os.pread(files[0], os.fstat(files[0]).st_size, 0))
    _take_the_log(files[1])
    for file in files:
        os.close(file)
    if not whole or orders["anew"] or _is_shadowed(orders["argv"], set(sys.modules) - known):
        _execute(orders["argv"][0], orders["argv"], orders["environment"])
    _take_the_environment(planned, orders["environment"])
    sys.path_importer_cache.clear()  # Folders may have been created since the interpreter started.


def _execute_the_command(argv: list[str], order: str) -> None:
    """Executes the rank's command line in this process.

    If the command's first word is not a Python that reads PYTHONPATH, the process exits.
    """
    program = _found(argv[0])
    if program is None or not sys.executable or not os.path.samefile(program, sys.executable):
        os._exit(NO_INTERPRETER)
    path = os.pathsep.join((_FOLDER, os.environ["PYTHONPATH"]))
    _execute(program, argv, {**os.environ, VARIABLE: order, "PYTHONPATH": path})


def _found(program: str) -> str | None:
    if os.sep in program:
        return program
    places = (os.path.join(folder, program) for folder in os.get_exec_path())
    return next((place for place in places if os.access(place, os.X_OK) and os.path.isfile(place)), None)


def _execute(program: str, argv: list[str], environment: dict[str, str]) -> None:
    import signal

    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        # Python ignores these signals, and a new program inherits which signals are ignored. Therefore their default
        # handling is restored.
        signal.signal(number, signal.SIG_DFL)
    os.execvpe(program, argv, environment)


def _take_the_log(log: int) -> None:
    """Copies the output of the imports to the rank's log, to which all further output is redirected."""
    printed = os.pread(1, os.fstat(1).st_size, 0)
    while printed:
        printed = printed[os.write(log, printed) :]
    os.dup2(log, 1)
    os.dup2(log, 2)


def _take_the_environment(planned: dict[str, str], final: dict[str, str]) -> None:
    """Applies the differences between `planned` and `final` to the environment.

    Other changes, which imported modules have made to the environment, are kept.
    """
    for name in planned:
        if name not in final:
            os.environ.pop(name, None)
    for name, value in final.items():
        if planned.get(name) != value:
            os.environ[name] = value


def _is_shadowed(argv: list[str], imported: set[str]) -> bool:
    """Returns whether a new interpreter would import any module in `imported` from the program's folders.

    This interpreter may have imported the module from another folder.
    """
    here = os.getcwd()
    script = argv[1] if len(argv) > 1 else ""
    folders = [path for path in sys.path if (path + os.sep).startswith(here + os.sep)]
    folders.append(here if script == "-m" else os.path.dirname(os.path.realpath(script)))
    names = {name.partition(".")[0] for name in imported}
    for folder in folders:
        try:
            found = os.listdir(folder)
        except OSError:
            continue
        for entry in found:
            stem, dot, kind = entry.partition(".")
            is_module = kind in ("py", "pyc") or kind.endswith("so")
            if stem in names and (is_module if dot else _is_package(os.path.join(folder, entry))):
                return True
    return False


def _is_package(folder: str) -> bool:
    return any(os.path.exists(os.path.join(folder, f"__init__.{kind}")) for kind in ("py", "pyc"))


_begin()
