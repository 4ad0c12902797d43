"""Widgets shared by the pages."""

from torchyard_gui.widgets.containers import Card, scroll_area
from torchyard_gui.widgets.empty_state import EmptyState
from torchyard_gui.widgets.form_row import FormRow
from torchyard_gui.widgets.indicators import RoleBadge, StateMark, StateTitle
from torchyard_gui.widgets.input_fields import SearchField, Segmented
from torchyard_gui.widgets.layouts import clear_layout, remove_widgets
from torchyard_gui.widgets.notice_bar import NoticeBar
from torchyard_gui.widgets.text_labels import Divider, ElidedLabel, SectionLabel, label, set_ink
from torchyard_gui.widgets.toast import Toast

__all__ = [
    "Card",
    "Divider",
    "ElidedLabel",
    "EmptyState",
    "FormRow",
    "NoticeBar",
    "RoleBadge",
    "SearchField",
    "SectionLabel",
    "Segmented",
    "StateMark",
    "StateTitle",
    "Toast",
    "clear_layout",
    "label",
    "remove_widgets",
    "scroll_area",
    "set_ink",
]
