"""Passwords of database roles, from the keyring; Torchyard writes them to no file."""

from __future__ import annotations

from sqlalchemy.engine import URL

SERVICE = "torchyard-bookings"


def keyring_name(url: URL) -> str:
    """The arguments of `keyring set`: the service, and role, host, port and database."""
    return f"{SERVICE} {_entry(url)}"


def kept_password(url: URL) -> str | None:
    """The password in the keyring; None if it has none, or there is no keyring."""
    import keyring
    from keyring.errors import KeyringError

    try:
        return keyring.get_password(SERVICE, _entry(url))
    except KeyringError:
        return None


def _entry(url: URL) -> str:
    host = url.host or url.query.get("host") or "localhost"
    return f"{url.username}@{host}:{url.port or 5432}/{url.database}"
