"""Iterates over the rank's part of the data for three epochs and trains in the last one.

Prints the rank, the samples and the state as JSON.
"""

import json

import torch
import torch.distributed as dist

import torchyard_roles as ty

SAMPLES = 24


class Scaled(torch.nn.Sequential):
    def doubled(self, inputs: torch.Tensor) -> torch.Tensor:
        return 2 * self(inputs)


if __name__ == "__main__":
    cluster = ty.join()
    dataset = torch.utils.data.TensorDataset(torch.arange(SAMPLES, dtype=torch.float32))
    loader = cluster.loader(dataset, batch_size=4, shuffle=True)
    epochs = [[int(sample) for (batch,) in loader for sample in batch] for _ in range(2)]

    torch.manual_seed(cluster.rank)
    model = Scaled(torch.nn.Linear(1, 1))
    model, optimizer = cluster.distribute(model, torch.optim.SGD(model.parameters(), lr=1e-4))
    for (batch,) in loader:
        optimizer.zero_grad()
        loss = (model(batch[:, None]) - batch[:, None]).square().mean()
        loss.backward()
        optimizer.step()
        cluster.report(loss=loss)

    seen = {
        "role": cluster.role,
        "index": cluster.index,
        "rank": cluster.rank,
        "world_size": cluster.world_size,
        "is_chief": cluster.is_chief,
        "backend": dist.get_backend(),
        "epochs": epochs,
        "names": sorted(model.state_dict()),
        "layers": [len(model), *(type(layer).__name__ for layer in model), model[0] in model, bool(model)],
        "weight": model[0].weight.item(),
        "same_method": torch.equal(model.doubled(batch[:, None]), 2 * model(batch[:, None])),
    }
    cluster.leave()
    cluster.leave()
    seen["group_after"] = dist.is_initialized()
    print(json.dumps(seen))
