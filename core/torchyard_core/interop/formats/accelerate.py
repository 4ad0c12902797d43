"""Import of Hugging Face Accelerate's configuration file, which `accelerate config` writes.

The script gets the environment variables that `accelerate launch` sets for it (Accelerate 1.15), including those of
FSDP and DeepSpeed. Torchyard chooses addresses, ports and ranks itself.
"""

from __future__ import annotations

from typing import Any

from torchyard_core.interop.document_reader import DocumentReader, Imported, built
from torchyard_core.interop.format_detection import expect
from torchyard_core.interop.program_conversion import missing_program

ALLOWED = "`distributed_type`, `num_machines` and `num_processes`"
TYPES = ("NO", "MULTI_CPU", "MULTI_GPU", "FSDP", "DEEPSPEED")
"""The values of `distributed_type` that can be imported."""
PRECISIONS = ("no", "fp16", "bf16")
_YES, _NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_CHOSEN = "Torchyard chooses it at launch"
_LEFT = {
    "machine_rank": "ranks follow the placement",
    "main_process_ip": _CHOSEN,
    "main_process_port": _CHOSEN,
    "rdzv_backend": "Torchyard starts the ranks itself",
    "same_network": "Torchyard starts the ranks itself",
    "main_training_function": "it is for TPUs",
    "downcast_bf16": "it is for TPUs",
    **dict.fromkeys(("tpu_name", "tpu_zone", "tpu_env", "tpu_vm", "command_file", "commands"), "it is for TPUs"),
    **dict.fromkeys(("tpu_use_cluster", "tpu_use_sudo"), "it is for TPUs"),
    "ipex_config": "Accelerate 1.15 does not read it",
    "use_mps_device": "Accelerate 1.15 does not read it",
}
"""The keys that are not imported, each with the reason."""
_SILENT = {
    "machine_rank": ("0",),
    "main_process_ip": (),
    "main_process_port": (),
    "rdzv_backend": ("static",),
    "same_network": _YES + _NO,
    "main_training_function": ("main",),
    "downcast_bf16": _NO,
    "tpu_use_cluster": _NO,
    "tpu_use_sudo": _NO,
}
"""Values of each key that have no effect. Neither these values nor empty values get a remark."""
_REFUSED = ("fp8_config", "parallelism_config", "megatron_lm_config", "mpirun_config", "tpu_config")
"""Blocks that are refused, because they have no equivalent and change what is computed."""
_FSDP: dict[str, tuple[str, str | None]] = {
    "fsdp_version": ("FSDP_VERSION", "1"),
    "fsdp_sharding_strategy": ("FSDP_SHARDING_STRATEGY", "FULL_SHARD"),
    "fsdp_reshard_after_forward": ("FSDP_RESHARD_AFTER_FORWARD", "true"),
    "fsdp_offload_params": ("FSDP_OFFLOAD_PARAMS", "false"),
    "fsdp_min_num_params": ("FSDP_MIN_NUM_PARAMS", "100000000"),
    "fsdp_auto_wrap_policy": ("FSDP_AUTO_WRAP_POLICY", None),
    "fsdp_transformer_layer_cls_to_wrap": ("FSDP_TRANSFORMER_CLS_TO_WRAP", None),
    "fsdp_backward_prefetch": ("FSDP_BACKWARD_PREFETCH", None),
    "fsdp_state_dict_type": ("FSDP_STATE_DICT_TYPE", None),
    "fsdp_forward_prefetch": ("FSDP_FORWARD_PREFETCH", "false"),
    "fsdp_use_orig_params": ("FSDP_USE_ORIG_PARAMS", "true"),
    "fsdp_cpu_ram_efficient_loading": ("FSDP_CPU_RAM_EFFICIENT_LOADING", "true"),
    "fsdp_sync_module_states": ("FSDP_SYNC_MODULE_STATES", "true"),
    "fsdp_activation_checkpointing": ("FSDP_ACTIVATION_CHECKPOINTING", "false"),
    "fsdp_activation_checkpointing_offload": ("FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD", "false"),
    "fsdp_ignored_modules": ("FSDP_IGNORED_MODULES", None),
}
"""Maps each key of `fsdp_config` to the variable that `accelerate launch` sets from it, and to its default value."""
_DEEPSPEED = {
    "zero_stage": "ACCELERATE_DEEPSPEED_ZERO_STAGE",
    "gradient_accumulation_steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    "gradient_clipping": "ACCELERATE_GRADIENT_CLIPPING",
    "offload_optimizer_device": "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
    "offload_param_device": "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE",
    "zero3_init_flag": "ACCELERATE_DEEPSPEED_ZERO3_INIT",
    "zero3_save_16bit_model": "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL",
    "deepspeed_config_file": "ACCELERATE_DEEPSPEED_CONFIG_FILE",
    "deepspeed_moe_layer_cls_names": "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES",
}
"""Maps each key of `deepspeed_config` to the variable that `accelerate launch` sets from it."""
_DEEPSPEED_LEFT = {
    **dict.fromkeys(
        ("deepspeed_multinode_launcher", "deepspeed_inclusion_filter", "deepspeed_exclusion_filter"),
        "Torchyard starts the processes itself",
    ),
    "deepspeed_hostfile": "import the hostfile itself with `import deepspeed`, or set `hosts`",
}
_DYNAMO = {
    "dynamo_backend": "ACCELERATE_DYNAMO_BACKEND",
    "dynamo_mode": "ACCELERATE_DYNAMO_MODE",
    "dynamo_use_fullgraph": "ACCELERATE_DYNAMO_USE_FULLGRAPH",
    "dynamo_use_dynamic": "ACCELERATE_DYNAMO_USE_DYNAMIC",
    "dynamo_use_regional_compilation": "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION",
}
"""Maps each key of `dynamo_config` to the variable that `accelerate launch` sets from it.

`accelerate config` writes some of these keys with the prefix `dynamo_` twice.
"""
_CARRIED = (
    *("compute_environment", "distributed_type", "num_machines", "num_processes", "use_cpu", "gpu_ids", "debug"),
    *("mixed_precision", "enable_cpu_affinity", "fsdp_config", "deepspeed_config", "dynamo_config", "dynamo_backend"),
)


