"""The models in a run's checkpoints on this host. Desktops download each model as one file.

If the checkpoint is not sharded, this file is a link to its `model.pt`. The parts of a sharded model are combined by
`torchyard_roles.checkpoints.export`, which the run's own interpreter executes because the agent itself has no torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
from functools import partial
from typing import Any

from torchyard_agent.daemon.runs import Runs
from torchyard_agent.keeper.checkpoints import checkpoint_folders
from torchyard_agent.protocol import paths
from torchyard_agent.protocol.jsonrpc import RpcError
from torchyard_agent.telemetry import training_python
from torchyard_agent.unix_socket_rpc import Connection, Method

Params = dict[str, Any]

EXPORTS = "exports"
"""Subfolder of the run's folder for exported models. A file exists until the desktop removes it or disconnects."""
WAIT_S = 20.0
"""Maximum time in seconds for which a request waits for the export of a model."""
MODEL = "model.pt"
METADATA = ".metadata"
"""The file that a sharded checkpoint contains instead of MODEL."""
_UNFINISHED = re.compile(r"\.saving-(step-\d{12})-shared")
"""The name of a folder in which ranks write their parts of a sharded model."""
MAX_PARTS = 50
_CAUSE = "cannot be exported: "
_LACKS_TORCH = "No module named 'torch"


def list_checkpoints(folder: str) -> list[dict[str, Any]]:
    """Returns the checkpoints in a folder, newest first, each with `step`, `sharded`, `bytes`, `missing` and `parts`.

    `bytes` is the size of the files that contain the model. `missing` is the name of the first file that is missing or
    damaged, or "". `parts` are the files of a save that was not completed, or [].
    """
    found = []
    try:
        names = sorted(os.listdir(folder), reverse=True)
    except OSError:
        return []
    for name in names:
        path = os.path.join(folder, name)
        unfinished = _UNFINISHED.fullmatch(name)
        if unfinished is not None:
            with contextlib.suppress(OSError):
                parts = sorted(part for part in os.listdir(path) if checkpoint_folders.is_file_name(part))[:MAX_PARTS]
                found.append(_entry(unfinished[1], sharded=True, parts=parts))
        elif checkpoint_folders.NAME.fullmatch(name):
            sizes = checkpoint_folders.files_of(path)
            if sizes is None:
                found.append(_entry(name, missing=checkpoint_folders.first_missing(path)))
                continue
            sharded = METADATA in sizes
            size = sum(sizes[one] for one in sizes if one.endswith(".distcp") or one in (METADATA, MODEL))
            found.append(_entry(name, sharded=sharded, size=size, missing="" if sharded or MODEL in sizes else MODEL))
    return sorted(found, key=lambda one: -int(one["step"]))


def _entry(
    name: str, *, sharded: bool = False, size: int = 0, missing: str = "", parts: list[str] | None = None
) -> dict[str, Any]:
    step = int(name[len("step-") :])
    return {"step": step, "sharded": sharded, "bytes": size, "missing": missing, "parts": parts or []}


class _Export:
    """The export of one model to a file for one connection."""

    def __init__(self, run_dir: str):
        self.run_dir = run_dir
        self.path = os.path.join(EXPORTS, os.urandom(8).hex(), MODEL)
        self.is_abandoned = False
        self.process: Any = None
        self.task: asyncio.Future[None] | None = None

    @property
    def file(self) -> str:
        return os.path.join(self.run_dir, self.path)

    def abandon(self) -> None:
        """Ends the export and removes its file."""
        self.is_abandoned = True
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.remove()

    def remove(self) -> None:
        shutil.rmtree(os.path.dirname(self.file), ignore_errors=True)
        with contextlib.suppress(OSError):  # The folder may contain the file of another export.
            os.rmdir(os.path.join(self.run_dir, EXPORTS))


