"""`torchyard import` and `export`: conversion between topologies and documents of other systems."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchyard_core.cli.context import command_context
from torchyard_core.cli.file_or_stdin import FILE, SET, text_of, topology_of
from torchyard_core.cli.output import Json, print_document, print_json, remark
from torchyard_core.errors import UsageError

if TYPE_CHECKING:
    from torchyard_core.interop.remarks import Remark
    from torchyard_core.topology.file import TopologyFile

BOTH_WAYS = "cloudml, vertex, cluster-spec, tf-config, tensorflow, singa"
FORMAT = typer.Argument(metavar="FORMAT", help=f"{BOTH_WAYS}; accelerate, deepspeed.", show_default=False)
TARGET = typer.Argument(metavar="FORMAT", help=f"{BOTH_WAYS}; torchx, kubernetes, slurm.", show_default=False)
FOREIGN = typer.Argument(metavar="FILE", help="The document; - reads it from stdin.", show_default=False)
OUTPUT = typer.Option("-o", "--output", metavar="FILE", help="Write the document to a file; - is stdout.")


def import_(
    format_: Annotated[str, FORMAT],
    file: Annotated[Path, FOREIGN],
    output: Annotated[Path | None, OUTPUT] = None,
    as_json: Json = False,
) -> None:
    """Print another system's document as a topology. Keys without an equivalent are listed on stderr with their lines.

    Exit code 2: the document has another format or is invalid.

    Example: torchyard import vertex job.yaml -o digits.yaml
    """
    from torchyard_core.interop.format_registry import read_foreign
    from torchyard_core.topology.file import dump

    text, source = text_of(file)
    imported = read_foreign(format_, text, source)
    document = dump(imported.topology)
    if as_json:
        remarks = [one.to_json() for one in imported.remarks]
        print_json({"format": format_, "topology": imported.topology.as_data(), "remarks": remarks})
        _write(output, document)
        return
    _print(document, output, imported.remarks, source)


def export(
    context: typer.Context,
    format_: Annotated[str, TARGET],
    file: Annotated[Path, FILE],
    output: Annotated[Path | None, OUTPUT] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="FORM",
            help="vertex: yaml, json, flags. cluster-spec, tf-config: json, export. tensorflow: commands, cluster, "
            "sparse. kubernetes: jobset, job. The first one by itself.",
        ),
    ] = None,
    image: Annotated[
        str | None, typer.Option(metavar="IMAGE", help="The container image; vertex, torchx and kubernetes need one.")
    ] = None,
    replica: Annotated[
        str | None,
        typer.Option(metavar="REPLICA", help="Whose CLUSTER_SPEC, TF_CONFIG or sparse ClusterSpec; else the chief's."),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(metavar="CLUSTER", help="slurm: the script that `run --on CLUSTER` submits."),
    ] = None,
    search: Annotated[
        Path | None,
        typer.Option(metavar="SEARCH", help="slurm: the script that `sweep FILE SEARCH --on CLUSTER` submits."),
    ] = None,
    set_: Annotated[list[str] | None, SET] = None,
    as_json: Json = False,
) -> None:
    """Print a topology as another system's document. Settings without an equivalent are listed on stderr.

    Exit code 1: the topology has errors. 2: the format cannot express the topology.

    Example: torchyard export kubernetes examples/digits/downpour.yaml --image registry/digits:1
    """
    from torchyard_core.interop.document_writer import ExportOptions
    from torchyard_core.interop.format_registry import format_named, problems_of_export, write_foreign
    from torchyard_core.problems import has_errors

    format_named(format_)
    source = topology_of(file).with_overrides(set_ or [])
    problems = problems_of_export(source)
    if source.topology is None or has_errors(problems):
        for problem in problems:
            remark(problem.printed(source.source))
        if as_json:
            print_json({"format": format_, "text": None, "problems": [problem.to_json() for problem in problems]})
        raise typer.Exit(1)
    if search is not None and on is None:
        raise UsageError("--search is for a cluster alone.", code="usage", hint="Name it with --on.")
    if on is not None:
        _print_submitted(context, format_, source, on, output, search, as_json=as_json)
        return
    exported = write_foreign(format_, source.topology, ExportOptions(form, image, replica))
    if as_json:
        remarks = [one.to_json() for one in exported.remarks]
        print_json({"format": format_, "text": exported.text, "remarks": remarks})
        _write(output, exported.text)
        return
    _print(exported.text, output, exported.remarks, source.source)


def _print_submitted(
    context: typer.Context,
    format_: str,
    source: TopologyFile,
    cluster: str,
    output: Path | None,
    search: Path | None,
    *,
    as_json: bool,
) -> None:
    """Prints the script that a launch on the cluster submits. Logs in to the cluster to plan."""
    from torchyard_core.app.launch_sweep import valid_search
    from torchyard_core.engines.registry import submitted_script
    from torchyard_core.sweeps.search_file import read_search

    if format_ != "slurm":
        raise UsageError("--on is for the format slurm alone.", code="usage")
    chosen = command_context(context)
    with chosen.fleet(()) as fleet:
        settings = valid_search(read_search(search), source) if search is not None else None
        text = submitted_script(source, cluster, fleet, settings)
    if as_json:
        print_json({"format": format_, "text": text, "remarks": []})
        _write(output, text)
        return
    _print(text, output, (), source.source)


def _print(document: str, output: Path | None, remarks: Sequence[Remark], source: str) -> None:
    if output is None or str(output) == "-":
        print_document(document)
    _write(output, document)
    for one in remarks:
        remark(one.printed(source))


def _write(output: Path | None, document: str) -> None:
    from torchyard_core.atomic_write import write_atomically

    if output is None or str(output) == "-":
        return
    try:
        write_atomically(output, document)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"{output} cannot be written: {reason}.", code="unwritable_file") from None
