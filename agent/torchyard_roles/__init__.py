"""The interface for training scripts. With four lines, a script distributes its training loop over a cluster.

    import torchyard_roles as ty

    cluster = ty.join()
    model, optimizer = cluster.distribute(model, optimizer)
    loader = cluster.loader(dataset, batch_size=64, shuffle=True)

If the same script is started by hand, without Torchyard, it trains in one process. Under plain torchrun it is a DDP
job.
"""

from __future__ import annotations

from torchyard_roles.cluster import Cluster
from torchyard_roles.errors import (
    EnvironmentProblem,
    NotFinite,
    NotInThisVersion,
    PeerLost,
    ProtocolError,
    RolesError,
    StoreLost,
    StoreTimeout,
    UsageProblem,
)
from torchyard_roles.model_optimizer_pairs import unwrap
from torchyard_roles.process_entry import join

__all__ = [
    "Cluster",
    "EnvironmentProblem",
    "NotFinite",
    "NotInThisVersion",
    "PeerLost",
    "ProtocolError",
    "RolesError",
    "StoreLost",
    "StoreTimeout",
    "UsageProblem",
    "join",
    "unwrap",
]
