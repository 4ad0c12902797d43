"""JSON schema of the search file, for editors that complete and check YAML.

`python -m torchyard_core.sweeps.json_schema` writes the schema to `resources/search.schema.json`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchyard_core.atomic_write import write_atomically
from torchyard_core.sweeps import model
from torchyard_core.topology.json_schema import as_text, document_schema

SCHEMA_FILE = Path(__file__).parents[3] / "resources" / "search.schema.json"


def search_schema() -> dict[str, Any]:
    """Returns the schema of the search file with each key's description."""
    return document_schema(model.Search, model, "Torchyard search")


def schema_text() -> str:
    return as_text(search_schema())


if __name__ == "__main__":
    write_atomically(SCHEMA_FILE, schema_text())
