"""A recurrent language model based on pytorch/examples: the hidden state is carried from batch to batch, gradients are
clipped, and the learning rate is divided by four if the validation loss has not decreased by 1 %."""

import experiment
import torch
from torch import Tensor, nn

import torchyard_roles as ty

VOCABULARY, WIDTH, BATCH, LENGTH = 11, 8, 4, 5
Hidden = tuple[Tensor, Tensor]


class RNNModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.1)
        self.encoder = nn.Embedding(VOCABULARY, WIDTH)
        self.rnn = nn.LSTM(WIDTH, WIDTH, num_layers=2, dropout=0.1)
        self.decoder = nn.Linear(WIDTH, VOCABULARY)
        self.decoder.weight = self.encoder.weight

    def forward(self, tokens: Tensor, hidden: Hidden) -> tuple[Tensor, Hidden]:
        output, hidden = self.rnn(self.drop(self.encoder(tokens)), hidden)
        return self.decoder(self.drop(output)).view(-1, VOCABULARY), hidden

    def init_hidden(self) -> Hidden:
        weight = next(self.parameters())
        return weight.new_zeros(2, BATCH, WIDTH), weight.new_zeros(2, BATCH, WIDTH)


def batchify(tokens: Tensor) -> Tensor:
    columns = len(tokens) // BATCH
    return tokens[: columns * BATCH].view(BATCH, columns).t().contiguous()


def repackage_hidden(hidden: Hidden) -> Hidden:
    return hidden[0].detach(), hidden[1].detach()


def main() -> None:
    cluster = ty.join()
    experiment.begin()
    model = RNNModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=experiment.rate(1.0))
    model, optimizer = cluster.distribute(model, optimizer)
    torch.manual_seed(10 + cluster.rank)
    train = batchify(experiment.text(4 * 36, VOCABULARY, seed=20 + cluster.rank))
    held_out = batchify(experiment.text(4 * 16, VOCABULARY, seed=99))
    criterion = nn.CrossEntropyLoss()
    best, losses = float("inf"), []
    for _ in range(experiment.passes(3)):
        model.train()
        hidden = model.init_hidden()
        for start in range(0, len(train) - 1, LENGTH):
            length = min(LENGTH, len(train) - 1 - start)
            tokens, targets = train[start : start + length], train[start + 1 : start + 1 + length].reshape(-1)
            model.zero_grad()
            hidden = repackage_hidden(hidden)
            output, hidden = model(tokens, hidden)
            loss = criterion(output, targets)
            loss.backward()
            cluster.clip_gradients(0.25)
            optimizer.step()
            losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            output, _ = model(held_out[:-1], model.init_hidden())
            score = criterion(output, held_out[1:].reshape(-1)).item()
        if score > 0.99 * best:
            optimizer.param_groups[0]["lr"] /= 4
        best = min(best, score)
    experiment.finish(cluster, losses, model=model)


if __name__ == "__main__":
    main()
