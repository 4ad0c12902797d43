"""Makes every collective call of torchyard_roles. Prints the result of each call as JSON."""

from __future__ import annotations

import json
import sys

import torch

import torchyard_roles as ty

if "defaults" in sys.argv:
    torch.set_default_dtype(torch.float64)
    # A tensor that is created without an explicit device is on `meta`, where it has no values.
    torch.set_default_device("meta")
strategy = None
if "own" in sys.argv:
    from torchyard_roles.data_loader import DataShare
    from torchyard_roles.strategies.single_process import SingleProcess

    class Own(SingleProcess):
        trains_alone = False

        def share(self) -> DataShare:
            return DataShare(cluster.rank, cluster.world_size)

    def strategy(_: object) -> Own:
        return Own()


def metric(samples: int) -> list[float]:
    """Returns the mean over all samples and their number, for an evaluation that is divided among the trainers."""
    # DataLoader draws a random number on the default device, so tensors on that device must have values.
    torch.set_default_device(None)
    test = torch.utils.data.TensorDataset(torch.arange(samples, dtype=torch.float64, device="cpu") ** 2)
    total, count = 0.0, 0
    for (batch,) in cluster.loader(test, batch_size=2, evaluation=True):
        total, count = total + batch.sum().item(), count + len(batch)
    total, count = cluster.mean([total, count])
    return [total / count, len(cluster.gather(None)) * count]


cluster = ty.join(strategy=strategy)
me = cluster.rank or 0
cpu = torch.device("cpu")
half = torch.full((2, 3), 1.0 + me, dtype=torch.bfloat16, device=cpu, requires_grad=True)
mean_of_half = cluster.mean(half)
metrics = cluster.mean({"loss": 0.1 * (me + 1), "hits": torch.tensor(10 + me, device=cpu), "pair": [me, True]})
gathered = cluster.gather({"rank": me, "name": f"é{me}", "parts": torch.arange(me + 1, device=cpu), "none": (None, 1j)})
large = cluster.mean(torch.full((30_000,), float(me), dtype=torch.float64, device=cpu))
sent = cluster.broadcast({"lr": 0.5, "order": torch.tensor([3, 1], device=cpu)} if cluster.is_chief else None)
cluster.barrier()
found = {
    "half": [str(mean_of_half.dtype), mean_of_half.tolist(), mean_of_half.requires_grad],
    "loss": metrics["loss"],
    "hits": [str(metrics["hits"].dtype), metrics["hits"].tolist()],
    "pair": metrics["pair"],
    "gathered": [[each["rank"], each["name"], each["parts"].tolist(), str(each["none"])] for each in gathered],
    "large": [large.shape[0], large[0].item(), large[-1].item()],
    "sent": [sent["lr"], sent["order"].tolist()] if isinstance(sent, dict) else None,
    "any": [cluster.any(me == 1), cluster.any(torch.zeros((), device=cpu))],
    "metric": metric(7),
    "metric of few": metric(2),
    "many": sum(cluster.mean(me) for _ in range(20)),
}
cluster.leave()
print(json.dumps(found))
