"""The topology file's JSON schema, for editors that complete and check YAML.

`python -m torchyard_core.topology.schema` writes it to `resources/topology.schema.json`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torchyard_core.topology.atomic_file import write_atomically
from torchyard_core.topology.model import Topology

SCHEMA_FILE = Path(__file__).parents[3] / "resources" / "topology.schema.json"
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def topology_schema() -> dict[str, Any]:
    """The schema, with each key's description."""
    schema: dict[str, Any] = _tidied(Topology.model_json_schema())
    return {"$schema": DIALECT, "title": "Torchyard topology", **schema}


def schema_text() -> str:
    return json.dumps(topology_schema(), indent=2, ensure_ascii=False) + "\n"


def _tidied(part: Any) -> Any:
    """Without the titles that pydantic makes of key names, and with each description on one line."""
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
