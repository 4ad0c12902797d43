"""TensorFlow clusters that are started by hand: the dictionary of a ClusterSpec, or command lines.

The dictionary is dense or sparse. The command lines have the options `--ps_hosts --worker_hosts --job_name
--task_index`.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from typing import Any, NoReturn

from torchyard_core.errors import UsageError
from torchyard_core.interop.cluster_addresses import (
    Job,
    addresses_for,
    as_pins,
    as_pools,
    pins_with_remarks,
    read_jobs,
    refuse_two_chiefs,
    split_address,
)
from torchyard_core.interop.document_reader import DocumentReader, Imported, built, refuse
from torchyard_core.interop.document_writer import DEFAULT_OPTIONS, Exported, ExportOptions, omission_remarks
from torchyard_core.interop.format_detection import expect, first_braces
from torchyard_core.interop.program_conversion import missing_program, words
from torchyard_core.interop.python_literals import script_in
from torchyard_core.interop.remarks import Remark
from torchyard_core.interop.shell_parser import CommandLine, command_lines
from torchyard_core.topology.checks.reserved_variables import is_reserved, is_variable_name
from torchyard_core.topology.model import Launcher, Role, Topology
from torchyard_core.topology.replicas import Replica, replicas_of

FORMS = ("commands", "cluster", "sparse")
ALLOWED = (
    'a ClusterSpec\'s dictionary (`{"worker": [host:port, …], "ps": […]}`), or commands with `--ps_hosts`, '
    "`--worker_hosts`, `--job_name` and `--task_index`, one task per command, alone or as `ssh HOST '…'`"
)
JOBS = {"chief": Role.CHIEF, "master": Role.CHIEF, "worker": Role.WORKER, "ps": Role.PS, "evaluator": Role.EVALUATOR}
PLACED = (
    "--ps_hosts={ps_hosts}",
    "--worker_hosts={worker_hosts}",
    "--job_name={job_name}",
    "--task_index={task_index}",
)
"""The options of each command line whose values Torchyard sets at launch."""
_SPEC = re.compile(r"ClusterSpec\s*\(")
_DICTIONARIES = ("cluster", "cluster_spec", "cluster_dict", "cluster_def")
"""Usual names of the variable to which a script assigns the dictionary of its cluster."""
_PLACED = re.compile(r"--?(\w+_hosts|job_name|task_index)(=|\Z)")
"""Matches an option whose value Torchyard sets for each task."""
_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


def read(text: str, source: str = "cluster") -> Imported:
    """Reads a cluster. Raises FileProblem for other text, and for tasks that are not in the lists of hosts."""
    expect("tensorflow", text, source, ALLOWED)
    if re.search(r"--?\w+_hosts\b", text):
        return _Commands(text, source).imported()
    reader = _dictionary(text, source)
    refuse_two_chiefs(reader, ())
    jobs = read_jobs(reader, (), JOBS)
    data: dict[str, Any] = {"name": "tensorflow", "pools": as_pools(jobs.values())}
    data |= pins_with_remarks(reader, jobs.values())
    data["program"] = missing_program(reader.remarks, command=True)
    if "master" in jobs:
        data["program"]["tf_master_name"] = "master"
    return Imported(built(data, source, reader.line(())), tuple(reader.remarks))


def _dictionary(text: str, source: str) -> DocumentReader:
    """Reads a dictionary that is the whole text, the argument of `ClusterSpec(…)`, or the value of a variable."""
    script = script_in(text, source)
    node = script.argument("ClusterSpec") or script.find(_DICTIONARIES) if script is not None else None
    if script is not None and node is not None:
        return DocumentReader(script.document(node))
    match = _SPEC.search(text)
    return DocumentReader.of(text if match is None else first_braces(text, match.end()), source)


class _Commands:
    """Reader of the command lines of one cluster. All command lines must have the same lists of hosts."""

    def __init__(self, text: str, source: str) -> None:
        self._source = source
        self._lists: dict[str, str] = {}
        self._tasks: dict[tuple[str, int], CommandLine] = {}
        self._remarks: list[Remark] = []
        for command in command_lines(text, source):
            options = dict(command.options())
            if any(name.endswith("_hosts") for name in options):
                self._take(command, options)

    def _stop(self, command: CommandLine, message: str, hint: str = "") -> NoReturn:
        refuse(self._source, command.line, message, hint)

    def _take(self, command: CommandLine, options: dict[str, str]) -> None:
        for name, value in options.items():
            if "$" in value and _PLACED.fullmatch(f"--{name}"):
                hint = "A shell's variables and loops are not followed: give a command for each task, with its values."
                self._stop(command, f"--{name} is '{value}'.", hint)
            if name.endswith("_hosts"):
                job = name.removesuffix("_hosts")
                if job not in JOBS:
                    allowed = ", ".join(f"--{job}_hosts" for job in JOBS)
                    self._stop(command, f"there is no job `{job}`.", f"Allowed are {allowed}.")
                if self._lists.setdefault(job, value) != value:
                    self._stop(command, f"--{name} is not as in the commands above it.", "It is the same in all tasks.")
        job, index = options.get("job_name", ""), options.get("task_index", "")
        given = {name.removesuffix("_hosts"): value for name, value in options.items() if name.endswith("_hosts")}
        if job not in given:
            allowed = ", ".join(given)
            self._stop(command, f"--job_name is '{job}'.", f"Allowed are those with hosts: {allowed}.")
        addresses = [address for address in given[job].split(",") if address]
        count = len(addresses)
        if not index.isdecimal() or int(index) >= count:
            hint = (
                f"--{job}_hosts names {count}: allowed are 0 to {count - 1}." if count else f"--{job}_hosts is empty."
            )
            self._stop(command, f"--task_index is '{index}', beyond the list of `{job}`.", hint)
        self._compare_host(command, self._host(command, job, addresses[int(index)]))
        other = self._tasks.setdefault((job, int(index)), command)
        if other is not command:
            self._stop(command, f"{job} {index} is started twice, first in line {other.line}.")

    def _compare_host(self, command: CommandLine, host: str) -> None:
        """Adds a remark if the command's `ssh` names another host than `host`, which the list of hosts names.

        The difference is not an error, because both names may belong to one host.
        """
        short, other = command.host.partition(".")[0], host.partition(".")[0]
        if command.host in ("", host) or (short == other and not short.isdecimal()):
            return
        message = f"`ssh` goes to {command.host}, and the list says {host}: the list's is taken."
        self._remarks.append(Remark(message, command.line))

    def imported(self) -> Imported:
        if not self._tasks:
            refuse(self._source, 1, "no command here starts a task.", f"Allowed are {ALLOWED}.")
        first = next(iter(self._tasks.values()))
        if {"chief", "master"} <= self._lists.keys():
            refuse(self._source, first.line, "the cluster has a chief and a master.", "Allowed is one of the two.")
        jobs: dict[str, Job] = {}
        for name, value in self._lists.items():
            hosts = {index: self._host(first, name, one) for index, one in enumerate(filter(None, value.split(",")))}
            if hosts:
                jobs[name] = Job(JOBS[name], (), len(hosts), hosts)
        reader = DocumentReader.of("{}", self._source)
        pools = as_pools(jobs.values())
        for pool in pools:
            self._set_variables(pool, next(name for name, job in jobs.items() if job.role == pool["role"]))
        data: dict[str, Any] = {"name": "tensorflow", "pools": pools, "program": self._program(first)}
        if pins := as_pins(reader, jobs.values()):
            data["pins"] = pins
        missing = [
            f"{name} {index}" for name, job in jobs.items() for index in job.hosts if (name, index) not in self._tasks
        ]
        if missing:
            self._remarks.append(Remark(f"no command starts {', '.join(missing[:5])}; Torchyard starts all of them."))
        if "master" in jobs:
            data["program"]["tf_master_name"] = "master"
        remarks = (*self._remarks, *(replace(remark, line=None) for remark in reader.remarks))
        return Imported(built(data, self._source, first.line), remarks)

    def _host(self, command: CommandLine, job: str, address: str) -> str:
        parted = split_address(address)
        if parted is None:
            self._stop(command, f"--{job}_hosts names '{address}'.", "Allowed is `host:port`, like gpu-a:2222.")
        return parted[0]

    def _set_variables(self, pool: dict[str, Any], job: str) -> None:
        """Sets the pool's `gpus` from CUDA_VISIBLE_DEVICES, and its `env` from the other variables of the commands.

        Adds a remark about each variable that Torchyard sets itself.
        """
        env: dict[str, str] = {}
        for (name, _), command in self._tasks.items():
            if name != job:
                continue
            for word in command.words:
                match = _VARIABLE.fullmatch(word)
                if match is None:
                    break
                variable, value = match[1], match[2]
                if variable == "CUDA_VISIBLE_DEVICES":
                    gpus = len([one for one in value.split(",") if one.strip() not in ("", "-1")])
                    if gpus and pool["role"] != "ps":
                        pool["gpus"] = max(gpus, pool.get("gpus", 0))
                elif is_variable_name(variable) and not is_reserved(variable):
                    env[variable] = value
                else:
                    self._remarks.append(Remark(f"{variable} is left out: Torchyard itself sets it.", command.line))
        if env:
            pool["env"] = env

    def _program(self, first: CommandLine) -> dict[str, Any]:
        program = first.program()
        program = program[: next((at for at, word in enumerate(program) if _PLACED.match(word)), len(program))]
        start = [
            word for at, word in enumerate(program) if any(not _VARIABLE.fullmatch(one) for one in program[: at + 1])
        ]
        if not start:
            return missing_program(self._remarks, command=True)
        others = first.arguments_after(len(program), _PLACED)
        for name, value in first.options():
            if _PLACED.match(f"-{name}") or name in _short(start):
                continue
            for command in self._tasks.values():
                if dict(command.options()).get(name) != value:
                    self._remarks.append(
                        Remark(f"--{name} differs from line {first.line}, whose is taken for all.", command.line)
                    )
        extra = [f"--{name}_hosts" for name in self._lists if name not in ("ps", "worker")]
        if extra:
            self._remarks.append(
                Remark(f"{', '.join(extra)} has no placeholder and is left out of the command: TF_CONFIG tells them.")
            )
        return {"launcher": "command", "command": start, "args": [*PLACED, *others]}


def _short(start: list[str]) -> set[str]:
    """Returns the options of the interpreter, such as `-m` and `-u`."""
    return {word.lstrip("-") for word in start if word.startswith("-")}


def write(topology: Topology, options: ExportOptions = DEFAULT_OPTIONS) -> Exported:
    """Writes one of three forms: commands, the dictionary of the cluster, or the sparse dictionary of one worker.

    There is one command for each trainer and parameter server. Raises UsageError for the sparse dictionary of a replica
    that is not a worker.
    """
    form = options.form or FORMS[0]
    remarks = [Remark("addresses are made of names: put in your hosts' own. At launch Torchyard does it.")]
    addresses = addresses_for(topology)
    replicas = replicas_of(topology)
    if any(replica.role is Role.REDUCER for replica in replicas):
        remarks.append(Remark("reducers are not carried over: TensorFlow has no equivalent for them."))
    if form == "commands":
        text = _written_commands(topology, addresses, remarks)
        carried = ("script", "module", "command", "args", "python", "env")
        filled = ("ps_hosts", "worker_hosts", "job_name", "task_index")
        remarks += omission_remarks(
            topology, pool=("args", "env", "gpus"), program=carried, filled=filled, names_hosts=True
        )
        return Exported(text, tuple(remarks))
    cluster: dict[str, list[str]] = {}
    for replica in replicas:
        if replica.role not in (Role.REDUCER, Role.EVALUATOR):
            job = topology.program.tf_master_name.value if replica.role is Role.CHIEF else replica.role.value
            cluster.setdefault(job, []).append(addresses[replica.name])
    if any(replica.role is Role.EVALUATOR for replica in replicas):
        remarks.append(Remark("the evaluator is not in it: it is outside the cluster."))
    remarks += omission_remarks(topology, program=("tf_master_name",), names_hosts=True)
    if form == "sparse":
        return Exported(_sparse(cluster, options.replica, addresses), tuple(remarks))
    return Exported(json.dumps(cluster, indent=2) + "\n", tuple(remarks))


def _sparse(cluster: dict[str, list[str]], name: str | None, addresses: dict[str, str]) -> str:
    """Returns the sparse dictionary of a worker, by default the last worker.

    It contains this worker's address and the addresses of all tasks of other jobs. Raises UsageError if the cluster
    does not have this worker.
    """
    workers = cluster.get("worker", [])
    name = name or f"worker-{max(0, len(workers) - 1)}"
    if addresses.get(name) not in workers:
        names = ", ".join(f"worker-{index}" for index in range(len(workers))) or "none"
        raise UsageError(f"there is no worker {name}.", code="no_replica", hint=f"There are {names}.")
    parts = [f'"worker": {{{workers.index(addresses[name])}: "{addresses[name]}"}}']
    parts += [f"{json.dumps(job)}: {json.dumps(tasks)}" for job, tasks in cluster.items() if job != "worker"]
    return "{" + ", ".join(parts) + "}\n"


def _written_commands(topology: Topology, addresses: dict[str, str], remarks: list[Remark]) -> str:
    """Returns the command lines. The chief is worker 0, as in TensorFlow 1.x."""
    replicas = replicas_of(topology)
    workers = [replica for replica in replicas if replica.role.trains]
    servers = [replica for replica in replicas if replica.role is Role.PS]
    if any(replica.role is Role.CHIEF for replica in workers):
        remarks.append(Remark("the chief is worker 0 in these commands, as TensorFlow 1.x has it."))
    if any(replica.role is Role.EVALUATOR for replica in replicas):
        remarks.append(Remark("the evaluator has no command: these flags have no word for it."))
    hosts = {
        "ps_hosts": ",".join(addresses[replica.name] for replica in servers),
        "worker_hosts": ",".join(addresses[replica.name] for replica in workers),
    }
    lines = []
    for job, members in (("ps", servers), ("worker", workers)):
        for index, replica in enumerate(members):
            lines.append(_written_command(topology, replica, {**hosts, "job_name": job, "task_index": str(index)}))
    return "\n".join(lines) + "\n"


def _written_command(topology: Topology, replica: Replica, values: dict[str, str]) -> str:
    line = words(topology.program, replica.pool)
    if topology.program.launcher is Launcher.TORCH or not any("{task_index}" in word for word in line):
        at = len(line) - len(topology.program.args) - len(replica.pool.args)
        line[at:at] = list(PLACED)
    filled = []
    for word in line:
        for name, value in values.items():
            word = word.replace(f"{{{name}}}", value)
        filled.append(shlex.quote(word))
    env = topology.program.env | replica.pool.env
    assigned = [f"{name}={shlex.quote(value)}" for name, value in env.items()]
    if replica.pool.gpus and replica.role.trains:
        assigned.insert(0, f"CUDA_VISIBLE_DEVICES={','.join(map(str, range(replica.pool.gpus)))}")
    return f"# {replica.name}\n" + " ".join([*assigned, *filled])
