"""Makes worker 1 fail with an exception in its third step, while the chief is waiting for that worker's gradients."""

import torch

import torchyard_roles as ty

if __name__ == "__main__":
    cluster = ty.join()
    model = torch.nn.Linear(1, 1)
    model, optimizer = cluster.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for step in range(1, 1000):
        if step == 3 and not cluster.is_chief:
            raise ValueError("the third step fails")
        optimizer.zero_grad()
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
