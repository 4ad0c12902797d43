"""Checks of the program: launcher, script, environment and files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from torchyard_core.home import expand_user
from torchyard_core.problems import Findings, Place, error_finding, near_miss, warning_finding
from torchyard_core.topology.checks.reserved_variables import is_reserved, is_variable_name
from torchyard_core.topology.model import Launcher, Program, Topology
from torchyard_core.topology.strategies.registry import spec_of


def check_program(topology: Topology) -> Findings:
    """Checks the launcher and its keys. Also checks that no text for a process contains a NUL character."""
    program = topology.program
    if program.launcher is Launcher.COMMAND:
        if not program.command:
            yield error_finding("no-program", "launcher command needs `command`, like [python, trainer.py]", "program")
        elif not program.command[0]:
            message = "the first word of `command` is empty; it names the program to run"
            yield error_finding("no-program", message, "program", "command")
        for key in ("script", "module"):
            if getattr(program, key) is not None:
                yield error_finding(
                    "launcher", f"`{key}` is for launcher torch; launcher command runs `command`", "program", key
                )
    else:
        if program.command:
            message = "`command` is for launcher command; launcher torch runs `script` or `module`"
            yield error_finding("launcher", message, "program", "command")
        elif not program.script and not program.module:
            yield error_finding("no-program", "launcher torch needs `script` or `module`", "program")
        if program.script and program.module:
            yield error_finding("launcher", "`script` and `module` are both given; keep one", "program", "module")
    for place, text in _texts(topology):
        if "\0" in text:
            yield error_finding("bad-text", "text for a program cannot hold a NUL character", *place)


def _texts(topology: Topology) -> Iterator[tuple[Place, str]]:
    """Yields all text that becomes an argument, an environment variable or a shell command."""
    program = topology.program
    for key in ("script", "module", "python", "notify"):
        yield ("program", key), getattr(program, key) or ""
    for key in ("args", "command", "setup"):
        for number, text in enumerate(getattr(program, key)):
            yield ("program", key, number), text
    for variable, text in program.env.items():
        yield ("program", "env", variable), text
    for position, pool in enumerate(topology.pools):
        for number, text in enumerate(pool.args):
            yield ("pools", position, "args", number), text
        for variable, text in pool.env.items():
            yield ("pools", position, "env", variable), text


def check_variables(topology: Topology) -> Findings:
    """Checks the names of environment variables and secrets, and that no secret has its value in the file."""
    program = topology.program
    blocks: list[tuple[Place, dict[str, str]]] = [(("program", "env"), program.env)]
    blocks += [(("pools", position, "env"), pool.env) for position, pool in enumerate(topology.pools)]
    for place, env in blocks:
        for variable in env:
            yield from _variable(variable, (*place, variable))
            if variable in program.secrets:
                message = f"the secret {variable} is also written here in the open; remove one of the two"
                yield error_finding("secret-shown", message, *place, variable)
    for number, secret in enumerate(program.secrets):
        yield from _variable(secret, ("program", "secrets", number))


def _variable(variable: str, place: Place) -> Findings:
    if not is_variable_name(variable):
        message = f"'{variable}' cannot name an environment variable: letters, digits and _ only, no digit first"
        yield error_finding("bad-variable", message, *place)
    elif is_reserved(variable):
        yield error_finding("reserved-variable", f"Torchyard itself sets {variable}; remove it here", *place)


def check_exclude(topology: Topology) -> Findings:
    """Yields an error for each invalid exclude pattern."""
    for number, pattern in enumerate(topology.program.exclude):
        if not ("[" in pattern or "\\" in pattern or pattern.strip() == "!"):
            continue
        from torchyard_core.gitignore import is_valid_pattern  # Deferred, since this import is slow and rarely needed.

        if not is_valid_pattern(pattern):
            message = f"the pattern `{pattern}` cannot be understood; write it as in .gitignore"
            yield error_finding("bad-pattern", message, "program", "exclude", number)


def check_files(topology: Topology, folder: Path) -> Findings:
    """Checks that the working folder, script and notify program exist, and that the script supports the strategy."""
    program = topology.program
    if program.workdir is None:
        return
    workdir = folder / expand_user(program.workdir)
    if _kind(workdir) != "folder":
        what = "is a file, not a folder" if _kind(workdir) == "file" else "is not there"
        at = ("program", "workdir") if "workdir" in program.model_fields_set else ("program",)
        yield error_finding("workdir-missing", f"the working folder {program.workdir} {what}", *at)
        return
    yield from _script(program, workdir)
    yield from _script_source(topology, workdir)
    if program.notify and program.notify.startswith("./") and _kind(workdir / program.notify) != "file":
        yield warning_finding("notify-missing", f"{program.notify} is not in the working folder", "program", "notify")


def _script(program: Program, workdir: Path) -> Findings:
    # An absolute path refers to a file on the hosts, whose existence the desktop cannot check.
    if program.launcher is not Launcher.TORCH or not program.script or Path(program.script).is_absolute():
        return
    at = ("program", "script")
    script = workdir / program.script
    kind = _kind(script)
    if kind == "folder":
        yield error_finding("script-missing", f"the script {program.script} is a folder", *at)
    elif kind == "file" and not script.resolve().is_relative_to(workdir.resolve()):
        message = f"the script {program.script} lies outside the working folder, and would not be sent"
        yield error_finding("script-missing", message, *at)
    elif kind is None:
        beside = [path.name for path in script.parent.glob("*.py")] if _kind(script.parent) == "folder" else []
        close = near_miss(script.name, beside)
        hint = f"; did you mean `{Path(program.script).with_name(close)}`?" if close else ""
        yield error_finding("script-missing", f"the script {program.script} is not in the working folder{hint}", *at)


def _script_source(topology: Topology, workdir: Path) -> Findings:
    """Yields problems for a script that does not support the topology's strategy."""
    strategy, script = topology.strategy, topology.program.script
    if not script or _kind(workdir / script) != "file":
        return
    try:
        source = (workdir / script).read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return
    yield from spec_of(strategy.kind).check_script(strategy, script, source)


def _kind(path: Path) -> str | None:
    """Returns `folder` or `file`, or None for a path that does not exist or is inaccessible."""
    try:
        return "folder" if path.is_dir() else "file" if path.is_file() else None
    except (OSError, ValueError):
        return None
