"""The password of a role: asked from the keyring, never kept in a file of ours."""

from __future__ import annotations

from sqlalchemy.engine import URL

SERVICE = "torchyard-bookings"


def keyring_name(url: URL) -> str:
    """What follows `keyring set`: our service, and role, host, port and database."""
    return f"{SERVICE} {_entry(url)}"


def kept_password(url: URL) -> str | None:
    """What the keyring has for this address; None where it has nothing, or there is none."""
    import keyring
    from keyring.errors import KeyringError

    try:
        return keyring.get_password(SERVICE, _entry(url))
    except KeyringError:
        return None


def _entry(url: URL) -> str:
    host = url.host or url.query.get("host") or "localhost"
    return f"{url.username}@{host}:{url.port or 5432}/{url.database}"
