"""Closures that a script gives to `optimizer.step(closure)`: what is to happen after each of their calls."""

from __future__ import annotations

from typing import Any, Callable


def with_closure(arguments: tuple[Any, ...], named: dict[str, Any], after: Callable[[Any], Any]) -> Any:
    """For a hook before a step: its arguments with `after(loss)` in place of what the closure returns, made once its
    gradients are there. None where the step has no closure."""
    closure = named.get("closure", arguments[1] if len(arguments) > 1 else None)
    if closure is None:
        return None

    def followed() -> Any:
        return after(closure())

    if "closure" in named:
        return arguments, {**named, "closure": followed}
    return (arguments[0], followed, *arguments[2:]), named
