"""Google Cloud ML Engine's `config.yaml`: a `trainingInput` with a scale tier, or with machine types by role.

Source: the REST resource `projects.jobs#TrainingInput`, which has the same structure as the file.
"""

from __future__ import annotations

import re
from typing import Any

from torchyard_core.interop.document_reader import DocumentReader, Imported, built
from torchyard_core.interop.document_writer import DEFAULT_OPTIONS, Exported, ExportOptions, omission_remarks
from torchyard_core.interop.format_detection import expect
from torchyard_core.interop.google_machines import (
    leave_gpus_of_servers,
    read_gpus,
    read_sizes,
    remark_on_sizes,
    written_gpus,
)
from torchyard_core.interop.program_conversion import as_module, missing_program, of_module, role_pools
from torchyard_core.interop.remarks import Remark
from torchyard_core.problems import Place, did_you_mean, nearest
from torchyard_core.topology.document.edits import POOL_NAMES
from torchyard_core.topology.machine_types import Machine, cloudml_machines, machine, machine_with
from torchyard_core.topology.model import Launcher, Pool, Role, TfMasterName, Topology
from torchyard_core.topology.strategies.presets import Preset, presets_of
from torchyard_core.yaml_io.parser import ParsedYaml
from torchyard_core.yaml_io.writer import dump_yaml

ALLOWED = "`trainingInput` with a `scaleTier`"
TIERS = ("BASIC", "STANDARD_1", "PREMIUM_1", "BASIC_GPU", "CUSTOM")
ROLES = {"master": Role.CHIEF, "worker": Role.WORKER, "parameterServer": Role.PS, "evaluator": Role.EVALUATOR}
"""CloudML's names of roles. Keys such as `masterType`, `workerConfig` and `parameterServerCount` begin with them."""
_NO_TPUS = "Torchyard runs on GPUs and CPUs"
_CARRIED = ("scaleTier", "pythonModule", "args", "useChiefInTfConfig")
_LEFT = {
    "packageUris": "the folder `program.workdir` is sent to every host",
    "region": "your hosts are where they are",
    "jobDir": "outputs stay on the hosts until they are fetched",
    "runtimeVersion": "your hosts have their own TensorFlow",
    "pythonVersion": "your hosts have their own Python; see `program.python`",
    "hyperparameters": "each trial is a run of its own, with `args` of its own",
    "scheduling": "a run may take as long as it takes",
    "encryptionConfig": "it is that cloud's",
    "network": "it is that cloud's",
    "serviceAccount": "it is that cloud's",
    "enableWebAccess": "it is that cloud's",
}
_OUTSIDE = {"labels": "they are that cloud's", "jobId": "runs get their own"} | dict.fromkeys(
    ("etag", "createTime", "startTime", "endTime", "state", "errorMessage", "trainingOutput"), "it is that cloud's"
)


def read(text: str, source: str = "config.yaml") -> Imported:
    """Reads a job. Raises FileProblem for text that is not a CloudML job, for an invalid job, and for TPUs."""
    expect("cloudml", text, source, ALLOWED)
    reader = DocumentReader.of(text, source)
    _in_camel_case(reader.document.composed)
    job: Place = ("trainingInput",) if "trainingInput" in reader.block(()) else ()
    if job:
        reader.leave((), ("trainingInput",), _OUTSIDE)
    if not reader.block(job):
        reader.stop("`trainingInput` is empty.", job, f"Allowed is a `scaleTier`: {', '.join(TIERS)}.")
    carried = [*_CARRIED, *(f"{word}{what}" for word in ROLES for what in ("Type", "Config", "Count"))]
    reader.leave(job, carried, _LEFT)
    tier = (reader.text((*job, "scaleTier")) or "BASIC").upper()
    if "TPU" in tier:
        reader.stop(f"{tier} is on a TPU; {_NO_TPUS}.", (*job, "scaleTier"), f"Allowed: {', '.join(TIERS)}.")
    if tier not in TIERS:
        meant = nearest(tier, TIERS)
        reader.stop(f"there is no scale tier {tier}.", (*job, "scaleTier"), meant or f"Allowed: {', '.join(TIERS)}.")
    pools = _custom(reader, job) if tier == "CUSTOM" else _of_tier(reader, job, tier)
    remark_on_sizes(reader, pools)
    data = {"name": "cloudml-job", "pools": pools, "program": _program(reader, job)}
    return Imported(built(data, source, reader.line(job)), tuple(reader.remarks))


