"""What was typed about a new host, as a host or as what is wrong with each field. Without Qt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torchyard_core.fleet.inventory import Host
from torchyard_core.problems import no_lines
from torchyard_core.yaml_io.model_validation import validate

REMOTE_ONLY = ("address", "port", "user", "identity_file", "proxy_jump", "transport")
"""What does nothing for this computer, which is reached without SSH."""


def host_of(typed: Mapping[str, str], *, local: bool, taken: Iterable[str] = ()) -> tuple[Host | None, dict[str, str]]:
    """(the host, {}) or (None, what is wrong by field). Empty fields are left out of the fleet file.

    `taken`: names that the fleet has already.
    """
    entry: dict[str, Any] = {"local": True} if local else {}
    wrong: dict[str, str] = {}
    for key, text in typed.items():
        if not text.strip() or (local and key in REMOTE_ONLY):
            continue
        try:
            entry[key] = _value(key, text.strip())
        except ValueError as error:
            wrong[key] = str(error)
    host, problems = validate(Host, {"name": "", **entry}, {}, no_lines)
    for problem in problems:
        wrong.setdefault(problem.path.split(".")[0], f"{problem.message}.")
    if "name" not in entry:
        wrong["name"] = "a host needs a name: what topologies call it."
    elif entry["name"] in taken:
        wrong["name"] = f"the fleet has a host `{entry['name']}` already."
    return (None, wrong) if wrong else (host, {})


def _value(key: str, text: str) -> Any:
    """Raises ValueError with a sentence."""
    if key == "port":
        return int(text) if text.isdecimal() else text
    if key == "bandwidth_gbps":
        try:
            return float(text)
        except ValueError:
            return text
    if key == "labels":
        return dict(_label(word) for word in text.replace(",", " ").split())
    return text


def _label(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals or not key:
        raise ValueError(f"a label is written KEY=VALUE, not '{word}'.")
    return key, value
