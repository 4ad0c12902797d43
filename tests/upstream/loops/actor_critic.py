"""Trains an actor and a critic, each with its own optimizer and its own call of distribute(); each rank draws its own
actions.
"""

import experiment
import torch
from torch import nn
from torch.distributions import Categorical

import torchyard_roles as ty


def main() -> None:
    cluster = ty.join()
    experiment.begin()
    actor = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 3))
    critic = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 1))
    for_actor = torch.optim.Adam(actor.parameters(), lr=experiment.rate(0.05))
    for_critic = torch.optim.Adam(critic.parameters(), lr=experiment.rate(0.05))
    actor, for_actor = cluster.distribute(actor, for_actor)
    critic, for_critic = cluster.distribute(critic, for_critic)
    torch.manual_seed(10 + cluster.rank)
    losses = []
    for states in experiment.draws(cluster.rank, experiment.passes(20), 24, 4):
        choice = Categorical(logits=actor(states))
        actions = choice.sample()
        rewards = (actions == states[:, :3].argmax(dim=1)).double()
        values = critic(states)[:, 0]
        advantage = (rewards - values).detach()
        for_critic.zero_grad()
        nn.functional.mse_loss(values, rewards).backward()
        for_critic.step()
        for_actor.zero_grad()
        (-(choice.log_prob(actions) * advantage).mean()).backward()
        for_actor.step()
        losses.append(-choice.probs.gather(1, states[:, :3].argmax(dim=1, keepdim=True)).mean().item())
    experiment.finish(cluster, losses, actor=actor, critic=critic)


if __name__ == "__main__":
    main()