def _in_camel_case(composed: ParsedYaml) -> None:
    """Renames keys such as `scale_tier` to `scaleTier`, because CloudML accepts both spellings."""
    composed.data = _renamed(composed.data)
    tables: tuple[dict[Place, Any], ...] = (composed.spans, composed.key_lines, composed.written)
    for table in tables:
        renamed = {
            tuple(_camel(step) if isinstance(step, str) else step for step in at): one for at, one in table.items()
        }
        table.clear()
        table.update(renamed)


def _renamed(value: Any) -> Any:
    if isinstance(value, list):
        return [_renamed(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {key if _camel(key) in value else _camel(key): _renamed(one) for key, one in value.items()}


def _camel(key: str) -> str:
    return re.sub(r"(?<=[a-z0-9])_([a-z])", lambda match: match[1].upper(), key)


def _of_tier(reader: DocumentReader, job: Place, tier: str) -> list[dict[str, Any]]:
    """Returns the pools of a scale tier, which determines machine types and counts.

    Raises FileProblem if the job also specifies machine types or counts itself.
    """
    for word in ROLES:
        for what in ("Type", "Count"):
            if f"{word}{what}" in reader.block(job):
                reader.stop(f"`{word}{what}` goes with scaleTier CUSTOM; {tier} has its own.", (*job, f"{word}{what}"))
    return [dict(pool.data) for pool in _tier_preset(tier).pools]


def _tier_preset(tier: str) -> Preset:
    return next(preset for preset in presets_of("scale tiers") if preset.title == tier)


def _custom(reader: DocumentReader, job: Place) -> list[dict[str, Any]]:
    pools = []
    for word, role in ROLES.items():
        kind, count = (*job, f"{word}Type"), (*job, f"{word}Count")
        if role is Role.CHIEF:
            if count[-1] in reader.block(job):
                reader.stop("there is one master always.", count, "Leave `masterCount` out.")
            if reader.text(kind) is None and not reader.block((*job, "masterConfig")):
                reader.stop("scaleTier CUSTOM needs a `masterType`.", (*job, "scaleTier"), _types_hint())
        number = 1 if role is Role.CHIEF else reader.whole(count, 0)
        if not number:
            if reader.text(kind) is not None:
                reader.remark(f"`{kind[-1]}` has no `{count[-1]}`: no pool is made.", kind)
            continue
        if reader.text(kind) is None:
            reader.stop(f"`{count[-1]}` needs a `{kind[-1]}`.", count, _types_hint())
        pool = {"name": POOL_NAMES[role], "role": role.value, "replicas": number}
        pools.append(pool | _machine(reader, kind, (*job, f"{word}Config"), role))
    return pools


def _types_hint() -> str:
    return f"Allowed are {', '.join(one.name for one in cloudml_machines())}, and GCE's, like n1-standard-4."


def _machine(reader: DocumentReader, kind: Place, config: Place, role: Role) -> dict[str, Any]:
    """Returns the keys of a pool for a machine type and a configuration. Raises FileProblem for an unknown type."""
    name = reader.text(kind) or ""
    known = machine(name)
    if known.cpus is None and "-" not in name:
        if "tpu" in name:
            reader.stop(f"{name} is a TPU; {_NO_TPUS}.", kind, _types_hint())
        # Compute Engine's names of machine types contain a dash, and CloudML's own names do not.
        meant = did_you_mean(name, [one.name for one in cloudml_machines()])
        reader.stop(f"there is no machine type `{name}`{meant or '.'}", kind, _types_hint())
    pool_data = read_sizes(reader, known, kind)
    if config[-1] in reader.block(config[:-1]):
        accelerator = (*config, "acceleratorConfig")
        pool_data |= read_gpus(reader, (*accelerator, "type"), (*accelerator, "count"))
        reader.leave(
            config,
            ("acceleratorConfig",),
            dict.fromkeys(("imageUri", "containerCommand", "containerArgs"), "Torchyard runs no containers")
            | dict.fromkeys(("diskConfig", "tpuTfVersion"), "it is that cloud's"),
        )
    leave_gpus_of_servers(reader, pool_data, role, kind)
    return pool_data


def _program(reader: DocumentReader, job: Place) -> dict[str, Any]:
    module, args = reader.text((*job, "pythonModule")), reader.words((*job, "args"))
    if not module:
        program = missing_program(reader.remarks, command=True) | ({"args": args} if args else {})
    else:
        program = of_module(module, args, torch=False)
    # By default, CloudML's TF_CONFIG calls the chief `master`.
    says_chief = (reader.text((*job, "useChiefInTfConfig")) or "").lower() == "true"
    return program if says_chief else program | {"tf_master_name": "master"}


def write(topology: Topology, options: ExportOptions = DEFAULT_OPTIONS) -> Exported:
    """Writes a `config.yaml` with the scale tier that has the same pools, or with the tier CUSTOM if none has."""
    remarks: list[Remark] = []
    if any(pool.role is Role.REDUCER for pool in topology.pools):
        remarks.append(Remark("reducers are not carried over: CloudML has parameter servers only."))
    pools = role_pools(topology, remarks, *ROLES.values())
    tier = _tier_of(pools)
    job: dict[str, Any] = {"scaleTier": tier}
    if tier == "CUSTOM":
        words = {role: word for word, role in ROLES.items()}
        for pool in pools:
            job |= _written_pool(pool, words[pool.role], remarks)
    module, args = as_module(topology.program, remarks)
    job["pythonModule"] = module
    if args:
        job["args"] = args
    if topology.program.tf_master_name is TfMasterName.CHIEF and len(pools) > 1:
        job["useChiefInTfConfig"] = True
    remarks.append(Remark("`region`, `packageUris` and `runtimeVersion` are given to `gcloud` with the job."))
    if topology.program.launcher is Launcher.TORCH and len(pools) > 1:
        remarks.append(Remark("CloudML sets TF_CONFIG, not torchrun's environment: the program must read that."))
    sizes = ("machine", "cpus", "memory_gb", "gpus", "gpu_model", "gpu_memory_gb")
    carried = ("script", "module", "command", "args", "tf_master_name")
    remarks += omission_remarks(topology, pool=sizes, program=carried, filled=())
    return Exported(dump_yaml({"trainingInput": job}), tuple(remarks))


def _tier_of(pools: list[Pool]) -> str:
    """Returns the scale tier with exactly these roles, counts, machine types and GPUs, or `CUSTOM` if none has them."""
    if len(pools) > 1 or pools[0].machine is not None:
        signature = [(pool.role, pool.replicas, pool.machine, pool.gpus) for pool in pools]
        for tier in TIERS[:-1]:
            preset_pools = _tier_preset(tier).pools
            if signature == [(pool.role, pool.replicas, pool.data.get("machine"), pool.gpus) for pool in preset_pools]:
                return tier
    return "CUSTOM"


def _written_pool(pool: Pool, word: str, remarks: list[Remark]) -> dict[str, Any]:
    named = machine(pool.machine) if pool.machine is not None else None
    fits = named is not None and (named.cpus is not None or "-" in named.name)
    chosen = named if named is not None and fits else _smallest(pool)
    if not fits:
        made_for = machine_with(*gpus) if (gpus := written_gpus(pool, [])) is not None else None
        name = made_for or chosen.name
        remarks.append(Remark(f"pool `{pool.name}`: {name} was chosen, the smallest that has what it asks for."))
    pool_data: dict[str, Any] = {f"{word}Type": chosen.name}
    gpus = written_gpus(pool, [] if chosen.gpus else remarks)
    if gpus is not None and (chosen.gpus, chosen.gpu_model) != (pool.gpus, pool.gpu_model):
        if chosen.gpus and pool.gpu_model is None and chosen.gpus == pool.gpus:
            return _counted(pool_data, pool, word)
        # Accelerators can be added only to Compute Engine's machine types, some of which have them built in.
        pool_data[f"{word}Type"] = chosen.machine if fits else machine_with(*gpus) or chosen.machine
        pool_data[f"{word}Config"] = {"acceleratorConfig": {"count": gpus[1], "type": gpus[0]}}
    return _counted(pool_data, pool, word)


def _counted(pool_data: dict[str, Any], pool: Pool, word: str) -> dict[str, Any]:
    return pool_data if pool.role is Role.CHIEF else pool_data | {f"{word}Count": pool.replicas}


def _smallest(pool: Pool) -> Machine:
    """Returns the smallest CloudML machine type that satisfies a pool, or `complex_model_l` if none does."""
    takes_gpus = pool.gpus and pool.role is not Role.PS
    models = {one.gpu_model for one in cloudml_machines() if one.gpus}
    built_in = takes_gpus and (pool.gpu_model is None or pool.gpu_model in models)

    def able(one: Machine) -> bool:
        if bool(one.gpus) != bool(built_in):
            return False
        if built_in and (one.gpus < pool.gpus or (pool.gpu_model is not None and one.gpu_model != pool.gpu_model)):
            return False
        return (one.cpus or 0) >= (pool.cpus or 0) and (one.memory_gb or 0) >= (pool.memory_gb or 0)

    by_size = sorted(cloudml_machines(), key=lambda one: (one.gpus, one.cpus or 0, one.memory_gb or 0))
    return next((one for one in by_size if able(one)), machine("complex_model_l"))
