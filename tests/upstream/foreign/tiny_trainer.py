"""Trains a tiny, randomly initialized GPT-2 on random tokens with transformers' Trainer and gradient accumulation.

Every rank prints its result, so the test can compare the ranks with each other and with a run under torchrun.
"""

import os
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed


class RandomTokens(torch.utils.data.Dataset):
    def __init__(self, count: int) -> None:
        self._tokens = torch.randint(0, 64, (count, 16), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._tokens[index], "labels": self._tokens[index]}


def main() -> None:
    set_seed(0)
    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=6,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            learning_rate=1e-2,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=RandomTokens(240))
        trainer.train()
        found = trainer.evaluate(RandomTokens(30))
    total = sum(each.double().sum().item() for each in trainer.model.parameters())
    world = int(os.environ["WORLD_SIZE"])
    print(f"result: {world} ranks, loss {found['eval_loss']:.6f}, sum of parameters {total:.6f}", flush=True)


if __name__ == "__main__":
    main()
