"""Vertex AI's `workerPoolSpecs` as YAML, JSON, Python or `--worker-pool-spec` flags.

The position of a pool determines its role: 0 is the primary, 1 the workers, 2 the parameter servers or reducers, and 3
the evaluators. An empty pool keeps its position.

Source: the REST resource `CustomJobSpec`, which stands alone, in a CustomJob (`jobSpec`) or in a tuning job
(`trialJobSpec`). Keys are in camelCase, or in snake_case as in the Python client.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from dataclasses import dataclass, field
from typing import Any

from torchyard_core.errors import UsageError
from torchyard_core.interop.document_reader import DocumentReader, Imported, built, refuse
from torchyard_core.interop.document_writer import (
    DEFAULT_OPTIONS,
    IMAGE,
    Exported,
    ExportOptions,
    count_of,
    omission_remarks,
)
from torchyard_core.interop.format_detection import expect
from torchyard_core.interop.formats.vertex_flags import are_flags, as_flags, job_of_flags
from torchyard_core.interop.google_machines import (
    leave_gpus_of_servers,
    read_gpus,
    read_sizes,
    remark_on_sizes,
    written_gpus,
)
from torchyard_core.interop.program_conversion import PYTHON, as_module, missing_program, of_module, role_pools, words
from torchyard_core.interop.python_literals import PythonText, is_script
from torchyard_core.interop.remarks import Remark
from torchyard_core.problems import Place
from torchyard_core.topology.checks.reserved_variables import is_reserved, is_variable_name
from torchyard_core.topology.document.edits import POOL_NAMES
from torchyard_core.topology.machine_types import machine, machine_with
from torchyard_core.topology.model import Launcher, Pool, Role, StrategyKind, Topology
from torchyard_core.yaml_io.document import Document
from torchyard_core.yaml_io.writer import dump_yaml

FORMS = ("yaml", "json", "flags")
ALLOWED = "`workerPoolSpecs` (in Python `worker_pool_specs = […]`), or `--worker-pool-spec` flags"
POSITIONS = "0 the primary, 1 workers, 2 parameter servers or reducers, 3 evaluators"
REDUCER_IMAGE = "us-docker.pkg.dev/vertex-ai-restricted/training/reductionserver:latest"
DEFAULT_MACHINE = "n1-standard-4"
_SPEC_KEYS = ("machineSpec", "replicaCount", "containerSpec", "pythonPackageSpec")
_CLOUDS = dict.fromkeys(
    (
        "scheduling", "serviceAccount", "network", "tensorboard", "enableWebAccess", "labels",
        "encryptionSpec", "reservedIpRanges", "persistentResourceId", "enableDashboardAccess", "experiment",
        "experimentRun", "protectedArtifactLocationId", "name", "createTime", "startTime", "endTime", "updateTime",
        "state", "error", "webAccessUris", "pscInterfaceConfig", "models",
    ),
    "it is that cloud's",
) | {
    "baseOutputDirectory": "outputs stay on the hosts until they are fetched",
    **dict.fromkeys(("studySpec", "maxTrialCount", "parallelTrialCount", "maxFailedTrialCount"),
                    "the command sweeps import reads it as a search file"),
}  # fmt: skip

_HOSTS_OWN = {
    "diskSpec": "your hosts have their own disks",
    "nfsMounts": "mount them on the hosts",
    "lustreMounts": "mount them on the hosts",
    "tpuTopology": "Torchyard has no TPUs",
    "reservationAffinity": "it is that cloud's",
}


@dataclass
class _Task:
    """A worker pool of the document, and the program that its replicas run."""

    role: Role
    place: Place
    pool: dict[str, Any]
    image: str = ""
    torch: bool = False
    command: list[str] = field(default_factory=list)
    module: str | None = None
    script: str | None = None
    args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)


class VertexDocument(DocumentReader):
    """A document whose keys are in camelCase or snake_case."""

    def key(self, place: Place, name: str) -> Place:
        """Returns the location of a key in the spelling that the document uses."""
        snake = re.sub(r"([A-Z])", lambda match: f"_{match[1].lower()}", name)
        block = self.at(place)
        return (*place, snake if isinstance(block, dict) and snake in block and name not in block else name)

    def leave_beyond(self, place: Place, carried: tuple[str, ...], known: dict[str, str]) -> None:
        spelt = [self.key(place, name)[-1] for name in carried]
        both = known | {str(self.key(place, name)[-1]): why for name, why in known.items()}
        self.leave(place, [str(name) for name in spelt], both)


def read(text: str, source: str = "job.yaml") -> Imported:
    """Reads a job. Raises FileProblem for other text, for an invalid job, and for TPUs."""
    expect("vertex", text, source, ALLOWED)
    common: dict[str, list[str]] = {}
    if are_flags(text):
        job, lines, left = job_of_flags(text, source)
        common = {key: job.pop(key) for key in ("args", "command") if key in job}
        reader = VertexDocument.of(json.dumps(job), source)
        reader.remarks += left
        for position, line in enumerate(lines):
            _set_lines(reader, ("workerPoolSpecs", position), line)
    elif is_in_script(text):
        reader = VertexDocument(job_of_script(text, source))
    else:
        reader = VertexDocument.of(text, source)
    place = _find(reader)
    specs = reader.items(place)
    if len(specs) > 4:
        reader.stop(f"these are {len(specs)} worker pools.", (*place, 4), f"A job has at most four: {POSITIONS}.")
    tasks = [task for number in range(len(specs)) if (task := _task(reader, (*place, number), number)) is not None]
    if not tasks or tasks[0].role is not Role.CHIEF:
        reader.stop("worker pool 0 is empty.", (*place, 0) if specs else place, f"It is required: {POSITIONS}.")
    tasks = _with_reducers_that_serve(reader, tasks)
    for task in tasks:
        task.command, task.args = task.command or common.get("command", []), task.args or common.get("args", [])
    remark_on_sizes(reader, [task.pool for task in tasks])
    data: dict[str, Any] = {"name": _name(reader, place), "pools": [task.pool for task in tasks]}
    data["program"] = _program(reader, tasks)
    if any(task.role is Role.REDUCER for task in tasks):
        data["strategy"] = {"kind": "reduction_server"}
    return Imported(built(data, source, reader.line(place)), tuple(reader.remarks))


def _with_reducers_that_serve(reader: DocumentReader, tasks: list[_Task]) -> list[_Task]:
    """Removes the reducers if there is only one trainer, because they would have no gradients to sum."""
    pool = next((task for task in tasks if task.role is Role.REDUCER), None)
    if pool is None:
        return tasks
    if sum(task.pool["replicas"] * max(1, task.pool.get("gpus", 0)) for task in tasks if task.role.trains) > 1:
        reader.remark("reducers run the program too, where `torchyard_roles.join()` makes them serve.", pool.place)
        return tasks
    count = pool.pool["replicas"]
    what = f"{count} reducers are left out: they sum" if count > 1 else "the reducer is left out: it sums"
    reader.remark(f"{what} the gradients of 2 trainers or more, and this job has one.", pool.place)
    return [task for task in tasks if task is not pool]


def _set_lines(reader: DocumentReader, place: Place, line: int) -> None:
    """Sets the line number of a location and of all keys below it to `line`, the line of the flag."""
    composed = reader.document.composed
    for inner in [key for key in composed.key_lines if key[: len(place)] == place]:
        composed.key_lines[inner] = line
    composed.key_lines[place] = line


def _find(reader: VertexDocument) -> Place:
    """Returns the location of the list of pools. Raises FileProblem if there is no pool."""
    if isinstance(reader.data, list):
        return ()
    around: Place = ()
    for name in ("trialJobSpec", "jobSpec", "customJobSpec"):
        inner = reader.key(around, name)
        if inner[-1] in reader.block(around):
            reader.leave_beyond(around, (name, "displayName"), _CLOUDS)
            around = inner
            break
    found = reader.key(around, "workerPoolSpecs")
    reader.leave_beyond(around, ("workerPoolSpecs", "displayName"), _CLOUDS)
    if not reader.items(found):
        reader.stop("there is no worker pool.", found, f"Allowed are one to four: {POSITIONS}.")
    return found


def _name(reader: VertexDocument, place: Place) -> str:
    named = reader.text(reader.key((), "displayName")) if place else None
    return named.strip()[:100] if named and named.strip() and named.strip().isprintable() else "vertex-job"


def _task(reader: VertexDocument, place: Place, position: int) -> _Task | None:
    """Reads the pool at a position. Returns None for an empty pool."""
    spec = reader.block(place)
    counted = reader.key(place, "replicaCount")
    if not spec:
        return None
    replicas = reader.whole(counted, 1)
    if position == 0 and replicas != 1:
        reader.stop(
            f"worker pool 0 has replicaCount {replicas}.",
            counted,
            "Allowed is 1: it is the primary. More replicas go into pool 1.",
        )
    if not replicas:
        return None
    reader.leave_beyond(place, _SPEC_KEYS, _HOSTS_OWN)
    image = reader.text(reader.key(reader.key(place, "containerSpec"), "imageUri")) or ""
    role = (Role.CHIEF, Role.WORKER, Role.REDUCER if "reductionserver" in image else Role.PS, Role.EVALUATOR)[position]
    pool = {"name": POOL_NAMES[role], "role": role.value, "replicas": replicas, **_machine(reader, place, role)}
    task = _Task(role, place, pool, image)
    _runs(reader, place, task)
    if role is Role.EVALUATOR and replicas > 1:
        reader.remark(f"these are {replicas} evaluators; TensorFlow expects at most one.", counted)
    return task


def _machine(reader: VertexDocument, place: Place, role: Role) -> dict[str, Any]:
    spec = reader.key(place, "machineSpec")
    kind = reader.key(spec, "machineType")
    name = reader.text(kind)
    pool_data = read_sizes(reader, machine(name), kind) if name is not None else {}
    pool_data |= read_gpus(reader, reader.key(spec, "acceleratorType"), reader.key(spec, "acceleratorCount"))
    reader.leave_beyond(spec, ("machineType", "acceleratorType", "acceleratorCount"), _HOSTS_OWN)
    leave_gpus_of_servers(reader, pool_data, role, reader.key(spec, "acceleratorType"))
    return pool_data


def _runs(reader: VertexDocument, place: Place, task: _Task) -> None:
    """Reads the container or the Python package that the replicas of a pool run."""
    container, package = reader.key(place, "containerSpec"), reader.key(place, "pythonPackageSpec")
    if reader.block(container) and reader.block(package):
        hint = "Allowed is one of `containerSpec` and `pythonPackageSpec`"
        if task.role is Role.REDUCER:
            hint += ": pool 2 holds parameter servers or reducers, not both"
        reader.stop("the pool runs two things.", package, f"{hint}.")
    if reader.block(container):
        reader.leave_beyond(container, ("imageUri", "command", "args", "env"), {})
        left = f"the image {task.image} is left out: Torchyard runs no containers; what it holds must be on the hosts."
        if task.image and task.role is not Role.REDUCER and left not in {one.message for one in reader.remarks}:
            reader.remark(left, reader.key(container, "imageUri"))
        task.command = reader.words(reader.key(container, "command"))
    if reader.block(package):
        reader.leave_beyond(
            package,
            ("executorImageUri", "pythonModule", "script", "args", "env"),
            dict.fromkeys(
                ("packageUris", "localPackagePath"), "the folder `program.workdir` is sent to every host"
            )
            | dict.fromkeys(("outputImageUri",), "Torchyard runs no containers")
            | dict.fromkeys(("requirements", "extraPackages", "extraDirs"), "see `program.setup`"),
        )  # fmt: skip
        executor = reader.text(reader.key(package, "executorImageUri")) or ""
        task.torch = "pytorch" in executor
        task.module = reader.text(reader.key(package, "pythonModule")) or None
        task.script = reader.text(reader.key(package, "script")) or None
    runs = container if reader.block(container) else package
    task.args = reader.words(reader.key(runs, "args"))
    listed = reader.key(runs, "env")
    for number in range(len(reader.items(listed))):
        name = reader.text((*listed, number, "name"))
        if not name:
            reader.stop("an entry of `env` has no `name`.", (*listed, number), "Allowed are `name` and `value`.")
        if is_reserved(name) or not is_variable_name(name):
            why = "Torchyard itself sets it" if is_reserved(name) else "the name is not valid in a shell"
            reader.remark(f"{name} is left out of `env`: {why}.", (*listed, number))
            continue
        task.env[name] = reader.text((*listed, number, "value")) or ""


def _program(reader: VertexDocument, tasks: list[_Task]) -> dict[str, Any]:
    """Returns the program of all pools. Arguments and variables that differ are added to the pools themselves."""
    reduces = any(task.role is Role.REDUCER for task in tasks)
    # Vertex AI provides the program that reducers run.
    tasks = [task for task in tasks if task.role is not Role.REDUCER]
    first = tasks[0]
    for task in tasks[1:]:
        if (task.command, task.module, task.script) != (first.command, first.module, first.script):
            reader.remark(
                f"pool `{task.pool['name']}` runs something else than the primary; a topology has one program, "
                "so the primary's is taken: let it branch by its role.",
                task.place,
            )
    common = first.args if all(task.args[: len(first.args)] == first.args for task in tasks) else []
    shared = {name: value for name, value in first.env.items() if all(task.env.get(name) == value for task in tasks)}
    for task in tasks:
        if own := task.args[len(common) :]:
            task.pool["args"] = own
        if different := {name: value for name, value in task.env.items() if name not in shared}:
            task.pool["env"] = different
    args = {"args": list(common)} if common else {}
    env = {"env": shared} if shared else {}
    if first.module is not None:
        return of_module(first.module, common, torch=first.torch) | env
    if first.script is not None and not first.torch:
        first.command = [PYTHON, first.script]
    elif first.script is not None:
        return {"script": first.script} | args | env
    if first.command:
        return {"launcher": "command", "command": first.command} | args | env
    return missing_program(reader.remarks, command=not reduces) | args | env


def write(topology: Topology, options: ExportOptions = DEFAULT_OPTIONS) -> Exported:
    """Writes a CustomJob with `displayName` and `jobSpec`, or the flags of a command.

    Raises UsageError for a topology with both parameter servers and reducers.
    """
    form = options.form or FORMS[0]
    if count_of(topology, Role.PS) and count_of(topology, Role.REDUCER):
        message = "Vertex AI's pool 2 holds parameter servers or reducers, not both, and this topology has both."
        raise UsageError(message, code="no_such_thing", hint="Remove the pools of one of the two roles.")
    remarks: list[Remark] = []
    if count_of(topology, Role.REDUCER) and topology.strategy.kind is StrategyKind.DILOCO:
        what = "DiLoCo's reducers average groups, which the service's reducers cannot: they are written as servers."
        remarks.append(Remark(what))
    pools = role_pools(topology, remarks, *Role)
    runs = _Programs(topology, options, remarks)
    specs: list[dict[str, Any]] = [{}, {}, {}, {}]
    for pool in pools:
        position = {Role.CHIEF: 0, Role.WORKER: 1, Role.EVALUATOR: 3}.get(pool.role, 2)
        specs[position] = _spec(pool, remarks) | runs.of(pool)
    while specs and not specs[-1]:
        specs.pop()
    sizes = ("machine", "cpus", "memory_gb", "gpus", "gpu_model", "gpu_memory_gb", "args", "env")
    carried = ("script", "module", "command", "args", "env", "python")
    remarks += omission_remarks(topology, pool=sizes, program=carried, filled=())
    job = {"displayName": topology.name, "jobSpec": {"workerPoolSpecs": specs}}
    if form == "flags":
        return Exported(_flags(topology, specs, remarks), tuple(remarks))
    if form == "json":
        return Exported(json.dumps(job, indent=2, ensure_ascii=False) + "\n", tuple(remarks))
    remarks.append(
        Remark("this is a CustomJob; `gcloud … --config` takes what stands below `jobSpec`, and `--display-name`.")
    )
    return Exported(dump_yaml(job), tuple(remarks))


def _flags(topology: Topology, specs: list[dict[str, Any]], remarks: list[Remark]) -> str:
    """Returns the `gcloud` command with one `--worker-pool-spec` flag per pool.

    Flags cannot express environment variables, and have only one list of arguments for all pools. Adds remarks about
    what is lost.
    """
    plain: dict[str, Any] = {"displayName": shlex.quote(topology.name), "workerPoolSpecs": specs}
    for spec in specs:
        for block in ("containerSpec", "pythonPackageSpec"):
            content = spec.get(block, {})
            if content.pop("env", None):
                remarks.append(Remark("flags have no place for `env`: use the YAML form."))
            for key in ("command", "args"):
                given = content.get(key, [])
                if given and given != plain.setdefault(key, given):
                    remarks.append(Remark(f"flags have one list of `{key}` for all pools, the primary's: use YAML."))
    return as_flags(plain)


def _spec(pool: Pool, remarks: list[Remark]) -> dict[str, Any]:
    gpus = written_gpus(pool, remarks)
    name = pool.machine or _machine_for(pool, gpus, remarks)
    spec: dict[str, Any] = {"machineType": machine(name).machine}
    if gpus is not None:
        spec |= {"acceleratorType": gpus[0], "acceleratorCount": gpus[1]}
    return {"machineSpec": spec, "replicaCount": pool.replicas}


def _machine_for(pool: Pool, gpus: tuple[str, int] | None, remarks: list[Remark]) -> str:
    """Returns a machine type for a pool: the type with the pool's GPUs built in, or an n1 type.

    The n1 type is the smallest with the pool's CPUs and memory, or the largest if none suffices. For a pool without
    requirements, it is DEFAULT_MACHINE.
    """
    cpus, memory = pool.cpus or 0, pool.memory_gb or 0
    if gpus is not None and (built_in := machine_with(*gpus)) is not None:
        name = built_in
    elif not cpus and not memory:
        name = DEFAULT_MACHINE
    else:
        sizes = [(size, series) for size in (2, 4, 8, 16, 32, 64, 96) for series in ("highcpu", "standard", "highmem")]
        made = (f"n1-{series}-{size}" for size, series in sizes)
        able = (one for one in made if (machine(one).cpus or 0) >= cpus and (machine(one).memory_gb or 0) >= memory)
        name = next(able, "n1-highmem-96")
    remarks.append(Remark(f"pool `{pool.name}` names no machine: {name} was chosen."))
    return name


class _Programs:
    """The programs of pools, in the form that Vertex AI uses."""

    def __init__(self, topology: Topology, options: ExportOptions, remarks: list[Remark]) -> None:
        self._program = topology.program
        self._reducers_run_program = topology.strategy.kind is StrategyKind.DILOCO
        self._image = options.image or IMAGE
        self._remarks = remarks
        # A module is exported as a Python package, and any other program as the command of a container.
        self._module = bool(self._program.module) or _runs_module(topology)
        if not options.image:
            what = "with the interpreter that runs the package" if self._module else "that holds program and packages"
            remarks.append(Remark(f"`{IMAGE}` stands for an image {what}; set Image, or `--image`."))

    def of(self, pool: Pool) -> dict[str, Any]:
        env = self._program.env | pool.env
        listed = {"env": [{"name": name, "value": value} for name, value in env.items()]} if env else {}
        if pool.role is Role.REDUCER and not self._reducers_run_program:
            return {"containerSpec": {"imageUri": REDUCER_IMAGE}}
        if self._module:
            module, args = as_module(self._program, [])
            args = [*args, *pool.args]
            package: dict[str, Any] = {"executorImageUri": self._image, "pythonModule": module}
            return {"pythonPackageSpec": package | ({"args": args} if args else {}) | listed}
        line = words(self._program)
        given = [*self._program.args, *pool.args]
        command = line[: len(line) - len(self._program.args)]
        container: dict[str, Any] = {"imageUri": self._image, "command": command}
        return {"containerSpec": container | ({"args": given} if given else {}) | listed}


def _runs_module(topology: Topology) -> bool:
    command = topology.program.command
    return topology.program.launcher is Launcher.COMMAND and len(command) == 3 and command[1] == "-m"


KEY = "worker_pool_specs"
_NAMED = re.compile(rf"\b{KEY}\b")
_IMAGES = ("image_uri", "executor_image_uri", "output_image_uri", "package_uris", "disk_spec", "nfs_mounts")
"""Keys whose values may be computed by the script, because the import does not need the exact values."""


def is_in_script(text: str) -> bool:
    """Returns whether the pools are written in Python, in text that is neither YAML nor JSON."""
    return bool(_NAMED.search(text)) and is_script(text)


def job_of_script(text: str, source: str) -> Document:
    """Returns the pools that a script defines, and the job's name if it is a literal.

    Raises FileProblem if there are no pools, or if the script computes them.
    """
    script = PythonText(text, source)
    pools = script.find([KEY])
    if pools is None:
        refuse(source, 1, f"no statement here gives `{KEY}` a value.", f"Paste `{KEY} = [{{…}}, …]`.")
    name = script.find(["display_name"])
    fields = {KEY: pools, "display_name": name} if isinstance(name, ast.Constant) else {KEY: pools}
    keys: list[ast.expr | None] = [ast.copy_location(ast.Constant(key), one) for key, one in fields.items()]
    return script.document(ast.copy_location(ast.Dict(keys, list(fields.values())), pools), _IMAGES)
