"""Trains Lightning's BoringModel with its DDP strategy on the ranks that were started by the launcher."""

import os

import lightning
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.plugins.environments import TorchElasticEnvironment


def main() -> None:
    lightning.seed_everything(0)
    model = BoringModel()
    environment = TorchElasticEnvironment()
    ranks_per_host = int(os.environ["LOCAL_WORLD_SIZE"])
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp",
        plugins=[environment],
        devices=ranks_per_host,
        num_nodes=environment.world_size() // ranks_per_host,
        max_epochs=2,
        limit_val_batches=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(model)
    total = sum(parameter.double().abs().sum().item() for parameter in model.parameters())
    rank, ranks = environment.global_rank(), environment.world_size()
    print(f"result: rank {rank} of {ranks}, {trainer.global_step} steps, parameters {total:.9f}", flush=True)


if __name__ == "__main__":
    main()
