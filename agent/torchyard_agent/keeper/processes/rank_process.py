"""The process of a rank: its environment, its command with the setup lines, its log and its start."""

from __future__ import annotations

import errno
import os
import shlex
import subprocess
from collections.abc import Mapping
from functools import partial
from typing import BinaryIO, NamedTuple

from torchyard_agent import umask
from torchyard_agent.keeper.decisions.events import Cause
from torchyard_agent.keeper.processes import failure_diagnosis, process_control
from torchyard_agent.keeper.processes.cgroup import Cgroup
from torchyard_agent.keeper.processes.warm_interpreters import WarmInterpreters
from torchyard_agent.protocol import paths
from torchyard_agent.protocol.messages import RankAssignment
from torchyard_agent.protocol.metrics_report import REPORT_VARIABLE
from torchyard_agent.protocol.rank_environment import STOP_VARIABLE, VARIABLES_OF_A_RANK

ARCHIVE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
"""The folder of the unpacked agent, which also contains `torchyard_roles`."""
NOT_FOUND = 127
NOT_EXECUTABLE = 126
FULL = 64 * 1024
"""Number of free bytes below which a disk counts as full."""


class RunPlace(NamedTuple):
    """A run on this host: its ID, the host's name, the run's folder, and the address to which ranks send metrics."""

    run_id: str
    host: str
    folder: str
    report_address: str
    """The abstract address of the socket that receives metrics, with its leading NUL."""

    @property
    def work(self) -> str:
        return os.path.join(self.folder, "work")

    def log_file(self, replica: str, local_rank: int) -> str:
        return os.path.join(self.folder, "logs", paths.log_name(replica, local_rank))

    def error_file(self, replica: str, local_rank: int) -> str:
        return os.path.join(self.folder, "errors", f"{replica}.{local_rank}.json")

    @property
    def stop_file(self) -> str:
        """The path of the stop file, which ranks receive in the environment variable STOP_VARIABLE."""
        return os.path.join(self.folder, "stop")

    def setup_file(self, replica: str, local_rank: int) -> str:
        """Returns the path of the file in which the shell records a setup line that failed."""
        return os.path.join(self.folder, "errors", f"{replica}.{local_rank}.setup")


class CannotStart(Exception):
    """Raised if the program of a rank cannot be started. `code` is the exit code that a shell would return."""

    def __init__(self, message: str, code: int):
        super().__init__(message)
        self.code = code


class Rank(NamedTuple):
    """A running rank, identified by its replica and local rank, and its process."""

    replica: str
    local_rank: int
    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid


def environment(
    login: Mapping[str, str],
    place: RunPlace,
    replica: str,
    rank: RankAssignment,
    secrets: Mapping[str, str],
    exchange_key: bytes = b"",
) -> dict[str, str]:
    """Returns the environment of a rank.

    The sources, in order of increasing precedence, are the login, the run's ID and paths, the plan, the secrets, and
    this keeper's addresses and files. The exchange key is included if the run has a join store.
    """
    inherited = {
        name: value
        for name, value in login.items()
        # If the login itself is part of another run, its environment contains the variables of that run.
        if name not in VARIABLES_OF_A_RANK and not name.startswith(("TORCHYARD_", "TORCHELASTIC_"))
    }
    result = {
        **inherited,
        "TORCHYARD_RUN_ID": place.run_id,
        "TORCHYARD_REPLICA": replica,
        "TORCHYARD_RUN_DIR": place.folder,
        "TORCHELASTIC_ERROR_FILE": place.error_file(replica, rank["local_rank"]),
        **rank["env"],
        **secrets,
        REPORT_VARIABLE: "@" + place.report_address[1:],
        STOP_VARIABLE: place.stop_file,
    }
    if rank["env"].get("TORCHYARD_STORE") and exchange_key:
        result["TORCHYARD_KEY"] = exchange_key.hex()
    if result.get("TORCHYARD_CHECKPOINTS", "").startswith("~"):
        result["TORCHYARD_CHECKPOINTS"] = os.path.expanduser(result["TORCHYARD_CHECKPOINTS"])
    others = [path for path in result.get("PYTHONPATH", "").split(os.pathsep) if path and path != ARCHIVE]
    result["PYTHONPATH"] = os.pathsep.join([ARCHIVE, *others])
    return result


def command(argv: list[str], setup: list[str], setup_file: str) -> list[str]:
    """Returns the command line of a rank. If there are setup lines, a shell first executes them."""
    if not setup:
        return argv
    note = shlex.quote(setup_file)
    lines = [
        f"eval {shlex.quote(line)} || {{ code=$?; echo {number} $code >{note}; exit $code; }}"
        for number, line in enumerate(setup)
    ]
    lines.append(f'command -v -- "$1" >/dev/null 2>&1 || {{ echo exec {NOT_FOUND} >{note}; exit {NOT_FOUND}; }}')
    lines.append('exec "$@"')
    shell = next((path for path in ("/bin/bash", "/usr/bin/bash") if os.access(path, os.X_OK)), "/bin/sh")
    return [shell, "-c", "\n".join(lines), "torchyard-setup", *argv]


