"""Registry of other systems' document formats, by their names on the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from torchyard_core.errors import UsageError
from torchyard_core.interop.document_reader import Imported
from torchyard_core.interop.document_writer import DEFAULT_OPTIONS, Exported, ExportOptions
from torchyard_core.interop.formats import (
    accelerate,
    cloudml,
    cluster_spec,
    deepspeed,
    kubernetes,
    singa,
    slurm,
    tensorflow,
    tf_config,
    torchx,
    vertex,
)
from torchyard_core.problems import Problem, nearest
from torchyard_core.topology.file import TopologyFile
from torchyard_core.topology.model import Topology


@dataclass(frozen=True)
class Format:
    """The reader and the writer of a format. `read` or `write` is None if Torchyard cannot read or write the format."""

    name: str
    title: str
    read: Callable[[str, str], Imported] | None
    write: Callable[[Topology, ExportOptions], Exported] | None
    forms: tuple[str, ...] = ()
    """The forms in which a document can be written, the default first."""
    suffix: str = ".yaml"
    takes_image: bool = False
    takes_replica: bool = False
    replica_forms: tuple[str, ...] = ()
    """The forms that describe a single replica. If this is empty and `takes_replica` is set, all forms do."""
    suffixes: Mapping[str, str] = field(default_factory=dict)
    """Suffixes of files in forms other than the default form."""

    def suffix_of(self, form: str | None) -> str:
        """Returns the file name suffix for a form of the format."""
        return self.suffixes.get(form or "", self.suffix)


FORMATS = {
    one.name: one
    for one in (
        Format("cloudml", "CloudML config.yaml", cloudml.read, cloudml.write),
        Format(
            "vertex", "Vertex AI workerPoolSpecs", vertex.read, vertex.write, vertex.FORMS,
            takes_image=True, suffixes={"json": ".json", "flags": ".sh"},
        ),
        Format(
            "cluster-spec", "CLUSTER_SPEC", cluster_spec.read, cluster_spec.write, cluster_spec.FORMS, ".json",
            takes_replica=True, suffixes={"export": ".sh"},
        ),
        Format(
            "tf-config", "TF_CONFIG", tf_config.read, tf_config.write, tf_config.FORMS, ".json",
            takes_replica=True, suffixes={"export": ".sh"},
        ),
        Format(
            "tensorflow", "TensorFlow ClusterSpec or command lines", tensorflow.read, tensorflow.write,
            tensorflow.FORMS, ".sh", takes_replica=True, replica_forms=("sparse",),
            suffixes={"cluster": ".json", "sparse": ".yaml"},
        ),
        Format("singa", "SINGA cluster", singa.read, singa.write, suffix=".conf"),
        Format("accelerate", "Accelerate's config.yaml", accelerate.read, None),
        Format("deepspeed", "DeepSpeed hostfile", deepspeed.read, None, suffix=""),
        Format("torchx", "TorchX AppDef", None, torchx.write, suffix=".py", takes_image=True),
        Format("kubernetes", "Kubernetes JobSet or Jobs", None, kubernetes.write, kubernetes.FORMS, takes_image=True),
        Format("slurm", "Slurm sbatch script", None, slurm.write, suffix=".sbatch"),
    )
}  # fmt: skip


READ = tuple(name for name, one in FORMATS.items() if one.read is not None)
"""Names of the formats that can be read."""
WRITTEN = tuple(name for name, one in FORMATS.items() if one.write is not None)
"""Names of the formats that can be written."""


def format_named(name: str, wanted: Iterable[str] = tuple(FORMATS)) -> Format:
    """Returns the format called `name`.

    Raises UsageError for an unknown name. The hint suggests the most similar of the `wanted` names, or lists all of
    them.
    """
    if name not in FORMATS:
        hint = nearest(name, wanted) or f"There are {', '.join(wanted)}."
        raise UsageError(f"there is no format {name}.", code="no_format", hint=hint)
    return FORMATS[name]


def read_foreign(name: str, text: str, source: str) -> Imported:
    """Reads a document of the format `name` as a topology.

    Raises:
        UsageError: The format has no reader.
        FileProblem: The document is invalid.
    """
    chosen = format_named(name, READ)
    if chosen.read is None:
        hint = f"These are read: {', '.join(READ)}."
        raise UsageError(f"{chosen.title} is written only.", code="no_format", hint=hint)
    return chosen.read(text, source)


def problems_of_export(file: TopologyFile) -> list[Problem]:
    """Returns the problems of a topology that is to be exported. Errors prevent the export.

    A missing working folder or script is not a problem.
    """
    return [problem for problem in file.check() if problem.code not in ("workdir-missing", "script-missing")]


def write_foreign(name: str, topology: Topology, options: ExportOptions = DEFAULT_OPTIONS) -> Exported:
    """Writes a topology as a document of the format `name`.

    Raises UsageError for a format without a writer, for a form or an option that the format does not have, or if the
    format cannot express the topology.
    """
    chosen = format_named(name, WRITTEN)
    if chosen.write is None:
        hint = f"These are written: {', '.join(WRITTEN)}."
        raise UsageError(f"{chosen.title} is read only.", code="no_format", hint=hint)
    if options.form is not None and options.form not in chosen.forms:
        allowed = f"It is written as {', '.join(chosen.forms)}." if chosen.forms else "It has one form only."
        raise UsageError(f"{chosen.title} has no form {options.form}.", code="no_format", hint=allowed)
    if options.image is not None and not chosen.takes_image:
        raise UsageError(f"{chosen.title} names no container image.", code="no_format", hint="Leave `--image` out.")
    if options.replica is not None and not chosen.takes_replica:
        raise UsageError(f"{chosen.title} is one for all replicas.", code="no_format", hint="Leave `--replica` out.")
    return chosen.write(topology, options)
