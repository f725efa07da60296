"""Triton's interpreter without what it does over and over: the same operations, in less than half the time.

Its own cost, not that of the numbers, is most of a kernel at the sizes of the tests.
"""

import inspect
from collections.abc import Callable
from typing import Any

from triton import language
from triton.runtime import interpreter as runtime


core: Any = language.core  # its attributes are replaced, which a type checker would not have
interpreter: Any = runtime


def speed_up() -> None:
    """Leave out repeated work, for as long as the process lasts."""
    patch_once_a_launch()
    remember_builtins()
    remember_dtypes()
    remember_shapes()


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


def remember_shapes() -> None:
    """Every tensor unwraps, checks and wraps its shape, and spells out types only error messages show."""
    known = {}

    def block(self: Any, element: Any, shape: Any) -> None:
        sizes = tuple(s.value if isinstance(s, core.constexpr) else s for s in shape)
        if sizes not in known:
            if not sizes:
                raise TypeError("0d block_type is forbidden")
            numel, wrapped = core.validate_block_shape(sizes), [core.constexpr(size) for size in sizes]
            known[sizes] = core.tuple(sizes), numel, core.tuple(wrapped), core.constexpr(numel)
        self.element_ty = element
        self.shape, self.numel, self.wrapped_shape, self.wrapped_numel = known[sizes]

    def tensor(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = (type.wrapped_shape, type.wrapped_numel) if type.is_block() else scalar

    def tuple_type(self: Any, types: Any, fields: Any = None) -> None:
        self.types, self.fields = types, fields or [""] * len(types)

    def named(self: Any) -> str:
        return "[" + ",".join(f"{k}:{v}" for k, v in zip(self.fields, self.types, strict=False)) + "]"

    scalar = core.tuple([]), core.constexpr(1)
    core.block_type.__init__, core.tensor.__init__ = block, tensor
    core.block_type.name = property(lambda self: f"<{self.shape}, {self.element_ty}>")
    core.tuple_type.__init__, core.tuple_type.name = tuple_type, property(named)
