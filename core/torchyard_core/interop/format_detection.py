"""Detects the format of a document, so that an error can name the document's actual format."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from torchyard_core.errors import FileProblem
from torchyard_core.interop.document_reader import DocumentReader, refuse
from torchyard_core.next_steps import Advice, ImportDocument, ValidateTopology
from torchyard_core.yaml_io.parser import parse_yaml

TITLES = {
    "cloudml": "a CloudML job",
    "vertex": "a Vertex job",
    "cluster-spec": "a CLUSTER_SPEC",
    "tf-config": "a TF_CONFIG",
    "tensorflow": "a TensorFlow cluster",
    "singa": "a SINGA job",
    "accelerate": "a configuration of Accelerate",
    "deepspeed": "a DeepSpeed hostfile",
    "torchx": "a TorchX AppDef",
    "kubernetes": "a Kubernetes document",
    "slurm": "a Slurm batch script",
    "topology": "a Torchyard topology",
}
"""The name of each format's documents in error messages."""

_TF_JOBS = {"chief", "master", "worker", "ps", "evaluator"}
_POOLS = re.compile(r"worker_?pool_?specs", re.IGNORECASE)
_POOLS_GIVEN = re.compile(r"\b(worker_pool_specs)\s*(?::[^=\n]*)?=(?!=)")
_ASSIGNED = re.compile(
    r"\A(\s*(?:#[^\n]*\n\s*)*(?:export\s+)?(?:CLUSTER_SPEC|TF_CONFIG)\s*=\s*)(['\"]?)", re.IGNORECASE
)
_DUMPED = re.compile(r"""["'](?:CLUSTER_SPEC|TF_CONFIG)["']\]\s*=\s*json\.dumps\(\s*(?={)""")
_KEY = re.compile(r"""(?:^|[{,])\s*(["']?)(\w+)\1\s*:(?=\s|$|[\[{"'])""", re.MULTILINE)
_SINGA = re.compile(
    r"\bn(?:worker|server)(?:_groups|s_per_(?:group|procs))\s*:|\bserver_worker_separate\s*:"
    r"|\bneuralnet\s*:?\s*[{<]|^[ \t]*cluster\s*(?::\s*<|[{<]|\[\s*[{<])",
    re.MULTILINE,
)
"""Keys and blocks that only SINGA's format has."""
_SLOTS = re.compile(r"^[ \t]*[^\s#]\S*[ \t]+slots=\d", re.MULTILINE)
_IN_YAML = ("cloudml", "vertex", "cluster-spec", "tf-config", "accelerate")
"""Formats whose documents are always YAML or JSON."""


def strip_assignment(text: str) -> str:
    """Returns the value that the text assigns to TF_CONFIG or CLUSTER_SPEC, with its line numbers preserved.

    Returns any other text unchanged.
    """
    if (dumped := _DUMPED.search(text)) is not None:
        return first_braces(text, dumped.end())
    match = _ASSIGNED.match(text)
    if match is None:
        return text
    before, quote = match[1], match[2]
    value = text[match.end() :].rstrip()
    if quote and value.endswith(quote):
        value = value[:-1]
    if quote == '"':
        value = value.replace('\\"', '"')
    return "\n" * before.count("\n") + value


def first_braces(text: str, start: int) -> str:
    """Returns the first `{…}` after the position `start`, preceded by newlines so that line numbers are preserved.

    Returns the whole text if it contains no braces.
    """
    start = text.find("{", start)
    depth = 0
    for end in range(start, len(text)) if start >= 0 else ():
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return "\n" * text.count("\n", 0, start) + text[start : end + 1]
    return text


def _keys(data: Any) -> set[str]:
    return {str(key) for key in data} if isinstance(data, dict) else set()


def _is_vertex(data: Any, text: str) -> bool:
    if "--worker-pool-spec" in text:
        return True
    if isinstance(data, list):
        return any(_keys(pool) & {"machineSpec", "machine_spec", "containerSpec", "container_spec"} for pool in data)
    inner = [data, *(data.values() if isinstance(data, dict) else ())]
    return any(_POOLS.fullmatch(key) for part in inner for key in _keys(part))


def _cluster_keys(data: Any) -> set[str]:
    return _keys(data.get("cluster")) if isinstance(data, dict) else set()


