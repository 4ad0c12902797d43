"""The Python interpreter of training programs: its path, version, torch and numpy. This module never imports torch."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

PROBE_S = 20.0
"""Time limit in seconds for an interpreter to answer. It is long because a busy network file system is slow."""
OLDEST = (3, 9)
"""The oldest Python that torch and `torchyard_roles` support."""
_MARK = "torchyard-probe:"
SEARCH_S = 40.0
"""Time in seconds after which a search starts no more interpreters."""
MOST_FOUND = 40
"""Maximum number of interpreters that a search returns."""
PLACES = (
    "~/.venv/bin/python",
    "~/venv/bin/python",
    "~/*/.venv/bin/python",
    "~/*/venv/bin/python",
    "~/*/bin/python",
    "~/*/envs/*/bin/python",
    "~/.conda/envs/*/bin/python",
    "~/.virtualenvs/*/bin/python",
    "~/.pyenv/versions/*/bin/python",
    "~/.local/share/uv/python/*/bin/python3",
    "~/.local/share/mamba/envs/*/bin/python",
    "/opt/*/bin/python",
    "/opt/*/envs/*/bin/python",
    "/opt/*/*/bin/python",
    "/usr/local/*/bin/python",
)
"""Patterns of the paths at which virtual environments, conda, pyenv and others usually have interpreters."""

# This code must run under any interpreter, including Python 2. It only reads metadata of distributions. A torch that
# was built in place has no metadata, so its version is read from its version.py.
_PROBE = """
import json, os, sys
found = {"version": ".".join(map(str, sys.version_info[:3])), "paths": [p for p in sys.path if os.path.isdir(p)]}
def of_version_file(package, variable):
    for folder in util.find_spec(package).submodule_search_locations:
        for line in open(os.path.join(folder, "version.py")):
            name, _, value = line.partition("=")
            if name.split(":")[0].strip() == variable:
                return value.strip().strip("'").strip('"')
try:
    from importlib import metadata, util
except ImportError:
    metadata = None
for name in ("torch", "numpy"):
    found[name] = None
    try:
        found[name] = metadata.version(name)
    except Exception:  # this Python lacks the module, or the installation is broken
        try:
            found[name] = of_version_file(name, "__version__")
        except Exception:  # the package is missing
            pass
found["packages"] = {}
for name in ("optuna", "cmaes"):
    try:
        found["packages"][name] = metadata.version(name)
    except Exception:  # the package is missing
        pass
try:
    cuda = of_version_file("torch", "cuda")
except Exception:  # torch or its version file is missing
    cuda = None
