"""JSON schema of the topology file, for editors that complete and check YAML.

`python -m torchyard_core.topology.json_schema` writes the schema to `resources/topology.schema.json`.
"""

from __future__ import annotations

import ast
import inspect
import json
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel

from torchyard_core.atomic_write import write_atomically
from torchyard_core.topology import model
from torchyard_core.topology.model import Topology

SCHEMA_FILE = Path(__file__).parents[3] / "resources" / "topology.schema.json"
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def topology_schema() -> dict[str, Any]:
    """Returns the schema of the topology file with each key's description."""
    return document_schema(Topology, model, "Torchyard topology")


def document_schema(root: type[BaseModel], module: ModuleType, title: str) -> dict[str, Any]:
    """Returns the schema of a document. The docstring of each key in `module` becomes the description of the key."""
    schema: dict[str, Any] = root.model_json_schema()
    _describe(schema, root.__name__, module)
    schema = _tidied(schema)
    return {"$schema": DIALECT, "title": title, **schema}


def schema_text() -> str:
    return as_text(topology_schema())


def as_text(schema: dict[str, Any]) -> str:
    """Returns a schema as the content of its file in `resources`."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _describe(schema: dict[str, Any], root: str, module: ModuleType) -> None:
    """Adds each key's docstring to the schema.

    pydantic could read the docstrings itself, but that would slow down each start of the program.
    """
    blocks = {root: schema, **schema["$defs"]}
    for node in ast.parse(inspect.getsource(module)).body:
        if not isinstance(node, ast.ClassDef):
            continue
        keys = blocks.get(node.name, {}).get("properties", {})
        for key, below in zip(node.body, node.body[1:], strict=False):
            if not isinstance(key, ast.AnnAssign) or not isinstance(key.target, ast.Name) or key.target.id not in keys:
                continue
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                described = keys[key.target.id] | {"description": inspect.cleandoc(str(below.value.value))}
                keys[key.target.id] = dict(sorted(described.items()))


def _tidied(part: Any) -> Any:
    """Returns the schema without the titles that pydantic derives from key names, and with one-line descriptions."""
    if isinstance(part, list):
        return [_tidied(item) for item in part]
    if not isinstance(part, dict):
        return part
    tidy = {}
    for key, value in part.items():
        if key == "title" and isinstance(value, str):
            continue
        tidy[key] = " ".join(value.split()) if key == "description" and isinstance(value, str) else _tidied(value)
    return tidy


if __name__ == "__main__":
    write_atomically(SCHEMA_FILE, schema_text())