def _is_singa(data: Any, text: str) -> bool:
    if _SINGA.search(text):
        return True
    # The syntax `cluster: {…}` belongs to SINGA, but is also valid YAML.
    tf_jobs = any(key in _TF_JOBS or key.startswith("workerpool") for key in _cluster_keys(data))
    return not tf_jobs and re.search(r"^[ \t]*cluster\s*:\s*(?:\{|\[\s*[{<])", text, re.MULTILINE) is not None


def _is_cluster_spec(data: Any, _text: str) -> bool:
    return any(key.startswith("workerpool") for key in _cluster_keys(data))


def _is_tf_config(data: Any, _text: str) -> bool:
    return isinstance(data, dict) and "cluster" in data and not _is_cluster_spec(data, "")


def _is_tensorflow(data: Any, text: str) -> bool:
    if re.search(r"--?(ps|worker)_hosts\b|ClusterSpec\s*\(", text):
        return True
    return bool(_keys(data)) and _keys(data) <= _TF_JOBS


SIGNS: dict[str, Callable[[Any, str], bool]] = {
    "slurm": lambda _data, text: "#SBATCH" in text,
    "torchx": lambda _data, text: "specs.AppDef" in text,
    "singa": _is_singa,
    "vertex": _is_vertex,
    "cloudml": lambda data, _text: bool(_keys(data) & {"trainingInput", "scaleTier", "training_input", "scale_tier"}),
    "kubernetes": lambda data, _text: {"apiVersion", "kind"} <= _keys(data),
    "cluster-spec": _is_cluster_spec,
    "tf-config": _is_tf_config,
    "tensorflow": _is_tensorflow,
    "accelerate": lambda data, _text: (
        bool(_keys(data) & {"distributed_type", "compute_environment"})
        or {"num_machines", "num_processes"} <= _keys(data)
    ),
    "deepspeed": lambda _data, text: _SLOTS.search(text) is not None,
    "topology": lambda data, _text: {"version", "pools"} <= _keys(data),
}
"""A test for each format, called with (parsed data, text). The first test that returns True determines the format.

If the text does not parse, the parsed data is a dictionary of the keys that were found in the text.
"""


def detect_format(text: str, among: Iterable[str] = TITLES) -> str | None:
    """Returns the name of a document's format, or None for an unknown format."""
    text = strip_assignment(text)
    try:
        data = parse_yaml(text, "document").data
    except FileProblem:
        data = _keys_of_invalid(text)
    if isinstance(data, str):
        data = _keys_of_invalid(text)  # YAML parses a script as a single string.
    wanted = set(among)
    return next((name for name, fits in SIGNS.items() if name in wanted and fits(data, text)), None)


def _keys_of_invalid(text: str) -> dict[str, Any]:
    """Returns the keys in text that does not parse. The keys determine which format's reader reports the error."""
    keys: dict[str, Any] = dict.fromkeys(match[2] for match in _KEY.finditer(text))
    keys |= dict.fromkeys(match[1] for match in _POOLS_GIVEN.finditer(text))
    if "cluster" in keys:
        keys["cluster"] = dict.fromkeys(key for key in keys if key.startswith("workerpool"))
    return keys


def expect(name: str, text: str, source: str, allowed: str) -> None:
    """Raises FileProblem for a document that does not have the format `name`.

    `allowed` describes the content of a document of this format. If the text has no known format, and documents of the
    format `name` are always YAML or JSON, a syntax error of the text is reported instead.
    """
    if not text.strip():
        refuse(source, None, "the file is empty.", f"{_sentence(name)} holds {allowed}.")
    if detect_format(text, [name]):
        return
    found = detect_format(text)
    if found is None:
        if name in _IN_YAML:
            DocumentReader.of(strip_assignment(text), source)
        refuse(source, 1, f"this is not {TITLES[name]}.", f"It must hold {allowed}.")
    hint: Advice = f"It must hold {allowed}."
    if found == "topology":
        hint = ("A topology is read as it is.", ValidateTopology(source))
    elif found not in ("torchx", "kubernetes", "slurm"):
        hint = (ImportDocument(found, source), f"{_sentence(name)} holds {allowed}.")
    refuse(source, 1, f"this looks like {TITLES[found]}, not {_short(name)}.", hint)


def _sentence(name: str) -> str:
    title = TITLES[name]
    return title[0].upper() + title[1:]


def _short(name: str) -> str:
    """Returns the short name of a format, such as `CloudML` for "a CloudML job"."""
    words = TITLES[name].removeprefix("a ").removesuffix(" job")
    return words if name in ("cloudml", "vertex", "singa", "cluster-spec", "tf-config") else TITLES[name]