def read(text: str, source: str = "config.yaml") -> Imported:
    """Reads a configuration file.

    Raises FileProblem for other text, for an invalid value, and for a distributed type or a block without equivalent.
    """
    expect("accelerate", text, source, ALLOWED)
    return _Configuration(DocumentReader.of(text, source), source).imported()


class _Configuration:
    """Reader of a configuration file."""

    def __init__(self, reader: DocumentReader, source: str) -> None:
        self._reader = reader
        self._source = source
        self._env: dict[str, str] = {}

    def imported(self) -> Imported:
        reader = self._reader
        kind = self._kind()
        for name in _REFUSED:
            if reader.at((name,)):
                reader.stop(f"`{name}` has no equivalent.", (name,), f"Read are the types {', '.join(TYPES)}.")
        self._precision()
        if self._flag("debug"):
            self._env["ACCELERATE_DEBUG_MODE"] = "true"
        if self._flag("enable_cpu_affinity"):
            self._env["ACCELERATE_CPU_AFFINITY"] = "1"
        if kind == "DEEPSPEED":
            self._leave_dynamo()
        else:
            self._dynamo()
        if kind == "FSDP":
            self._fsdp()
        elif kind == "DEEPSPEED":
            self._deepspeed()
        pool = self._pool(kind)
        self._leave()
        program = missing_program(reader.remarks) | ({"env": self._env} if self._env else {})
        data = {"name": "accelerate", "pools": [pool], "program": program}
        return Imported(built(data, self._source, reader.line(("distributed_type",))), tuple(reader.remarks))

    def _kind(self) -> str:
        reader = self._reader
        where = (reader.text(("compute_environment",)) or "LOCAL_MACHINE").upper()
        if where != "LOCAL_MACHINE":
            reader.stop(f"`compute_environment` is {where}.", ("compute_environment",), "Allowed is LOCAL_MACHINE.")
        # The YAML parser converts NO to false, whereas `text` returns it as written.
        kind = (reader.text(("distributed_type",)) or "NO").upper()
        kind = "NO" if kind.lower() in _NO else kind
        if kind not in TYPES:
            reader.stop(f"`distributed_type` is {kind}.", ("distributed_type",), f"Allowed are {', '.join(TYPES)}.")
        return kind

    def _pool(self, kind: str) -> dict[str, Any]:
        reader = self._reader
        machines = reader.whole(("num_machines",), 1, least=1)
        processes = reader.whole(("num_processes",), machines, least=1)
        pool: dict[str, Any] = {"name": "workers", "role": "worker"}
        if kind == "NO" and processes > 1:
            reader.stop(
                f"`num_processes` is {processes}, but the type NO is not distributed.",
                ("num_processes",),
                "With type NO there is one.",
            )
        if kind == "MULTI_CPU" or self._flag("use_cpu"):
            self._env["ACCELERATE_USE_CPU"] = "true"
            return pool | {"replicas": processes, "gpus": 0} | ({"placement": "spread"} if machines > 1 else {})
        if processes % machines:
            message = f"`num_processes` is {processes}, which is no multiple of `num_machines`, {machines}."
            reader.stop(message, ("num_processes",), f"Allowed are multiples of {machines}.")
        chosen = reader.text(("gpu_ids",)) or "all"
        if chosen != "all":
            reader.remark(
                f"`gpu_ids` {chosen} are left out: free GPUs are chosen at launch, or by `pins`.", ("gpu_ids",)
            )
        pool |= {"replicas": machines, "gpus": processes // machines}
        return pool | ({"placement": "spread"} if machines > 1 else {})

    def _precision(self) -> None:
        reader = self._reader
        precision = (reader.text(("mixed_precision",)) or "no").lower()
        precision = "no" if precision in _NO else precision
        if precision not in PRECISIONS:
            message = f"`mixed_precision` is {precision}."
            reader.stop(message, ("mixed_precision",), f"Allowed are {', '.join(PRECISIONS)}.")
        self._env["ACCELERATE_MIXED_PRECISION"] = precision

    def _dynamo(self) -> None:
        reader = self._reader
        if (backend := reader.text(("dynamo_backend",))) is not None and backend.lower() not in _NO:
            self._env["ACCELERATE_DYNAMO_BACKEND"] = backend.upper()
        block = reader.block(("dynamo_config",))
        names = {key: _DYNAMO.get(key) or _DYNAMO.get(key.removeprefix("dynamo_")) for key in block}
        for key, variable in names.items():
            value = reader.text(("dynamo_config", key))
            if variable is None or value is None:
                continue
            if variable.endswith("_BACKEND"):
                value = "NO" if value.lower() in _NO else value.upper()
            elif "_USE_" in variable:
                value = str(self._flag("dynamo_config", key))
            self._env[variable] = value
        reader.leave(("dynamo_config",), [key for key, variable in names.items() if variable], {})

    def _leave_dynamo(self) -> None:
        for key in ("dynamo_config", "dynamo_backend"):
            backend = self._reader.text((key, "dynamo_backend") if key == "dynamo_config" else (key,)) or "no"
            if backend.lower() not in _NO:
                self._reader.remark(f"`{key}` is left out: `accelerate launch` ignores it with DeepSpeed.", (key,))

    def _fsdp(self) -> None:
        reader = self._reader
        self._env["ACCELERATE_USE_FSDP"] = "true"
        values = {key: self._value("fsdp_config", key) for key in _FSDP}
        if (
            "true"
            == (values["fsdp_cpu_ram_efficient_loading"] or "true")
            != (values["fsdp_sync_module_states"] or "true")
        ):
            message = "`fsdp_cpu_ram_efficient_loading` needs `fsdp_sync_module_states`."
            reader.stop(message, ("fsdp_config",), "Accelerate refuses it too: set both, or neither.")
        for key, (variable, default) in _FSDP.items():
            value = values[key] or default
            if value is not None:
                self._env[variable] = value
        reader.leave(("fsdp_config",), _FSDP, {})

    def _deepspeed(self) -> None:
        reader = self._reader
        self._env["ACCELERATE_USE_DEEPSPEED"] = "true"
        self._env["ACCELERATE_CONFIG_DS_FIELDS"] = ",".join(reader.block(("deepspeed_config",))).lower()
        for key, variable in _DEEPSPEED.items():
            value = self._value("deepspeed_config", key)
            if value is not None:
                self._env[variable] = value
        if (file := self._value("deepspeed_config", "deepspeed_config_file")) is not None:
            message = f"{file} must be in the folder that is sent to the hosts (`program.workdir`)."
            reader.remark(message, ("deepspeed_config", "deepspeed_config_file"))
        reader.leave(("deepspeed_config",), _DEEPSPEED, _DEEPSPEED_LEFT)

    def _value(self, block: str, key: str) -> str | None:
        """Returns a value of a block as `accelerate launch` writes it, or None if there is none.

        Booleans are written as `true` and `false`.
        """
        reader = self._reader
        reader.block((block,))
        value = reader.at((block, key))
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, list):
            return ",".join(reader.words((block, key)))
        text = reader.text((block, key))
        return text.lower() if text is not None and text.lower() in ("true", "false") else text

    def _flag(self, *place: str) -> bool:
        text = (self._reader.text(place) or "false").lower()
        if text not in _YES + _NO:
            self._reader.stop(f"`{place[-1]}` is {text}.", place, "Allowed are true and false.")
        return text in _YES

    def _leave(self) -> None:
        """Adds a remark for each key that is not imported, unless its value is empty or has no effect."""
        reader = self._reader
        silent = []
        for key, value in reader.block(()).items():
            if key in (*_CARRIED, *_REFUSED):
                continue
            text = "" if value in (None, [], {}, "") else str(value).lower()
            if key in _LEFT and (not text or text in _SILENT.get(key, ())):
                silent.append(key)
        reader.leave((), (*_CARRIED, *_REFUSED, *silent), _LEFT)
