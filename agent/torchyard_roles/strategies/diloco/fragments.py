"""The fragments of a model, which are averaged in turn, and the steps at which they are sent.

After Douillard et al., Streaming DiLoCo with overlapping communication (2025).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch


def divide(
    models: Iterable[torch.nn.Module], trained: Iterable[torch.nn.Parameter], fragments: int
) -> list[list[torch.nn.Parameter]]:
    """Divides the trained parameters by modules into fragments of similar size in bytes.

    Modules are assigned in order. The first modules go to different fragments, and each later module to the fragment
    that is the smallest so far. Each fragment therefore has modules from all parts of the model. There are at most as
    many fragments as modules with trained parameters.
    """
    left = {id(each): each for each in trained}
    order = list(left.values())
    if fragments == 1:
        return [order]
    modules: list[list[torch.nn.Parameter]] = []
    for model in models:
        for module in model.modules():
            own = [left.pop(id(each)) for each in module.parameters(recurse=False) if id(each) in left]
            if own:
                modules.append(own)
    modules += [[each] for each in left.values()]  # Parameters that belong to no module are added last.
    fragments = min(fragments, len(modules))
    found: list[list[torch.nn.Parameter]] = [[] for _ in range(fragments)]
    sizes = [0] * fragments
    for number, module_parameters in enumerate(modules):
        # The first modules go to different fragments, even if modules have no elements, so no fragment is empty.
        smallest = number if number < fragments else sizes.index(min(sizes))
        found[smallest] += module_parameters
        sizes[smallest] += sum(each.numel() * each.element_size() for each in module_parameters)
    return found


def steps_before(fragment: int, fragments: int, inner_steps: int) -> int:
    """Returns the number of steps from sending the previous fragment to sending `fragment`.

    With P fragments and H inner steps, fragment p is sent after ⌊(p+1)·H/P⌋ steps.
    """
    return (fragment + 1) * inner_steps // fragments - fragment * inner_steps // fragments
