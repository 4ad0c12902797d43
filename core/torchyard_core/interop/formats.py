"""Every foreign format by the name that the command line has for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torchyard_core.errors import UsageError
from torchyard_core.interop import (
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
from torchyard_core.interop.conversion import NO_WISHES, Exported, Imported, Wishes
from torchyard_core.topology.model import Topology
from torchyard_core.topology.problems import nearest


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


FORMATS = {
    one.name: one
    for one in (
        Format("cloudml", "CloudML config.yaml", cloudml.read, cloudml.write),
        Format("vertex", "Vertex AI workerPoolSpecs", vertex.read, vertex.write, vertex.FORMS, takes_image=True),
        Format(
            "cluster-spec", "CLUSTER_SPEC", cluster_spec.read, cluster_spec.write, cluster_spec.FORMS, ".json",
            takes_replica=True,
        ),
        Format("tf-config", "TF_CONFIG", tf_config.read, tf_config.write, tf_config.FORMS, ".json", takes_replica=True),
        Format(
            "tensorflow", "TensorFlow ClusterSpec or command lines", tensorflow.read, tensorflow.write,
            tensorflow.FORMS, ".sh", takes_replica=True,
        ),
        Format("singa", "SINGA cluster", singa.read, singa.write, suffix=".conf"),
        Format("torchx", "TorchX AppDef", None, torchx.write, suffix=".py", takes_image=True),
        Format("kubernetes", "Kubernetes JobSet or Jobs", None, kubernetes.write, kubernetes.FORMS, takes_image=True),
        Format("slurm", "Slurm sbatch script", None, slurm.write, suffix=".sbatch"),
    )
}  # fmt: skip


def format_named(name: str) -> Format:
    """Raises UsageError where there is none."""
    if name not in FORMATS:
        meant = nearest(name, FORMATS)
        hint = meant or f"There are {', '.join(FORMATS)}."
        raise UsageError(f"there is no format {name}.", code="no_format", hint=hint)
    return FORMATS[name]


def read_foreign(name: str, text: str, source: str) -> Imported:
    """A document of a format as a topology. Raises UsageError for what is only written, FileProblem for a bad one."""
    chosen = format_named(name)
    if chosen.read is None:
        can = ", ".join(one.name for one in FORMATS.values() if one.read is not None)
        raise UsageError(f"{chosen.title} is written only.", code="no_format", hint=f"These are read: {can}.")
    return chosen.read(text, source)


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
