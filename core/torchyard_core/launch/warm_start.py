"""Warm start: interpreters start and import torch while the launch is still in progress (docs/launch.md).

Torch is imported early only if the program imports torch and none of its statements can affect that import. Such
statements set an environment variable that is read at the start of a program, or change `sys.path` other than by
appending to it.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

from torchyard_agent.protocol.messages import Warm
from torchyard_agent.protocol.rank_environment import is_read_at_start
from torchyard_core.launch.plan_preview import AT_LAUNCH, RUN_FOLDER, preview_sites
from torchyard_core.launch.planning import LaunchContext
from torchyard_core.launch.replica_plans import replica_specs
from torchyard_core.topology.model import Launcher, Program

IMPORTS = ("torch", "torch._dynamo")
"""Modules that may be imported early.

`torch._dynamo` is imported by each optimizer, and takes as long to import as torch itself.
"""
IMPORT_TORCH = frozenset(
    (
        *("torch", "torchyard_roles", "torchvision", "torchaudio", "torchtext", "torchdata", "torchmetrics"),
        *("lightning", "pytorch_lightning", "accelerate", "deepspeed", "timm", "fairscale", "torch_geometric"),
    )
)
MOST_FILES = 200
MOST_BYTES = 4 * 1024 * 1024
"""Maximum total size in bytes of the analysed files. A larger program gets no early imports."""
UNREADABLE = (OSError, SyntaxError, ValueError, RecursionError)
"""Errors in reading or parsing the program. They are ignored, since the program itself reports them when it runs."""


def early_imports(program: Program, folder: Path | None) -> tuple[str, ...]:
    """Returns the modules that the ranks' interpreters may import before the code arrives.

    Returns () if no module may be imported early, or if this cannot be determined.
    """
    if program.launcher is not Launcher.TORCH or program.setup or folder is None:
        return ()
    found = False
    try:
        for tree, packages in _Program(folder, program).modules():
            if any(_precedes_imports(node) for node in ast.walk(tree)):
                return ()
            found = found or not packages.isdisjoint(IMPORT_TORCH)
    except UNREADABLE:
        return ()
    return IMPORTS if found else ()


def imports_package(program: Program, folder: Path | None, package: str) -> bool | None:
    """Returns whether the script, or a module of the working folder that the script imports, imports a package.

    Returns None if this cannot be determined.
    """
    if program.launcher is not Launcher.TORCH or folder is None:
        return None
    try:
        modules = [packages for _, packages in _Program(folder, program).modules()]
    except UNREADABLE:
        return None
    return any(package in packages for packages in modules) if modules else None


def start_early(context: LaunchContext, run_id: str, imports: tuple[str, ...]) -> None:
    """Asks every host to start the interpreters of its ranks early. Does not wait for the answers.

    A host that does not start interpreters early starts the ranks as usual.
    """
    sites = preview_sites(context.plan, list(context.hosts.values()))
    replicas = replica_specs(context.plan, sites, run_id, store=AT_LAUNCH)
    for host, link in context.links.items():
        here = [replica for replica in replicas if replica["host"] == host]
        request = Warm(run_id=run_id, host=host, replicas=here, run_dir=RUN_FOLDER, imports=list(imports))
        link.submit("run.warm", {**request, "archive": link.archive})


class _Program:
    """The script of a program, and the modules of the working folder that the script imports."""

    def __init__(self, folder: Path, program: Program):
        self._folder = folder
        self._seen: set[Path] = set()
        self._bytes = 0
        self._left: list[Path] = []
        self._places: list[Path] = []
        if program.module:
            self._places = [folder]
            self._find(program.module, folder)
            self._find(f"{program.module}.__main__", folder)
        elif program.script and not Path(program.script).is_absolute():
            script = (folder / program.script).resolve()
            self._places = [script.parent]
            self._left = [script]
        entries = program.env.get("PYTHONPATH", "").split(os.pathsep)
        self._places += [folder / entry for entry in entries if entry and not Path(entry).is_absolute()]

    def modules(self) -> Iterator[tuple[ast.AST, set[str]]]:
        """Yields the syntax tree of each module with the top-level packages that it imports.

        Raises errors of reading and parsing, and ValueError for a program that is too large.
        """
        while self._left:
            path = self._left.pop()
            if path in self._seen:
                continue
            self._seen.add(path)
            source = path.read_bytes()
            self._bytes += len(source)
            if len(self._seen) > MOST_FILES or self._bytes > MOST_BYTES:
                raise ValueError("too large")
            tree = ast.parse(source)
            imported = list(self._imports(tree, path))
            yield tree, {name.partition(".")[0] for name, places in imported if places is self._places}
            for name, places in imported:
                for place in places:
                    self._find(name, place)

    def _imports(self, tree: ast.AST, path: Path) -> Iterator[tuple[str, list[Path]]]:
        """Yields each imported dotted name with the folders in which its file may be."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                yield from ((alias.name, self._places) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                places = self._places if not node.level else [path.parents[node.level - 1]]
                before = f"{node.module}." if node.module else ""
                yield from ((f"{before}{alias.name}", places) for alias in node.names)

    def _find(self, name: str, place: Path) -> None:
        """Adds the files of a module and of its parent packages to the files to read. `name` is its dotted name."""
        for part in name.split("."):
            module, package = place / f"{part}.py", place / part / "__init__.py"
            if package.is_file():
                self._left.append(package)
            elif module.is_file():
                self._left.append(module)
            place /= part


def _precedes_imports(node: ast.AST) -> bool:
    """Returns whether the expression may affect an import of torch.

    If so, torch must not be imported before the program runs.
    """
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
        return _is(node.value, "path") or (_is(node.value, "environ") and _may_matter(node.slice))
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return _is(node, "path") or _is(node, "environ")
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    method, subject = node.func.attr, node.func.value
    if method == "setdlopenflags":
        return True
    if method in ("putenv", "unsetenv") or (_is(subject, "environ") and method in ("setdefault", "pop")):
        return not node.args or _may_matter(node.args[0])
    if _is(subject, "environ") and method in ("update", "clear"):
        names = [key for one in node.args if isinstance(one, ast.Dict) for key in one.keys]
        known = all(isinstance(one, ast.Dict) for one in node.args) and all(word.arg for word in node.keywords)
        given = [word.arg or "" for word in node.keywords]
        return method == "clear" or not known or any(map(_may_matter, names)) or any(map(is_read_at_start, given))
    return _is(subject, "path") and method in ("insert", "remove", "clear", "reverse", "sort")


def _is(node: ast.AST, name: str) -> bool:
    """Returns whether the node refers to `name`, which is `path` or `environ`.

    `path` means `sys.path`. `environ` means a variable of this name, or an attribute `environ` of any object.
    """
    if isinstance(node, ast.Attribute) and node.attr == name:
        return name == "environ" or (isinstance(node.value, ast.Name) and node.value.id == "sys")
    return isinstance(node, ast.Name) and node.id == name == "environ"


def _may_matter(key: ast.AST | None) -> bool:
    """Returns whether the environment variable named by `key` is read at the start of a program.

    Returns True if the name is not a constant.
    """
    return not (isinstance(key, ast.Constant) and isinstance(key.value, str)) or is_read_at_start(key.value)
