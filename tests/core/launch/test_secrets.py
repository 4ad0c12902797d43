"""Tests of reading the values of secrets from the environment or the keyring."""

from __future__ import annotations

from collections.abc import Iterator

import keyring
import pytest
from keyring.backend import KeyringBackend
from keyring.backends import fail

from torchyard_core.errors import RunFailed
from torchyard_core.launch.secrets import SERVICE, secret_values


class MemoryKeyring(KeyringBackend):
    priority = 1  # type: ignore[assignment]  # keyring declares a property.

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[tuple[str, str], str] = {}

    def get_password(self, service: str, username: str) -> str | None:
        return self.kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.kept[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        del self.kept[service, username]


@pytest.fixture
def ring() -> Iterator[MemoryKeyring]:
    before = keyring.get_keyring()
    ring = MemoryKeyring()
    keyring.set_keyring(ring)
    yield ring
    keyring.set_keyring(before)


def test_the_environment_goes_before_the_keyring(ring: MemoryKeyring, monkeypatch: pytest.MonkeyPatch) -> None:
    keyring.set_password(SERVICE, "TOKEN", "of the keyring")
    keyring.set_password(SERVICE, "OTHER", "other")
    monkeypatch.setenv("TOKEN", "of the environment")
    assert secret_values(("TOKEN", "OTHER")) == {"TOKEN": "of the environment", "OTHER": "other"}


def test_a_secret_that_is_nowhere_is_named_with_the_way_to_set_it(ring: MemoryKeyring) -> None:
    with pytest.raises(RunFailed, match="TOKEN is not set") as refused:
        secret_values(("TOKEN",))
    assert "keyring set torchyard TOKEN" in refused.value.hint


def test_a_computer_without_a_keyring_says_so(ring: MemoryKeyring) -> None:
    keyring.set_keyring(fail.Keyring())
    with pytest.raises(RunFailed, match="this computer has no keyring") as refused:
        secret_values(("TOKEN",))
    assert refused.value.hint == "Set it in the environment: `export TOKEN=…`."
