"""What surrounds the kernels and needs neither a GPU nor Triton."""

import pytest

from uncork.ops.triton import nvrtc


def test_without_a_runtime_compiler_the_integer_sums_take_over(monkeypatch):
    def refuse(*_):
        raise RuntimeError("no NVRTC\nlong log")

    monkeypatch.setattr(nvrtc, "compiled", refuse)
    nvrtc.can_compile.cache_clear()
    with pytest.warns(UserWarning, match="cannot be compiled here: no NVRTC$"):
        assert not nvrtc.can_compile(0)
    nvrtc.can_compile.cache_clear()
