"""Counts the updates of each group: each update subtracts 1 from each parameter.

    counts_updates.py FOLDER UPDATES SECONDS_AN_UPDATE [UPDATE_WITH_NAN …]

FOLDER/<rank> holds the number of updates that have begun: a killed process has made at most this number of updates.
FOLDER/values.<rank> holds the number of finished updates, and the largest value of a parameter at that time. Both files
are replaced atomically, because a reader would interpret an empty file as zero updates.

After leave(), the script prints the smallest and the largest parameter. It also prints the sum of a frozen parameter
and a buffer. On each rank, both initially hold the rank's number, so the sum is 0 if the rank has received the chief's
values. Training ends early if FOLDER/enough exists.
"""

import json
import sys
import time
from pathlib import Path

import torch

import torchyard_roles as ty


def main() -> None:
    folder, updates, pause_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    spoilt = set(map(int, sys.argv[4:]))
    cluster = ty.join()
    model = torch.nn.Linear(1000, 1, dtype=torch.float64)
    torch.nn.init.constant_(model.weight, float(cluster.rank))  # All ranks receive the chief's value, which is 0.
    torch.nn.init.constant_(model.bias, float(cluster.rank))
    model.frozen = torch.nn.Parameter(torch.full((3,), float(cluster.rank)), requires_grad=False)
    model.register_buffer("seen", torch.full((2,), float(cluster.rank)))
    model, optimizer = cluster.distribute(model, torch.optim.SGD(model.parameters(), lr=1.0))
    ones = torch.ones(1, 1000, dtype=torch.float64, device=cluster.device)
    for update in range(updates):
        if (folder / "enough").exists():
            break
        loss = model(ones).sum() * (float("nan") if update in spoilt else 1.0)
        optimizer.zero_grad()
        loss.backward()
        replace(folder / str(cluster.rank), str(update + 1))
        optimizer.step()
        replace(folder / f"values.{cluster.rank}", f"{update + 1} {model.weight.max().item()}\n")
        time.sleep(pause_s)
    cluster.leave()
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters() if parameter.requires_grad])
    rest = (model.frozen.sum() + model.seen.sum()).item()
    result = {"rank": cluster.rank, "least": flat.min().item(), "most": flat.max().item(), "rest": rest}
    print(json.dumps(result), flush=True)


def replace(path: Path, text: str) -> None:
    new = path.with_suffix(path.suffix + ".new")
    new.write_text(text)
    new.replace(path)


if __name__ == "__main__":
    main()
