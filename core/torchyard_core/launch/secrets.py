"""The values of secrets, which come from this computer's environment or keyring."""

from __future__ import annotations

import os

from torchyard_core.errors import RunFailed

SERVICE = "torchyard"
"""The service name in the keyring."""


def secret_values(names: tuple[str, ...]) -> dict[str, str]:
    """Returns the values of secrets from this process's environment or, where it lacks them, from the keyring.

    Raises RunFailed for a secret that is in neither.
    """
    return {name: os.environ[name] if name in os.environ else _from_keyring(name) for name in names}


def _from_keyring(name: str) -> str:
    # keyring is imported here, because its import searches for keyring services, which takes about 0.1 s.
    import keyring
    from keyring.errors import KeyringError, NoKeyringError

    set_it = f"Set it in the environment (`export {name}=…`), or in the keyring: `keyring set {SERVICE} {name}`."
    why = "it is neither in the environment nor in the keyring"
    try:
        value = keyring.get_password(SERVICE, name)
    except NoKeyringError:
        value, why = None, "it is not in the environment, and this computer has no keyring"
        set_it = f"Set it in the environment: `export {name}=…`."
    except KeyringError as error:
        value, why = None, f"it is not in the environment, and the keyring failed: {error}"
    if value is None:
        raise RunFailed(f"the secret {name} is not set on this computer: {why}.", code="secret_missing", hint=set_it)
    return value
