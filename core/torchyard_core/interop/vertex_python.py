"""`worker_pool_specs = [{…}, …]` in a Python script, as the Vertex AI SDK's own examples give the pools of a job."""

from __future__ import annotations

import ast
import re

from torchyard_core.interop.document_reader import refuse
from torchyard_core.interop.python_literals import PythonText, is_script
from torchyard_core.yaml_io.yaml_file import Document

KEY = "worker_pool_specs"
_NAMED = re.compile(rf"\b{KEY}\b")
_IMAGES = ("image_uri", "executor_image_uri", "output_image_uri", "package_uris", "disk_spec", "nfs_mounts")
"""Keys whose values a script may work out, for they are left out here, and looked at for what kind they are."""


def is_in_script(text: str) -> bool:
    """Whether pools are given in Python, which is not YAML or JSON too."""
    return bool(_NAMED.search(text)) and is_script(text)


def job_of_script(text: str, source: str) -> Document:
    """The pools, and the job's name where it is written out. Raises FileProblem where the script works them out."""
    script = PythonText(text, source)
    pools = script.find([KEY])
    if pools is None:
        refuse(source, 1, f"no statement here gives `{KEY}` a value.", f"Paste `{KEY} = [{{…}}, …]`.")
    name = script.find(["display_name"])
    said = {KEY: pools, "display_name": name} if isinstance(name, ast.Constant) else {KEY: pools}
    keys: list[ast.expr | None] = [ast.copy_location(ast.Constant(key), one) for key, one in said.items()]
    return script.document(ast.copy_location(ast.Dict(keys, list(said.values())), pools), _IMAGES)
