"""What a training script imports to be trained on a cluster, at the cost of four lines.

    import torchyard_roles as ty

    cluster = ty.join()
    model, optimizer = cluster.distribute(model, optimizer)
    loader = cluster.loader(dataset, batch_size=64)

Started by hand, without Torchyard, the same script trains in one process. Under plain torchrun it is a DDP job.
"""

from __future__ import annotations

from torchyard_roles.cluster import Cluster
from torchyard_roles.errors import EnvironmentProblem, NotInThisVersion, RolesError, UsageProblem
from torchyard_roles.joining import join

__all__ = ["Cluster", "EnvironmentProblem", "NotInThisVersion", "RolesError", "UsageProblem", "join"]
