"""Trains until a lost worker returns. Writes the duration of its return in seconds to return.json.

The last worker kills itself after some steps. When its process is started again, it measures the time from the end of
distribute() to the end of its first step, in which it receives the state of another worker. Only a part of the model is
trained, so that a step is short compared with the transfer.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from steps import Flat

import torchyard_roles as ty

LOST_AFTER = 5
STEPS_AFTER = 5
"""Steps that all workers take together after the return."""
ENOUGH = 100_000
"""Number of samples, which is more than the program uses."""


def main() -> None:
    megabytes = float(sys.argv[1])
    cluster = ty.join()
    torch.set_num_threads(1)
    model = Flat(megabytes)
    for part in list(model.parts)[1:]:
        part.values.requires_grad_(False)
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1, momentum=0.9)
    has_returned = "TORCHYARD_RETURN" in os.environ
    model, optimizer = cluster.distribute(model, optimizer)
    began = time.perf_counter()
    together = 0
    # The script does not count its own steps, because a returned worker would then finish later than the others.
    for step, _ in enumerate(cluster.loader(torch.zeros(ENOUGH, 1), batch_size=1), start=1):
        optimizer.zero_grad()
        model().backward()
        optimizer.step()
        if has_returned and step == 1:
            state = [*model.state_dict().values(), *(each["momentum_buffer"] for each in optimizer.state.values())]
            found = {"seconds": time.perf_counter() - began, "bytes": sum(each.nbytes for each in state)}
            (Path(os.environ["TORCHYARD_RUN_DIR"]) / "return.json").write_text(json.dumps(found))
        if cluster.rank == cluster.world_size - 1 and not has_returned and step == LOST_AFTER:
            os.kill(os.getpid(), signal.SIGKILL)
        together += cluster.mean(torch.tensor(float(has_returned))).item() > 0
        if together == STEPS_AFTER:
            break


if __name__ == "__main__":
    main()