found["torch_cuda"] = None if cuda in ("None", "") else cuda
print("")
print("%s" + json.dumps(found))
""".replace("%s", _MARK)


class TrainingPython(NamedTuple):
    """A Python interpreter for training programs, with its version and those of its packages.

    Versions are None if the interpreter is missing or does not run, or the package is not installed.
    """

    path: str
    version: str | None = None
    torch: str | None = None
    numpy: str | None = None
    problem: dict[str, str] | None = None
    packages: Mapping[str, str] = {}
    """Versions of the packages that sweeps need, without missing ones."""
    torch_cuda: str | None = None
    """The CUDA version for which torch was built. None if torch is missing or was built without CUDA."""


class _Known(NamedTuple):
    found: TrainingPython
    changed: dict[str, float]
    """Modification times of the interpreter and of the folders from which it imports, by path."""


_known: dict[str, _Known] = {}
_probe_lock = threading.Lock()


def find(configured: str | None) -> TrainingPython:
    """Returns the training interpreter of this host: the configured one, otherwise the login's `python3` or `python`.

    An interpreter that works is run again only if the interpreter or the folders from which it imports have changed.
    The call may take up to PROBE_S.
    """
    path = resolve(configured)
    if path is None:
        wanted = configured or "python3"
        where = f"there is no {wanted} on this host" if configured else "neither python3 nor python is on the PATH"
        return TrainingPython(wanted, problem=_problem("python_missing", where, _SET_PYTHON))
    with _probe_lock:
        known = _known.get(path)
        if known is not None and known.changed == _changes(known.changed):
            return known.found
        found, folders = _probe(path)
        if found.version is not None:
            _known[path] = _Known(found, _changes([path, *folders]))
        return found


def search(named: str | None) -> list[dict[str, Any]]:
    """Runs the interpreters of this host, and returns their versions.

    Usable interpreters with torch and CUDA come first. After SEARCH_S, no more interpreters are run.

    Args:
        named: The interpreter from the fleet file, which is always included.

    Returns:
        [{`path`, `version`, `torch`, `torch_cuda`, `numpy`, `problem` (a sentence; not for a missing torch)}], with
        null for unknown values.
    """
    deadline = time.monotonic() + SEARCH_S
    found = []
    for path in candidates(named):
        if time.monotonic() > deadline:
            break
        found.append(find(path))
    problems = [_other_problem(python) for python in found]
    answer = [{**python._asdict(), "problem": problem} for python, problem in zip(found, problems)]
    answer.sort(key=lambda one: (one["problem"] is not None, one["torch"] is None, one["torch_cuda"] is None))
    return answer


def _other_problem(python: TrainingPython) -> str | None:
    """Returns the reason why an interpreter cannot be used, or None. A missing torch is not such a reason."""
    problem = python.problem
    return None if problem is None or problem["code"] == "no_torch" else problem["message"]


def candidates(named: str | None) -> list[str]:
    """Returns the paths of the interpreters on the PATH and in PLACES. `named` comes first.

    Links in one folder to the same file count as one interpreter. Links in different folders count as different
    interpreters, because one of the folders may be a virtual environment.
    """
    folders = [folder for folder in os.environ.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(folder)]
    paths = [named] if named else []
    paths += [os.path.join(folder, name) for folder in folders for name in ("python3", "python")]
    paths += [path for folder in folders for path in sorted(glob.glob(os.path.join(glob.escape(folder), "python3.*")))]
    paths += [path for place in PLACES for path in sorted(glob.glob(os.path.expanduser(place)))]
    seen: dict[tuple[str, str], str] = {}
    for path in paths:
        program = resolve(path)
        if program is not None and not program.endswith("-config"):
            folder = os.path.realpath(os.path.dirname(program))
            seen.setdefault((folder, os.path.realpath(program)), program)
    return list(seen.values())[:MOST_FOUND]


def resolve(configured: str | None) -> str | None:
    """Returns the path of the configured interpreter or, if none is configured, of `python3` or `python` on the PATH.

    Returns None if there is no such executable file.
    """
    if configured:
        return shutil.which(os.path.expandvars(os.path.expanduser(configured)))
    return shutil.which("python3") or shutil.which("python")


_SET_PYTHON = "Choose an interpreter that has torch."


def _changes(paths: Any) -> dict[str, float]:
    changed = {}
    for path in paths:
        with contextlib.suppress(OSError):
            changed[path] = os.stat(path).st_mtime
    return changed


def _probe(path: str) -> tuple[TrainingPython, list[str]]:
    """Runs the interpreter, and returns its versions and the folders from which it imports."""
    try:
        code, output, errors = _run([path, "-c", _PROBE])
    except TimeoutError:
        return _broken(path, f"{path} did not answer within {PROBE_S:.0f} s"), []
    except OSError as error:
        return _broken(path, f"{path} cannot be run: {error.strerror or error}"), []
    lines = [line for line in output.splitlines() if line.startswith(_MARK)]
    try:
        answer: dict[str, Any] = json.loads(lines[-1][len(_MARK) :])
    except (IndexError, ValueError):
        last = (errors.strip() or output.strip() or "it printed nothing").splitlines()[-1]
        return _broken(path, f"{path} does not work as a Python (exit status {code}): {last[:200]}"), []
    found = TrainingPython(
        path,
        answer["version"],
        answer["torch"],
        answer["numpy"],
        packages=answer["packages"],
        torch_cuda=answer.get("torch_cuda"),
    )
    return found._replace(problem=_problem_of(found)), answer["paths"]


def _problem_of(python: TrainingPython) -> dict[str, str] | None:
    version = tuple(map(int, (python.version or "0.0").split(".")[:2]))
    if version < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        message = f"{python.path} is Python {python.version}, too old for torch and Torchyard, which need {oldest}"
        return _problem("python_too_old", message, _SET_PYTHON)
    if python.torch is None:
        hint = f"Install it there with `{python.path} -m pip install torch`, or choose an interpreter that has it."
        return _problem("no_torch", f"torch is not installed for {python.path}", hint)
    return None


def _broken(path: str, message: str) -> TrainingPython:
    return TrainingPython(path, problem=_problem("python_broken", message, _SET_PYTHON))


def _problem(code: str, message: str, hint: str) -> dict[str, str]:
    return {"code": code, "message": message, "hint": hint}


def _run(argv: list[str]) -> tuple[int, str, str]:
    """Runs a command, and returns its exit status, stdout and stderr.

    Raises:
        TimeoutError: The command took longer than PROBE_S. Its process group has been killed.
        OSError: The command cannot be started.
    """
    import subprocess  # subprocess is imported here, because processes that only take samples do not need it.

    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        start_new_session=True,
        text=True,
        errors="replace",
    )
    with process:
        try:
            output, errors = process.communicate(timeout=PROBE_S)
        except subprocess.TimeoutExpired:
            # The process group is killed, because the children of a wrapper script would keep the pipes open.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise TimeoutError from None
    return process.returncode, output, errors
