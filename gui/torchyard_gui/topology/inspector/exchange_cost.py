"""Estimated duration of a step's exchange, as a sentence for the inspector."""

from __future__ import annotations

from collections.abc import Mapping

from torchyard_core.topology.model import Role, StrategyKind
from torchyard_core.topology.strategies.registry import spec_of
from torchyard_gui.topology.labels import tr


def exchange_sentence(kind: StrategyKind, counts: Mapping[Role, int]) -> str:
    """The sentence for a topology with these numbers of replicas; "" where no step waits for an exchange."""
    spec = spec_of(kind)
    trainers = sum(count for role, count in counts.items() if role.trains)
    servers = 0 if spec.server_role is None else counts[spec.server_role]
    cost = spec.exchange_cost(trainers, servers) if trainers > 1 else None
    if cost is None:
        return ""
    return " ".join(
        tr(sentence).format(
            trainers=tr("{count} trainers").format(count=trainers),
            servers=_servers(servers, spec.server_role),
            **{name: _number(value) for name, value in cost.values.items()},
        )
        for sentence in cost.sentences
    )


def _servers(count: int, role: Role | None) -> str:
    if role is Role.REDUCER:
        return tr("1 reducer") if count == 1 else tr("{count} reducers").format(count=count)
    return tr("1 server") if count == 1 else tr("{count} servers").format(count=count)


def _number(value: float) -> str:
    """1.2, 1, 1.09: two decimals at most."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
