"""The types of the settings that hosts and cluster logins share in the fleet file."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator


def _argument(word: str) -> str:
    # The value becomes an argument of ssh, which would interpret a leading dash as an option.
    if not word or word.startswith("-") or not word.isprintable() or " " in word:
        raise ValueError(f"must be one word that does not begin with `-`, not '{word}'")
    return word


def _jumps(text: str) -> str:
    try:
        return _argument(text)
    except ValueError:
        form = "user@address:port without spaces, such as kim@bastion:2222, and several with commas between them"
        raise ValueError(f"must be {form}, not '{text}'") from None


class Transport(StrEnum):
    """The SSH client that connects to a host."""

    PARAMIKO = "paramiko"
    OPENSSH = "openssh"


Word = Annotated[str, AfterValidator(_argument)]
Jumps = Annotated[str, AfterValidator(_jumps)]
"""Bastions, separated by commas."""
