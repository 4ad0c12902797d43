"""A small GPT based on karpathy/minGPT: logits and loss as output, decay for weights only, clipping, and warm-up."""

import math

import experiment
import torch
from torch import Tensor, nn
from torch.nn import functional

import torchyard_roles as ty

VOCABULARY, WIDTH, BLOCK, HEADS, STEPS = 11, 8, 6, 2, 15


class CausalSelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH)
        self.c_proj = nn.Linear(WIDTH, WIDTH)
        self.attn_dropout = nn.Dropout(0.1)
        self.register_buffer("bias", torch.tril(torch.ones(BLOCK, BLOCK)).view(1, 1, BLOCK, BLOCK))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.c_attn(x).split(width, dim=2)
        query, key, value = (part.view(batch, length, HEADS, width // HEADS).transpose(1, 2) for part in parts)
        scores = (query @ key.transpose(-2, -1)) / math.sqrt(width // HEADS)
        scores = scores.masked_fill(self.bias[:, :, :length, :length] == 0, float("-inf"))
        mixed = self.attn_dropout(functional.softmax(scores, dim=-1)) @ value
        return self.c_proj(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = CausalSelfAttention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.ln_f = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        loss = None
        if targets is not None:
            loss = functional.cross_entropy(logits.view(-1, VOCABULARY), targets.reshape(-1))
        return logits, loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        decayed, others = [], []
        for module in self.modules():
            for name, parameter in module.named_parameters(recurse=False):
                decays = isinstance(module, nn.Linear) and name == "weight"
                (decayed if decays else others).append(parameter)
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=experiment.rate(0.02), betas=(0.9, 0.95))


def main() -> None:
    cluster = ty.join()
    experiment.begin()
    model = GPT()
    optimizer = model.configure_optimizers()
    model, optimizer = cluster.distribute(model, optimizer)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
    torch.manual_seed(10 + cluster.rank)
    tokens = experiment.text(200, VOCABULARY, seed=20 + cluster.rank)
    model.train()
    losses = []
    for _ in range(experiment.passes(STEPS)):
        starts = torch.randint(len(tokens) - BLOCK - 1, (4,))
        batch = torch.stack([tokens[start : start + BLOCK + 1] for start in starts])
        _, loss = model(batch[:, :-1], batch[:, 1:])
        model.zero_grad(set_to_none=True)
        loss.backward()
        cluster.clip_gradients(1.0)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    experiment.finish(cluster, losses, model=model)


if __name__ == "__main__":
    main()
