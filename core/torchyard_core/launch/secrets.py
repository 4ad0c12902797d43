"""Values of secrets: they come from this computer's environment or its keyring, and are never written anywhere."""

from __future__ import annotations

import os

from torchyard_core.errors import RunFailed

SERVICE = "torchyard"
"""Under which name the keyring keeps them."""


def secret_values(names: tuple[str, ...]) -> dict[str, str]:
    """The values of the named secrets: from this process's environment, else from this computer's keyring.

    Raises RunFailed for one that is in neither, or where the keyring cannot be asked.
    """
    return {name: os.environ[name] if name in os.environ else _from_keyring(name) for name in names}


def _from_keyring(name: str) -> str:
    # Imported where it is needed: it looks for the desktop's keyring services, which takes a tenth of a second.
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
        value, why = None, f"it is not in the environment, and the keyring could not be asked: {error}"
    if value is None:
        raise RunFailed(f"the secret {name} is not set on this computer: {why}.", code="secret_missing", hint=set_it)
    return value
