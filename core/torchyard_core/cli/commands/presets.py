"""`torchyard presets`: predefined topologies for scale tiers, strategies and other frameworks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from torchyard_core.cli.output import Json, print_json, say, table
from torchyard_core.formatting import counted

if TYPE_CHECKING:
    from torchyard_core.topology.machine_types import Machine

MACHINES = "machine types"
app = typer.Typer(no_args_is_help=True, help="Scale tiers and frameworks to begin a topology with.")


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the presets and the machine types with their sizes.

    Example: torchyard presets list
    """
    from torchyard_core.topology.machine_types import cloudml_machines
    from torchyard_core.topology.strategies.presets import all_presets

    presets, machines = all_presets(), cloudml_machines()
    if as_json:
        of_machines = [{"name": one.name, "group": MACHINES, "pool": one.as_pool()} for one in machines]
        print_json([*(preset.as_data() for preset in presets), *of_machines])
        return
    rows = [(preset.key, preset.group, preset.title, preset.sentence) for preset in presets]
    rows += [(one.name, MACHINES, one.machine, _size(one)) for one in machines]
    table(("NAME", "GROUP", "TITLE", "WHAT IT MAKES"), rows)


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name, as shown by `presets list`.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Print a preset as a topology file; for a machine type, the fields of a pool.

    Example: torchyard presets show standard_1 > digits.yaml
    """
    from torchyard_core.topology.file import dump
    from torchyard_core.topology.machine_types import cloudml_machines
    from torchyard_core.topology.strategies.presets import preset, preset_topology
    from torchyard_core.yaml_io.writer import dump_yaml

    of_machine = next((one.as_pool() for one in cloudml_machines() if one.name == name), None)
    if of_machine is not None:
        if as_json:
            print_json({"name": name, "group": MACHINES, "pool": of_machine})
        else:
            say(dump_yaml(of_machine).rstrip("\n"))
        return
    chosen = preset(name)
    topology = preset_topology(name)
    if as_json:
        print_json({**chosen.as_data(), "topology": topology.as_data()})
    else:
        say(dump(topology).rstrip("\n"))


def _size(one: Machine) -> str:
    gpus = f", {one.gpus} × {one.gpu_model}" if one.gpus else ""
    cpus = f"{counted(one.cpus, 'CPU')}, " if one.cpus is not None else ""
    return f"{cpus}{one.memory_gb:g} GB{gpus}."