class RunModels:
    """The methods `checkpoints.list`, `model.export` and `model.remove`."""

    def __init__(self, runs: Runs, archive: str):
        self._runs = runs
        self._archive = archive
        self._exports: dict[tuple[Connection, str, str], _Export] = {}
        """Exports by connection, run and the ID that the desktop chose."""

    def table(self) -> dict[str, Method]:
        return {
            "checkpoints.list": self.checkpoints_list,
            "model.export": self.model_export,
            "model.remove": self.model_remove,
        }

    async def checkpoints_list(self, connection: Connection, params: Params) -> Any:
        folder = _folder(self._runs.folder(params["run_id"]), params)
        listing = asyncio.get_running_loop().run_in_executor(None, list_checkpoints, folder)
        return {"folder": folder, "checkpoints": await listing}

    async def model_export(self, connection: Connection, params: Params) -> Any:
        """Returns `path` and `size` of a file with the model of a checkpoint.

        `path` is null until the file is complete.

        The desktop repeats the request with the same `export` until the file is complete.
        """
        run_dir = self._runs.folder(params["run_id"])
        key = (connection, str(params["run_id"]), str(params["export"]))
        export = self._exports.get(key)
        if export is None:
            export = self._exports[key] = _Export(run_dir)
            connection.on_close.append(partial(self._abandon, key))
            writing = partial(self._write, export, params)
            export.task = asyncio.get_running_loop().run_in_executor(None, writing)
        assert export.task is not None
        done, _ = await asyncio.wait({export.task}, timeout=WAIT_S)
        if not done:
            return {"path": None, "size": 0}
        try:
            export.task.result()
            return {"path": export.path, "size": os.path.getsize(export.file)}
        except (RpcError, OSError) as error:
            self._abandon(key)
            if isinstance(error, RpcError):
                raise
            raise RpcError(f"the model cannot be written to {run_dir}: {error.strerror}", "not_exported") from error

    async def model_remove(self, connection: Connection, params: Params) -> Any:
        self._abandon((connection, str(params["run_id"]), str(params["export"])))
        return {}

    def _abandon(self, key: tuple[Connection, str, str]) -> None:
        export = self._exports.pop(key, None)
        if export is not None:
            export.abandon()

    def _write(self, export: _Export, params: Params) -> None:
        """Writes a checkpoint's model to the file of the export. Called in a thread.

        Raises RpcError or OSError if this fails.
        """
        step = int(params["step"])
        folder = os.path.join(_folder(export.run_dir, params), f"step-{step:012d}")
        sizes = checkpoint_folders.files_of(folder)
        if sizes is None or not {METADATA, MODEL} & set(sizes):
            raise RpcError(f"the checkpoint of step {step} is no longer complete", "no_checkpoint")
        os.makedirs(os.path.dirname(export.file), 0o700, exist_ok=True)
        if METADATA not in sizes:
            _link(os.path.join(folder, MODEL), export.file)
        else:
            self._put_together(export, folder, step, params)
        if export.is_abandoned:
            export.remove()

    def _put_together(self, export: _Export, folder: str, step: int, params: Params) -> None:
        import subprocess  # `subprocess` and `rank_process` are imported here, because only an export needs them.

        from torchyard_agent.keeper.processes.rank_process import command

        python = _python(params)
        setup_file = f"{export.file}.setup"
        module = [python, "-m", "torchyard_roles.checkpoints.export", folder, export.file]
        argv = ["nice", "-n", "19", *command(module, [str(line) for line in params["setup"]], setup_file)]
        work = os.path.join(export.run_dir, "work")
        process = export.process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=work if os.path.isdir(work) else export.run_dir,
            env=self._environment(params["env"]),
            start_new_session=True,
            text=True,
            errors="replace",
        )
        if export.is_abandoned:
            export.abandon()
        with process:
            output, _ = process.communicate()
        if process.returncode != 0 and not export.is_abandoned:
            last = (output.strip() or f"exit status {process.returncode}").splitlines()[-1]
            reason = f"{python} has no torch" if _LACKS_TORCH in last else last.rpartition(_CAUSE)[2]
            hint = "It ran the interpreter of the program, `python` of the host in the fleet file or of the topology."
            message = f"the model of step {step} cannot be put together: {reason.rstrip('.')[:300]}"
            raise RpcError(message, "not_exported", hint)

    def _environment(self, of_program: dict[str, str]) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith("TORCHYARD_")}
        result = {**own, **{str(name): str(value) for name, value in of_program.items()}, "CUDA_VISIBLE_DEVICES": ""}
        others = [path for path in result.get("PYTHONPATH", "").split(os.pathsep) if path]
        return {**result, "PYTHONPATH": os.pathsep.join([self._archive, *others])}


def archive_of(agent_dir: str, hello: Params) -> str:
    """Returns the folder of the archive from which this daemon runs."""
    return paths.archive_dir(agent_dir, str(hello.get("sha256", "")))


def _folder(run_dir: str, params: Params) -> str:
    """Returns the folder of the run's checkpoints: `folder` if the hosts share it, else one in the run's folder."""
    shared = params.get("folder")
    return os.path.expanduser(str(shared)) if shared else checkpoint_folders.checkpoints_dir(run_dir)


def _python(params: Params) -> str:
    """Returns the interpreter for training programs. Raises RpcError if the host has none."""
    wanted = params.get("python")
    if wanted:
        return os.path.expandvars(os.path.expanduser(str(wanted)))
    found = "python3" if params["setup"] else training_python.resolve(None)
    if found is None:
        raise RpcError("neither python3 nor python is on the PATH", "python_missing", "Set `python` of the host.")
    return found


def _link(source: str, target: str) -> None:
    """Hard-links a file, or copies it if it cannot be linked, for example because it is on another file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
