"""Every foreign format by the name that the command line has for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from torchyard_core.errors import UsageError
from torchyard_core.interop.document_reader import Imported
from torchyard_core.interop.document_writer import NO_WISHES, Exported, Wishes
from torchyard_core.interop.formats import (
    cloudml,
    cluster_spec,
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
    """How to read and to write a format; None for what makes no sense with it."""

    name: str
    title: str
    read: Callable[[str, str], Imported] | None
    write: Callable[[Topology, Wishes], Exported]
    forms: tuple[str, ...] = ()
    """Ways to write it, the usual one first."""
    suffix: str = ".yaml"
    """Of the files that hold it."""
    takes_image: bool = False
    takes_replica: bool = False
    replica_forms: tuple[str, ...] = ()
    """Forms that are one replica's own; none here: all are, where `takes_replica`."""
    suffixes: Mapping[str, str] = field(default_factory=dict)
    """Of the files that hold it in another form than the usual one."""

    def suffix_of(self, form: str | None) -> str:
        """What the name of a file ends with that holds this form."""
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
        Format("torchx", "TorchX AppDef", None, torchx.write, suffix=".py", takes_image=True),
        Format("kubernetes", "Kubernetes JobSet or Jobs", None, kubernetes.write, kubernetes.FORMS, takes_image=True),
        Format("slurm", "Slurm sbatch script", None, slurm.write, suffix=".sbatch"),
    )
}  # fmt: skip


READ = tuple(name for name, one in FORMATS.items() if one.read is not None)
"""Those that are read."""


def format_named(name: str, wanted: Iterable[str] = tuple(FORMATS)) -> Format:
    """Raises UsageError where there is none; it names those that are `wanted`."""
    if name not in FORMATS:
        hint = nearest(name, wanted) or f"There are {', '.join(wanted)}."
        raise UsageError(f"there is no format {name}.", code="no_format", hint=hint)
    return FORMATS[name]


def read_foreign(name: str, text: str, source: str) -> Imported:
    """A document of a format as a topology. Raises UsageError for what is only written, FileProblem for a bad one."""
    chosen = format_named(name, READ)
    if chosen.read is None:
        hint = f"These are read: {', '.join(READ)}."
        raise UsageError(f"{chosen.title} is written only.", code="no_format", hint=hint)
    return chosen.read(text, source)


def problems_of_export(file: TopologyFile) -> list[Problem]:
    """What is wrong with a topology that is to be written; errors keep it from that. Where its working folder lies is
    no matter: the document is for another system."""
    return [problem for problem in file.check() if problem.code not in ("workdir-missing", "script-missing")]


def write_foreign(name: str, topology: Topology, wishes: Wishes = NO_WISHES) -> Exported:
    """A topology as a document of a format. Raises UsageError for a form that it does not have, and for a topology that
    the format has no way to say."""
    chosen = format_named(name)
    if wishes.form is not None and wishes.form not in chosen.forms:
        allowed = f"It is written as {', '.join(chosen.forms)}." if chosen.forms else "It has one form only."
        raise UsageError(f"{chosen.title} has no form {wishes.form}.", code="no_format", hint=allowed)
    if wishes.image is not None and not chosen.takes_image:
        raise UsageError(f"{chosen.title} names no container image.", code="no_format", hint="Leave `--image` out.")
    if wishes.replica is not None and not chosen.takes_replica:
        raise UsageError(f"{chosen.title} is one for all replicas.", code="no_format", hint="Leave `--replica` out.")
    return chosen.write(topology, wishes)
