"""The style sheet of the application, generated from the tokens and the sizes of fonts."""

from __future__ import annotations

from collections.abc import Mapping

from torchyard_gui.theme.fonts import FONTS
from torchyard_gui.theme.tokens import Metrics, Tokens

# Widgets set these properties, among others: primary, quiet, danger (buttons), card, bar, panel (frames), bare (lists
# on a panel), ink = "2", "3", "fail", "wait", "run", "accent" (labels), role = a font's role.
SHEET = """
QMainWindow, QDialog {{ background: {s1}; }}
QToolTip {{ color: {text}; background: {s2}; border: 1px solid {hair}; padding: 4px 6px; }}

QFrame[bar="true"] {{ background: {s1}; border: none; border-bottom: 1px solid {hair}; }}
QFrame[panel="left"] {{ background: {s1}; border: none; border-right: 1px solid {hair}; }}
QFrame[panel="right"] {{ background: {s1}; border: none; border-left: 1px solid {hair}; }}
QFrame[panel="bottom"] {{ background: {s1}; border: none; border-top: 1px solid {hair}; }}
QFrame[drawer="true"] {{ border-left: 1px solid {line}; border-right: 1px solid {line}; }}
QFrame[card="true"] {{ background: {s2}; border: 1px solid {hair}; border-radius: {radius}px; }}
QFrame[card="true"][selected="true"] {{ border-color: {accent}; }}
QFrame[notice="info"] {{ background: {accent_soft}; border: none; border-bottom: 1px solid {hair}; }}
QFrame[notice="warn"] {{ background: {wait_soft}; border: none; border-bottom: 1px solid {hair}; }}
QFrame[notice="fail"] {{ background: {fail_soft}; border: none; border-bottom: 1px solid {hair}; }}
QFrame[popup="true"] {{ background: {s2}; border: 1px solid {line}; border-radius: {radius}px; }}
QFrame[toast="true"] {{ background: {text}; border: none; border-radius: {radius}px; }}
QFrame[toast="true"] QLabel {{ color: {s2}; }}
QFrame[toast="true"] QPushButton {{ color: {s2}; background: transparent; border: 1px solid {s2}; padding: 2px 10px; }}
QFrame[divider="true"] {{ background: {hair}; border: none; max-height: 1px; min-height: 1px; }}

/* Texts from hosts and other users are not read as markup, which could load files and images. */
QLabel, QToolTip {{ qproperty-textFormat: PlainText; }}
QLabel[ink="2"] {{ color: {text2}; }}
QLabel[ink="3"] {{ color: {text3}; }}
QLabel[ink="fail"] {{ color: {fail}; }}
QLabel[ink="wait"] {{ color: {wait}; }}
QLabel[ink="run"] {{ color: {run}; }}
QLabel[ink="accent"] {{ color: {accent}; }}
QLabel[role="title"] {{ font-size: {title_px}px; font-weight: 600; }}
QLabel[role="strong"] {{ font-weight: 600; }}
QLabel[role="small"] {{ font-size: {small_px}px; }}
QLabel[role="tiny"] {{ font-size: {tiny_px}px; }}
QLabel[role="section"] {{ font-size: {tiny_px}px; font-weight: 600; color: {text2}; }}

/* The borders below show the focus. Once Tab was pressed, Fusion would draw a rectangle inside them too. */
QAbstractButton, QComboBox {{ outline: none; }}
QPushButton, QToolButton[button="true"] {{
    background: {s2}; color: {text}; border: 1px solid {hair}; border-radius: {radius}px;
    padding: 0 12px; min-height: 26px;
}}
QPushButton:hover, QToolButton[button="true"]:hover {{ background: {hover}; }}
QPushButton:pressed, QToolButton[button="true"]:pressed {{ background: {track}; }}
QPushButton:focus, QToolButton[button="true"]:focus {{ border: 2px solid {accent}; padding: 0 11px; min-height: 24px; }}
QPushButton:disabled {{ color: {text3}; background: {s1}; }}
QPushButton:checked {{ background: {accent_soft}; border-color: {accent}; color: {accent}; }}
QPushButton[primary="true"] {{
    background: {accent}; color: {on_accent}; border-color: {accent}; font-weight: 600; padding: 0 14px;
}}
QPushButton[primary="true"]:hover {{ background: {accent_hover}; }}
QPushButton[primary="true"]:focus {{ border: 2px solid {text}; padding: 0 13px; }}
QPushButton[primary="true"]:disabled {{ background: {track}; color: {text3}; border-color: {hair}; }}
QPushButton[danger="true"] {{ color: {fail}; }}
QPushButton[danger="true"]:disabled {{ color: {text3}; }}
QPushButton[quiet="true"] {{
    background: transparent; border: 1px solid transparent; color: {accent}; font-weight: 600; padding: 0 6px;
}}
QPushButton[quiet="true"]:hover {{ background: {accent_soft}; }}
QPushButton[quiet="true"]:focus {{ border: 2px solid {accent}; padding: 0 5px; }}
QPushButton[quiet="true"]:disabled {{ color: {text3}; }}

QPushButton[fold="true"] {{
    background: transparent; border: 1px solid transparent; color: {text2}; font-size: {tiny_px}px; font-weight: 600;
    padding: 0; min-height: 18px; text-align: left;
}}
QPushButton[fold="true"]:hover {{ color: {text}; }}
QPushButton[fold="true"]:focus {{ border: 2px solid {accent}; padding: 0; min-height: 16px; }}

QToolButton {{ background: transparent; border: 1px solid transparent; border-radius: {radius}px; padding: 4px; }}
QToolButton:hover {{ background: {hover}; }}
QToolButton:pressed, QToolButton:checked {{ background: {accent_soft}; }}
QToolButton:focus {{ border: 2px solid {accent}; padding: 3px; }}
QToolButton::menu-indicator {{ image: none; }}

QFrame[segmented="true"] {{ background: {track}; border: 1px solid {hair}; border-radius: {radius}px; }}
QToolButton[segment="true"] {{
    background: transparent; color: {text2}; border: 1px solid transparent; border-radius: {radius_small}px;
    padding: 2px 12px; min-height: 18px;
}}
QToolButton[segment="true"]:hover {{ color: {text}; }}
QToolButton[segment="true"]:checked {{
    background: {s2}; color: {text}; border-color: {hair}; font-weight: 600;
}}
QToolButton[segment="true"]:focus {{ border: 2px solid {accent}; padding: 1px 11px; }}

QToolButton[rail="true"] {{
    background: transparent; color: {text2}; border: 1px solid transparent; border-radius: {radius}px;
    font-size: {tiny_px}px; font-weight: 500; padding: 6px 0 4px 0;
}}
QToolButton[rail="true"]:hover {{ background: {hover}; }}
QToolButton[rail="true"]:checked {{ background: {accent_soft}; color: {accent}; font-weight: 600; }}
QToolButton[rail="true"]:focus {{ border: 2px solid {accent}; padding: 5px 0 3px 0; }}

QLineEdit, QComboBox, QAbstractSpinBox, QPlainTextEdit, QTextEdit {{
    background: {s2}; color: {text}; border: 1px solid {hair}; border-radius: {radius}px;
    selection-background-color: {accent}; selection-color: {on_accent};
}}
QLineEdit, QComboBox, QAbstractSpinBox {{ min-height: 26px; padding: 0 8px; }}
QPlainTextEdit, QTextEdit {{ padding: 0 5px; }}
QLineEdit, QPlainTextEdit, QTextEdit, QComboBox {{ placeholder-text-color: {text3}; }}
QLineEdit:hover, QComboBox:hover, QAbstractSpinBox:hover {{ border-color: {line}; }}
QLineEdit:focus, QComboBox:focus, QAbstractSpinBox:focus, QPlainTextEdit:focus, QTextEdit:focus {{
    border: 2px solid {accent};
}}
QLineEdit:focus, QComboBox:focus, QAbstractSpinBox:focus {{ min-height: 24px; padding: 0 7px; }}
QLineEdit[invalid="true"], QPlainTextEdit[invalid="true"],
QComboBox[invalid="true"], QAbstractSpinBox[invalid="true"] {{
    border-color: {fail};
}}
QLineEdit:disabled, QComboBox:disabled, QAbstractSpinBox:disabled {{ color: {text3}; background: {s1}; }}
QComboBox::drop-down {{ border: none; width: 22px; subcontrol-position: center right; }}
QComboBox::down-arrow {{ image: url("{down}"); width: 14px; height: 14px; }}
QComboBox QAbstractItemView {{ border: 1px solid {hair}; background: {s2}; padding: 4px; outline: none; }}
QComboBox QLineEdit, QAbstractSpinBox QLineEdit {{
    border: none; padding: 0; min-height: 20px; background: transparent; border-radius: 0;
}}
QComboBox QLineEdit:focus, QAbstractSpinBox QLineEdit:focus {{ border: none; padding: 0; min-height: 20px; }}
QAbstractSpinBox::up-button, QAbstractSpinBox::down-button {{ border: none; width: 18px; background: transparent; }}
QAbstractSpinBox::up-button {{ subcontrol-position: top right; margin: 2px 2px 0 0; }}
QAbstractSpinBox::down-button {{ subcontrol-position: bottom right; margin: 0 2px 2px 0; }}
QAbstractSpinBox::up-arrow {{ image: url("{up}"); width: 10px; height: 10px; }}
QAbstractSpinBox::down-arrow {{ image: url("{down}"); width: 10px; height: 10px; }}

QCheckBox, QRadioButton {{ spacing: 8px; }}
QCheckBox::indicator, QRadioButton::indicator {{
    width: 14px; height: 14px; border: 1px solid {line}; background: {s2};
}}
QCheckBox::indicator {{ border-radius: 3px; }}
QRadioButton::indicator {{ border-radius: 8px; }}
QCheckBox::indicator:checked {{ background: {accent}; border-color: {accent}; image: url("{tick}"); }}
QCheckBox::indicator:indeterminate {{ background: {accent}; border-color: {accent}; image: url("{dash}"); }}
QRadioButton::indicator:checked {{ border: 5px solid {accent}; width: 6px; height: 6px; background: {on_accent}; }}
QCheckBox::indicator:focus, QRadioButton::indicator:focus {{
    width: 12px; height: 12px; border: 2px solid {accent};
}}
QCheckBox::indicator:checked:focus, QCheckBox::indicator:indeterminate:focus {{ border-color: {text}; }}
QRadioButton::indicator:checked:focus {{
    background: qradialgradient(cx: 0.5, cy: 0.5, radius: 0.5, fx: 0.5, fy: 0.5,
        stop: 0 {accent}, stop: 0.5 {accent}, stop: 0.6 {s2}, stop: 1 {s2});
}}

QAbstractItemView {{
    background: {s2}; color: {text}; border: none; outline: none; alternate-background-color: {s1};
    selection-background-color: {accent_soft}; selection-color: {text};
}}
QListView[bare="true"] {{ background: transparent; }}
QListView[completions="true"] {{ border: 1px solid {line}; padding: 4px; }}
QListView::item, QTreeView::item {{ min-height: 26px; padding: 0 6px; border-radius: {radius_small}px; }}
QListView::item:hover, QTreeView::item:hover {{ background: {hover}; }}
QListView::item:selected, QTreeView::item:selected {{ background: {accent_soft}; color: {text}; }}
QTableView {{ gridline-color: {hair}; }}
QTableView::item {{ padding: 0 5px; border: none; }}
QTableView::item:selected {{ background: {accent_soft}; color: {text}; }}
QHeaderView {{ background: {s1}; }}
/* Up for rising values; Fusion's own arrows point the other way. */
QHeaderView::up-arrow {{ image: url("{up}"); width: 12px; height: 12px; }}
QHeaderView::down-arrow {{ image: url("{down}"); width: 12px; height: 12px; }}
QHeaderView::section {{
    background: {s1}; color: {text2}; font-size: {small_px}px; font-weight: 500; border: none;
    border-bottom: 1px solid {hair}; padding: 0 8px; min-height: 27px;
}}
QTableCornerButton::section {{ background: {s1}; border: none; }}
QTreeView::branch:has-children:closed {{ image: url("{right}"); }}
QTreeView::branch:has-children:open {{ image: url("{down}"); }}

QMenuBar {{ background: {s1}; color: {text2}; border: none; }}
QMenuBar::item {{ background: transparent; padding: 4px 10px; border-radius: {radius_small}px; }}
QMenuBar::item:selected {{ background: {hover}; color: {text}; }}
QMenu {{ background: {s2}; color: {text}; border: 1px solid {hair}; border-radius: {radius}px; padding: 4px; }}
QMenu::item {{ padding: 5px 28px 5px 10px; border-radius: {radius_small}px; }}
QMenu::item:selected {{ background: {accent_soft}; }}
QMenu::item:disabled {{ color: {text3}; }}
QMenu::icon {{ padding-left: 8px; }}
QMenu::separator {{ height: 1px; background: {hair}; margin: 4px 6px; }}
QMenu::right-arrow {{ image: url("{right}"); width: 12px; height: 12px; }}

QScrollArea, QScrollArea > QWidget > QWidget#contents {{ background: transparent; border: none; }}
QScrollBar {{ background: transparent; border: none; margin: 0; }}
QScrollBar:vertical {{ width: 10px; }}
QScrollBar:horizontal {{ height: 10px; }}
QScrollBar::handle {{ background: {handle}; border-radius: 3px; }}
QScrollBar::handle:hover {{ background: {line}; }}
QScrollBar::handle:vertical {{ min-height: 28px; margin: 2px; }}
QScrollBar::handle:horizontal {{ min-width: 28px; margin: 2px; }}
QScrollBar::add-line, QScrollBar::sub-line {{ width: 0; height: 0; }}
QScrollBar::add-page, QScrollBar::sub-page {{ background: transparent; }}
QAbstractScrollArea::corner {{ background: transparent; border: none; }}

QSplitter::handle {{ background: {hair}; }}
QSplitter::handle:horizontal {{ width: 1px; }}
QSplitter::handle:vertical {{ height: 1px; }}
QProgressBar {{
    background: {track}; color: transparent; border: none; border-radius: 2px; max-height: 4px; min-height: 4px;
}}
QProgressBar::chunk {{ background: {accent}; border-radius: 2px; }}
QTabBar::tab {{ background: transparent; color: {text2}; border: none; padding: 6px 12px; }}
QTabBar::tab:selected {{ color: {text}; font-weight: 600; border-bottom: 2px solid {accent}; }}
QTabWidget::pane {{ border: none; border-top: 1px solid {hair}; }}
QStatusBar {{ background: {s1}; border-top: 1px solid {hair}; }}
QStatusBar::item {{ border: none; }}
"""


def stylesheet(tokens: Tokens, metrics: Metrics, arrows: Mapping[str, str]) -> str:
    """Returns the style sheet. `arrows` contains the paths of SVG files by name."""
    values = {name: value for name, value in tokens._asdict().items() if name != "dark"}
    # The handle of a scroll bar may have less contrast than text.
    values["handle"] = tokens.line if tokens.dark else tokens.hair
    sizes = {f"{role}_px": size for role, (size, _) in FONTS.items()}
    return SHEET.format(**values, **sizes, **arrows, radius=metrics.radius, radius_small=metrics.radius_small)
