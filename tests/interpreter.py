"""Triton's interpreter without what it does over and over: the same operations, in about half the time.

Its own cost, not that of the numbers, is most of a kernel at the sizes of the tests.
"""

import inspect
from collections.abc import Callable
from typing import Any

import triton
from triton import language
from triton.runtime import interpreter as runtime


core: Any = language.core  # its attributes are replaced, which a type checker would not have
interpreter: Any = runtime


def speed_up() -> None:
    """Leave out repeated work while the process lasts, in the Triton whose parts have these names."""
    if not triton.__version__.startswith("3.6."):
        return
    patch_once_a_launch()
    remember_builtins()
    remember_dtypes()


def patch_once_a_launch() -> None:
    """Every call inside a kernel searches the language for what to replace: the first of a module will do."""
    patch, restore = interpreter._patch_lang, interpreter._LangPatchScope.restore
    patched: set[int] = set()

    def patch_first(function: Callable) -> Any:
        if id(function.__globals__) in patched:
            return interpreter._LangPatchScope()
        patched.add(id(function.__globals__))
        return patch(function)

    def restore_all(scope: Any) -> None:  # called where a launch ends
        patched.clear()
        restore(scope)

    interpreter._patch_lang = patch_first
    interpreter._LangPatchScope.restore = restore_all


def remember_builtins() -> None:
    """What is to be replaced in a part of the language, which every launch finds among all its members."""
    names: dict[Any, list[str]] = {}

    def patch(part: Any, builder: Any, scope: Any) -> None:
        if part not in names:
            names[part] = [name for name, member in inspect.getmembers(part) if core.is_builtin(member)]
        for name in names[part]:
            member = getattr(part, name)
            if core.is_builtin(member):  # not replaced already
                interpreter._patch_attr(part, name, member, builder, scope)

    interpreter._patch_builtin = patch


def remember_dtypes() -> None:
    """The dtype in numpy of a type, or of a block of it, is looked up in a dict that is built each time."""
    look_up, known = interpreter._get_np_dtype, {}

    def remember(type_: Any) -> Any:
        name = type_.scalar.name
        if name not in known:
            known[name] = look_up(type_.scalar)
        return known[name]

    interpreter._get_np_dtype = remember