def spawn(
    place: RunPlace,
    replica: str,
    rank: RankAssignment,
    setup: list[str],
    secrets: Mapping[str, str],
    cgroup: Cgroup | None = None,
    exchange_key: bytes = b"",
    warm: WarmInterpreters | None = None,
) -> Rank:
    """Starts a rank in its own session, with standard output and error redirected to the rank's log file.

    The output does not pass through the keeper. Therefore a high rate of output does not slow the keeper down, and no
    output is lost if the keeper exits. If `warm` has a waiting interpreter for the rank, that interpreter is used.
    Raises CannotStart if the rank cannot be started.
    """
    local_rank = rank["local_rank"]
    variables = environment(os.environ, place, replica, rank, secrets, exchange_key)
    variables.pop(umask.VARIABLE, None)
    try:
        os.makedirs(variables["TORCHYARD_RUN_DIR"], exist_ok=True)
        if cgroup is not None:
            cgroup.make(replica)
        with _open_log(place, replica, local_rank) as log:
            if warm is not None:
                key = (replica, local_rank)
                waited = warm.hand_over(key, rank["argv"], variables, secrets, log, cgroup)
                if waited is not None:
                    return Rank(replica, local_rank, waited)
            process = subprocess.Popen(
                command(rank["argv"], setup, place.setup_file(replica, local_rank)),
                env=variables,
                cwd=place.work,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                umask=umask.of_login(),
                preexec_fn=partial(_in_the_child, os.getpid(), replica, cgroup),
            )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise _cannot_start(place, rank["argv"], error) from error
    return Rank(replica, local_rank, process)


def _open_log(place: RunPlace, replica: str, local_rank: int) -> BinaryIO:
    """Opens the rank's log, and removes the error files of an earlier generation."""
    for stale in (place.error_file(replica, local_rank), place.setup_file(replica, local_rank)):
        if os.path.exists(stale):
            os.unlink(stale)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    return os.fdopen(os.open(place.log_file(replica, local_rank), flags, 0o600), "ab", buffering=0)


def _in_the_child(keeper: int, replica: str, cgroup: Cgroup | None) -> None:
    if cgroup is not None:
        cgroup.join(replica)
    process_control.die_with(keeper)
    process_control.start_clean()


def _named(program: str) -> str:
    """Returns the program's name for messages, with the prefix `python: ` if the program is a Python interpreter."""
    return f"python: {program}" if os.path.basename(program).startswith("python") else program


def _cannot_start(place: RunPlace, argv: list[str], error: Exception) -> CannotStart:
    program = _named(argv[0])
    code = error.errno if isinstance(error, OSError) else None
    if code == errno.ENOENT and not os.path.isdir(place.work):
        return CannotStart(f"the run's working folder {place.work} is not there on {place.host}", NOT_FOUND)
    if code == errno.ENOENT:
        if os.path.exists(os.path.join(place.work, argv[0])):
            return CannotStart(f"{program}: the interpreter that its first line names is not there", NOT_FOUND)
        return CannotStart(f"{program} is not there on {place.host}", NOT_FOUND)
    if code in (errno.EACCES, errno.EISDIR):
        return CannotStart(f"{program} may not be executed on {place.host}", NOT_EXECUTABLE)
    if code == errno.ENOEXEC:
        return CannotStart(f"{program} is not a program that {place.host} can run", NOT_EXECUTABLE)
    if code == errno.E2BIG:
        return CannotStart(f"{program}: its arguments and environment are too long", NOT_EXECUTABLE)
    return CannotStart(f"{program} could not be started on {place.host}: {error}", NOT_EXECUTABLE)


def cause_of(
    place: RunPlace, replica: str, rank: RankAssignment, setup: list[str], code: int, *, out_of_memory: bool
) -> Cause:
    """Returns the cause of a rank's exit with code `code`."""
    local_rank = rank["local_rank"]
    in_setup = _setup_cause(place, replica, rank, setup)
    if in_setup is not None:
        return in_setup
    cause = failure_diagnosis.of_exit(
        code, place.error_file(replica, local_rank), place.log_file(replica, local_rank), out_of_memory=out_of_memory
    )
    # Nodes of a cluster may lack torch, whereas hosts in the fleet file are checked for torch before a launch.
    if failure_diagnosis.lacks_torch(cause):
        advice = "name one that has it as `python` in the fleet file, or load it with `setup`"
        return Cause(f"{cause.text}; the interpreter on {place.host} has no torch: {advice}", curable=False)
    if _is_full(place.folder):  # The full disk is the probable cause. The traceback may be missing from the log.
        return Cause(f"{cause.text}; the disk of {place.host} with the run's folder is full", cause.consequence)
    return cause


def _is_full(folder: str) -> bool:
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < FULL


def _setup_cause(place: RunPlace, replica: str, rank: RankAssignment, setup: list[str]) -> Cause | None:
    try:
        with open(place.setup_file(replica, rank["local_rank"]), encoding="utf-8") as file:
            which, _, code = file.read().strip().partition(" ")
    except OSError:
        return None
    if which == "exec":
        return Cause(f"{_named(rank['argv'][0])} is not there on {place.host} after the setup lines")
    last = failure_diagnosis.last_line(failure_diagnosis.read_tail(place.log_file(replica, rank["local_rank"])))
    return Cause(f"the setup line `{setup[int(which)]}` ended with {code}" + (f": {last}" if last else ""))
