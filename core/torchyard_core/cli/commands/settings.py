"""`torchyard settings`: show, set and reset the user's settings."""

from __future__ import annotations

from typing import Annotated

import typer

from torchyard_core.cli.context import command_context
from torchyard_core.cli.output import Json, print_json, say, table

app = typer.Typer(no_args_is_help=True, help="Your settings: calendar, time zone, messages, failures.")

Key = Annotated[str, typer.Argument(metavar="KEY", help="The key, as listed by `settings list`.", show_default=False)]


@app.command("list")
def list_(context: typer.Context, as_json: Json = False) -> None:
    """List the settings with their values and defaults.

    Example: torchyard settings list
    """
    from torchyard_core.app.change_settings import SETTINGS, ChangeSettings

    settings, written = ChangeSettings(command_context(context).home).read()
    if as_json:
        print_json({one.key: {"value": getattr(settings, one.key), "is_set": one.key in written} for one in SETTINGS})
        return
    rows = [(one.key, written.get(one.key, f"({one.default})"), one.sentence) for one in SETTINGS]
    table(("KEY", "VALUE", "MEANING"), rows)


@app.command("set")
def set_(
    context: typer.Context,
    key: Key,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="The new value.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Set a key in settings.yaml, and keep the rest of the file.

    Example: torchyard settings set zone Europe/Berlin
    """
    _change(context, key, value, as_json)


@app.command("reset")
def reset(context: typer.Context, key: Key, as_json: Json = False) -> None:
    """Remove a key from settings.yaml, so that its default applies.

    Example: torchyard settings reset zone
    """
    _change(context, key, "", as_json)


def _change(context: typer.Context, key: str, value: str, as_json: bool) -> None:
    from torchyard_core.app.change_settings import ChangeSettings, setting

    before = ChangeSettings(command_context(context).home).change(key, value)
    if as_json:
        print_json({"key": key, "value": value or None, "before": before or None})
    else:
        say(f"{key} is {value or f'the default ({setting(key).default})'} now.")
