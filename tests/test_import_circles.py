"""The modules of the packages have no circular imports, not even inside functions or for type checking."""

from __future__ import annotations

import graphlib

import grimp

PACKAGES = ("torchyard_agent", "torchyard_roles", "torchyard_core", "torchyard_gui")


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) > 800
    graphlib.TopologicalSorter(imports).prepare()  # Raises CycleError, which contains the modules of a circle.
