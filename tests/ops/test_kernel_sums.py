"""What surrounds the kernels and needs neither a GPU nor Triton."""

import pytest
import torch

from uncork.ops.triton import nvrtc


def test_without_a_runtime_compiler_the_integer_sums_take_over(monkeypatch):
    def refuse(*_):
        raise RuntimeError("no NVRTC\nlong log")

    monkeypatch.setattr(nvrtc, "compiled", refuse)
    nvrtc.can_compile.cache_clear()
    with pytest.warns(UserWarning, match=r"\(no NVRTC\)\. Gradients .* slower\. Check .* NVRTC"):
        assert not nvrtc.can_compile(0)
    nvrtc.can_compile.cache_clear()


@pytest.mark.parametrize(
    "error", [torch.cuda.OutOfMemoryError("no room"), RuntimeError("CUDA error: out of memory")], ids=repr
)
def test_too_little_memory_now_says_nothing_of_the_compiler(monkeypatch, error):
    def refuse(*_):
        raise error

    nvrtc.can_compile.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(nvrtc, "compiled", refuse)
        with pytest.raises(RuntimeError, match="no room|out of memory"):
            nvrtc.can_compile(0)
    monkeypatch.setattr(nvrtc, "compiled", lambda *_: None)
    assert nvrtc.can_compile(0)
    nvrtc.can_compile.cache_clear()
