"""Inspector group for the strategy, with its kind, a description, and the settings that have an effect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from PySide6.QtWidgets import QVBoxLayout, QWidget

from torchyard_core.formatting import bandwidth, seconds, size
from torchyard_core.topology.model import Role, Strategy, StrategyKind, Topology
from torchyard_core.topology.strategies.link_load import ExchangeFacts
from torchyard_core.topology.strategies.registry import all_settings, spec_of
from torchyard_core.topology.strategies.spec import StrategySetting
from torchyard_gui.topology.editor import Editor
from torchyard_gui.topology.inspector.field_group import Group
from torchyard_gui.topology.inspector.fields import AmountField, ChoiceField, Field, WholeField, WordsField
from torchyard_gui.topology.labels import strategy_name, strategy_sentence, tr
from torchyard_gui.widgets.layouts import FLUSH, vbox
from torchyard_gui.widgets.text_labels import label

UNKNOWN = ExchangeFacts()
KIND_WIDTH = 72
"""Width in pixels of the label beside the field for the strategy. The label is narrower than those of other fields,
because names of strategies need wider fields than numbers.
"""


class StrategyGroup(QWidget):
    """Fields for the kind of the strategy and its settings. Each setting has an explanation below its field."""

    def __init__(self, editor: Editor) -> None:
        super().__init__()
        self.group = Group(self.tr("Strategy"), editor.set_strategy)
        self.kind = ChoiceField([(kind, strategy_name(kind)) for kind in StrategyKind])
        tip = self.tr("How trainers synchronise their parameters.")
        self.group.add("kind", self.tr("Kind"), self.kind, tip).name.setFixedWidth(KIND_WIDTH)
        self._sentence = label(role="small", ink="2", wrap=True)
        self.sums = label(role="small", ink="2", wrap=True)
        self._fill()
        vbox(self.group, parent=self, margins=FLUSH, spacing=8)

    def _fill(self) -> None:
        # The description of the strategy comes directly below the field that selects it, before the settings.
        within = self.group.layout()
        assert isinstance(within, QVBoxLayout)
        within.addWidget(self._sentence)
        within.addWidget(self.sums)
        settings = {setting.key: setting for setting in all_settings()}
        for key in Strategy.model_fields:
            if key != "kind":
                self._add(settings[key])

    def _add(self, setting: StrategySetting) -> None:
        sentence = tr(setting.sentence)
        self.group.add(setting.key, tr(setting.title), _field(setting), sentence).set_note(sentence)

    def show_topology(self, topology: Topology, facts: ExchangeFacts = UNKNOWN) -> None:
        """Shows the strategy of a topology, with the settings that this kind of strategy uses."""
        strategy = topology.strategy
        shown = {"kind", *spec_of(strategy.kind).settings}
        for key, row in self.group.rows.items():
            row.setVisible(key in shown)
        self._sentence.setText(strategy_sentence(strategy.kind))
        counts = {role: sum(pool.replicas for pool in topology.pools if pool.role is role) for role in Role}
        sums = exchange_sentence(strategy.kind, counts, facts)
        self.sums.setText(sums)
        self.sums.setVisible(bool(sums))
        self.group.show_blocks([strategy])


def _field(setting: StrategySetting) -> Field:
    """Returns the field for a setting. The default and the lower bound of a number come from the schema of the topology
    file.
    """
    field = Strategy.model_fields[setting.key]
    if setting.choices:
        return ChoiceField([(value, tr(title)) for value, title in setting.choices])
    if isinstance(field.default, tuple):
        return WordsField()
    empty = tr(setting.if_unset) if setting.if_unset else ""
    if _has_fractions(field.annotation):
        return AmountField(field.default, empty)
    least = next((bound.ge for bound in field.metadata if hasattr(bound, "ge")), 0)
    return WholeField(field.default, empty, least=least)


def _has_fractions(annotation: Any) -> bool:
    """Returns whether a type is float, or a union that contains float."""
    return annotation is float or any(_has_fractions(each) for each in get_args(annotation))


def exchange_sentence(kind: StrategyKind, counts: Mapping[Role, int], facts: ExchangeFacts = UNKNOWN) -> str:
    """Returns sentences about how long an exchange takes, or "" if no step waits for an exchange.

    Args:
        counts: Number of replicas of each role.
    """
    spec = spec_of(kind)
    trainers = sum(count for role, count in counts.items() if role.trains)
    servers = 0 if spec.server_role is None else counts[spec.server_role]
    cost = spec.exchange_cost(trainers, servers) if trainers > 1 else None
    if cost is None:
        return ""
    durations = {name: duration(value, facts) for name, value in cost.durations.items()}
    sentences = [
        tr(sentence).format(
            trainers=tr("{count} trainers").format(count=trainers),
            servers=_servers(servers, spec.server_role),
            **durations,
            **cost.counts,
        )
        for sentence in cost.sentences
    ]
    return " ".join([*sentences, basis_sentence(facts)])


def duration(value: float, facts: ExchangeFacts) -> str:
    """Formats a duration that is given in units of M/B, the gradient size divided by the link bandwidth. The text is a
    time if both are known, and a multiple of M/B otherwise.
    """
    known = facts.seconds_of(value)
    return f"{_number(value)}·M/B" if known is None else seconds(known)


def basis_sentence(facts: ExchangeFacts) -> str:
    """Returns a sentence that names the gradient size and the link bandwidth from which durations are computed. If a
    value is unknown, the sentence defines its symbol, M or B.
    """
    if facts.gradient_bytes is None:
        return tr(
            "M is the size of the gradients, B the bandwidth of a host's link. Times are shown after the first run of "
            "this name whose script calls distribute() or reports gradient_bytes."
        )
    size_ = size(facts.gradient_bytes)
    if facts.link_bytes_s is None:
        return tr(
            "M, the size of the gradients, was {size} in the last run. B, the bandwidth of a host's link, is measured "
            "by the next launch over SSH."
        ).format(size=size_)
    return tr("For {size} of gradients, as in the last run, and links of {bandwidth}.").format(
        size=size_, bandwidth=bandwidth(facts.link_bytes_s)
    )


def _servers(count: int, role: Role | None) -> str:
    if role is Role.REDUCER:
        return tr("1 reducer") if count == 1 else tr("{count} reducers").format(count=count)
    return tr("1 server") if count == 1 else tr("{count} servers").format(count=count)


def _number(value: float) -> str:
    """Formats a number with at most two decimals, such as 1.2, 1 or 1.09."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
