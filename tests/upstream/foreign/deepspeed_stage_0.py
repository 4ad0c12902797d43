"""Trains a small model with DeepSpeed's engine at stage 0, in which each rank has the whole model."""

import deepspeed
import torch


def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    engine, _, _, _ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        config={
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": 2,
            "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
            "zero_optimization": {"stage": 0},
            "gradient_clipping": 1.0,
        },
    )
    rank, ranks = deepspeed.comm.get_rank(), deepspeed.comm.get_world_size()
    for step in range(12):
        inputs = torch.randn(4 * ranks, 6, generator=torch.Generator().manual_seed(step))[rank::ranks]
        loss = (engine(inputs) - torch.sin(inputs[:, :2])).square().mean()
        engine.backward(loss)
        engine.step()
    total = sum(each.double().abs().sum().item() for each in engine.module.parameters())
    print(f"result: rank {rank} of {ranks}, {engine.global_steps} steps, parameters {total:.9f}", flush=True)
    deepspeed.comm.destroy_process_group()


if __name__ == "__main__":
    main()
