"""Files of sharded models in a checkpoint's folder, in the format of torch.distributed.checkpoint (DCP).

    .metadata         names, shapes and locations of all tensors
    __0_0.distcp …    the part that each rank wrote

Tensors are named `model.<name>` and `optimizer.state.<number>.<name>` or, with several optimizers,
`optimizer.optimizers.<number>.state.…`. DCP unpickles .metadata, which could run code, so the file is read with an
unpickler that allows only the classes that DCP's metadata contains.
"""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

METADATA = ".metadata"
SUFFIX = ".distcp"
MODEL = "model"
OPTIMIZER = "optimizer"
_STATE = re.compile(r"optimizer\.(?:optimizers\.(\d+)\.)?state\.(\d+)\.(.+)")
_MODULES = ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem")
_CLASSES = {("torch", "Size"), ("torch.serialization", "_get_layout"), ("collections", "OrderedDict")}


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module in _MODULES and "." not in name) or (module, name) in _CLASSES:
            found = super().find_class(module, name)
            if (isinstance(found, type) and found.__module__ == module) or (module, name) in _CLASSES:
                return found
        if module.partition(".")[0] == "pathlib":
            # The metadata contains the path of the folder in which it was written. The path is not used.
            return PurePath
        if module == "torch":
            import torch

            if isinstance(getattr(torch, name, None), torch.dtype):
                return getattr(torch, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not allowed in {METADATA}")


def reader(folder: Path) -> Any:
    """Returns DCP's reader of a folder, with a safe unpickler for the metadata."""
    from torch.distributed.checkpoint import FileSystemReader

    class Reader(FileSystemReader):  # type: ignore[misc]  # torch exports the class without its type.
        def read_metadata(self, *arguments: Any, **named: Any) -> Any:
            metadata = read_metadata(folder)
            metadata.storage_meta = None
            return metadata

    return Reader(folder)


def read_metadata(folder: Path) -> Any:
    """Returns DCP's metadata. Raises OSError, pickle.UnpicklingError, or another exception if the file is damaged."""
    from torch.distributed.checkpoint.metadata import Metadata

    with (folder / METADATA).open("rb") as file:
        metadata = _MetadataUnpickler(file).load()
    if not isinstance(metadata, Metadata):
        raise pickle.UnpicklingError(f"{METADATA} contains no metadata")
    return metadata


def tensors_of(folder: Path) -> dict[str, Any]:
    """Returns the TensorStorageMetadata of all tensors by name."""
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    found = read_metadata(folder).state_dict_metadata.items()
    return {name: each for name, each in found if isinstance(each, TensorStorageMetadata)}


def missing_files(folder: Path) -> list[str]:
    """Returns the names of files that are missing from the folder although the metadata refers to them."""
    storage = read_metadata(folder).storage_data.values()
    return sorted({str(each.relative_path) for each in storage} - {path.name for path in folder.iterdir()})


def full_model(folder: Path) -> dict[str, torch.Tensor]:
    """Returns the model's state_dict() with whole tensors."""
    prefix = f"{MODEL}."
    return {name[len(prefix) :]: value for name, value in _load_full(folder, prefix).items()}


def full_optimizer(folder: Path, rest: dict[str, Any]) -> dict[str, Any]:
    """Returns the optimizer's state_dict() with whole tensors.

    Args:
        rest: The state without the sharded tensors, from optimizer.pt.
    """
    return with_tensors(rest, _load_full(folder, f"{OPTIMIZER}."))


def with_tensors(rest: dict[str, Any], tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Inserts `tensors`, by their names in DCP, into the optimizer's state `rest`, and returns `rest`."""
    for name, value in tensors.items():
        found = _STATE.fullmatch(name)
        if found is None:
            continue
        optimizer = rest if found[1] is None else rest["optimizers"][int(found[1])]
        optimizer["state"].setdefault(int(found[2]), {})[found[3]] = value
    return rest


def split_optimizer(state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits an optimizer's state into its sharded tensors, as a dict by DCP name, and the remaining state."""
    sharded: dict[str, Any] = {}
    optimizers = state.get("optimizers")
    rests = []
    for number, each in enumerate([state] if optimizers is None else optimizers):
        prefix = f"{OPTIMIZER}." + ("" if optimizers is None else f"optimizers.{number}.")
        rest: dict[int, dict[str, Any]] = {}
        for parameter, values in each["state"].items():
            rest[parameter] = {}
            for name, value in values.items():
                if hasattr(value, "device_mesh"):
                    sharded[f"{prefix}state.{parameter}.{name}"] = value
                else:
                    rest[parameter][name] = value
        rests.append({**each, "state": rest})
    return sharded, rests[0] if optimizers is None else {"optimizers": rests}


def parameter_of(name: str, groups: list[list[dict[str, Any]]]) -> Any:
    """Returns the parameter to which a tensor of the optimizer's state belongs.

    Args:
        name: The tensor's name in DCP.
        groups: The parameter groups of each optimizer.
    """
    found = _STATE.fullmatch(name)
    if found is None:
        raise KeyError(name)
    parameters = [each for group in groups[int(found[1] or 0)] for each in group["params"]]
    return parameters[int(found[2])]


def _load_full(folder: Path, prefix: str) -> dict[str, torch.Tensor]:
    """Loads all tensors whose names begin with `prefix`, on the CPU, in this process alone."""
    import torch
    from torch.distributed import checkpoint

    whole: dict[str, torch.Tensor] = {
        name: torch.empty(each.size, dtype=each.properties.dtype, device="cpu")
        for name, each in tensors_of(folder).items()
        if name.startswith(prefix)
    }
    if whole:
        with warnings.catch_warnings():  # This suppresses DCP's warning that only one process reads.
            warnings.simplefilter("ignore")
            checkpoint.load(whole, storage_reader=reader(folder), no_dist=True)
    return whole
