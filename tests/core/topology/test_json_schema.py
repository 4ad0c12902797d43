from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.core.examples import EVERY_KEY
from torchyard_core.topology.json_schema import SCHEMA_FILE, schema_text, topology_schema
from torchyard_core.yaml_io.parser import parse_yaml


def mismatches(text: str) -> list[str]:
    validator = Draft202012Validator(topology_schema())
    return [error.message for error in validator.iter_errors(parse_yaml(text, "x").data)]


def test_the_schema_in_resources_is_the_model_s() -> None:
    assert SCHEMA_FILE.read_text(encoding="utf-8") == schema_text(), (
        "run `python -m torchyard_core.topology.json_schema` and commit resources/topology.schema.json"
    )


def test_it_is_a_schema() -> None:
    Draft202012Validator.check_schema(topology_schema())


def test_the_example_of_the_format_is_valid() -> None:
    assert mismatches(EVERY_KEY) == []


def test_numbers_are_allowed_where_the_reader_takes_them_as_text() -> None:
    text = (
        "version: 1\nname: x\npools: [{name: w, role: worker, replicas: 1}]\nprogram: {script: a, args: [--lr, 0.1]}\n"
    )
    assert mismatches(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "version: 2\nname: x\npools: [{name: w, role: worker, replicas: 1}]\nprogram: {}\n",
        "version: 1\nname: x\npools: [{name: w, role: wrker, replicas: 1}]\nprogram: {}\n",
        "version: 1\nname: x\npools: [{name: w, role: worker, replicas: 0}]\nprogram: {}\n",
        "version: 1\nname: x\npools: [{name: w, role: worker, replicas: 1, x: 1}]\nprogram: {}\n",
        "version: 1\nname: x\npools: []\nprogram: {}\n",
        "version: 1\nname: x\nprogram: {}\n",
    ],
)
def test_what_the_reader_refuses_the_schema_refuses(text: str) -> None:
    assert mismatches(text) != []


def test_every_key_has_a_description() -> None:
    schema = topology_schema()
    blocks = [schema, *(block for block in schema["$defs"].values() if "properties" in block)]
    keys: list[tuple[str, Any]] = [pair for block in blocks for pair in block["properties"].items()]
    assert len(keys) > 50
    for name, key in keys:
        # The description of a key may be that of its named type.
        referred = schema["$defs"].get(key.get("$ref", "").removeprefix("#/$defs/"), {})
        assert "description" in key | referred, name
