"""Nested containers of tensors, rebuilt with every tensor replaced.

Known are tuples, named tuples, lists, dicts, and every class that is registered with
``torch.utils._pytree``, such as the outputs of transformers. Whatever else is found is a leaf.
torch's own walk does the same and takes about ten times as long, on the path between two steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

TensorFunction = Callable[[torch.Tensor], torch.Tensor]


def map_tensors(
    function: TensorFunction,
    tree: Any,
    check_leaf: Callable[[Any], None] | None = None,
) -> Any:
    """The same containers with ``function(tensor)`` in each tensor's place, left to right.

    Args:
        function: called with each tensor.
        tree: a tensor, a container, or anything else, which is handed through as it is.
        check_leaf: called with each leaf that is not a tensor; may raise.
    """
    if isinstance(tree, torch.Tensor):
        return function(tree)
    kind = type(tree)
    if kind is tuple:
        return tuple([map_tensors(function, child, check_leaf) for child in tree])
    if kind is list:
        return [map_tensors(function, child, check_leaf) for child in tree]
    if kind is dict:
        return {key: map_tensors(function, child, check_leaf) for key, child in tree.items()}
    if isinstance(tree, tuple) and hasattr(kind, "_fields"):
        return kind(*[map_tensors(function, child, check_leaf) for child in tree])
    node = pytree.SUPPORTED_NODES.get(kind)
    if node is not None:
        children, context = node.flatten_fn(tree)
        mapped = [map_tensors(function, child, check_leaf) for child in children]
        return node.unflatten_fn(mapped, context)
    if check_leaf is not None:
        check_leaf(tree)
    return tree


def refuse_hidden_tensors(leaf: Any) -> None:
    """Refuse an object that holds tensors and that no walk looks into.

    Its tensors would be handed on where they are, and a later step may overwrite them.

    Raises:
        TypeError: the object has a tensor among its attributes or elements.
    """
    if leaf is None or isinstance(leaf, (bool, int, float, str, bytes)):
        return
    if isinstance(leaf, (set, frozenset)):
        held = list(leaf)
    elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
        held = [getattr(leaf, field.name, None) for field in dataclasses.fields(leaf)]
    else:
        held = list(getattr(leaf, "__dict__", {}).values())
    if any(isinstance(value, torch.Tensor) for value in held):
        name = type(leaf).__name__
        raise TypeError(
            f"the step returned an object of {name}, which holds tensors out of sight; return "
            "tensors in tuples, lists or dicts, or register the class: "
            f"torch.utils._pytree.register_pytree_node({name}, ...)"
        )
