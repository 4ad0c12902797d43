"""Train a character model of 250,000 parameters on the text of Python's own help, which needs no download."""

import argparse
import pydoc_data.topics

import torch
import torchyard_roles as ty
from torch import nn
from torch.utils import data

CONTEXT, WIDTH, HEADS, LAYERS = 64, 96, 4, 2
TEXT = "\n".join(text for _, text in sorted(pydoc_data.topics.topics.items()))
ALPHABET = sorted(set(TEXT))


def load(windows: int, seed: int) -> tuple[data.TensorDataset, data.TensorDataset]:
    """Returns random windows of the first nine tenths of the text, and consecutive windows of its last tenth."""
    positions = {character: position for position, character in enumerate(ALPHABET)}
    text = torch.tensor([positions[character] for character in TEXT])
    train, validation = text[: len(text) * 9 // 10], text[len(text) * 9 // 10 :]
    starts = torch.randint(len(train) - CONTEXT, (windows,), generator=torch.Generator().manual_seed(seed))
    return windows_at(train, starts), windows_at(validation, torch.arange(0, len(validation) - CONTEXT, CONTEXT))


def windows_at(text: torch.Tensor, starts: torch.Tensor) -> data.TensorDataset:
    """Returns the characters of each window, and the characters that follow them."""
    places = starts[:, None] + torch.arange(CONTEXT)
    return data.TensorDataset(text[places], text[places + 1])


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.projection = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.attention(self.norm_1(x)).unflatten(-1, (3 * HEADS, -1)).transpose(1, 2).chunk(3, dim=1)
        attended = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm_2(x))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(len(ALPHABET), WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(ALPHABET)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.characters(x) + self.places.weight))


def cross_entropy(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


@torch.no_grad()
def evaluate(model: nn.Module, dataset: data.TensorDataset) -> float:
    """Returns the mean loss per character."""
    device = next(model.parameters()).device
    total = 0.0
    for inputs, targets in data.DataLoader(dataset, batch_size=64):
        total += cross_entropy(model, inputs.to(device), targets.to(device)).item() * len(inputs)
    return total / len(dataset)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, default=16000, help="texts of 64 characters to train with, in all")
    parser.add_argument("--batch-size", type=int, default=16, help="windows per step of each worker")
    parser.add_argument("--lr", type=float, default=0.002)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    cluster = ty.join()
    torch.manual_seed(args.seed)
    train, validation = load(args.windows, args.seed)
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    model, optimizer = cluster.distribute(model, optimizer)

    for step, (inputs, targets) in enumerate(cluster.loader(train, batch_size=args.batch_size), start=1):
        optimizer.zero_grad()
        loss = cross_entropy(model, inputs, targets)
        loss.backward()
        optimizer.step()
        cluster.report(loss=loss)
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)

    cluster.leave()  # After leave(), all workers have the final parameters.
    print(f"validation loss {evaluate(model, validation):.6f}", flush=True)


if __name__ == "__main__":
    main()
