"""Heads whose parameters are divided among processes, here one: what FSDP asks of a module."""

import pytest
import torch
from torch import distributed as dist

from tests.helpers import ALL_HEADS


pytestmark = pytest.mark.skipif(not dist.is_available(), reason="no torch.distributed")

# Not one whose parameter has no dimension: FSDP refuses that by itself, and says what to do.
SHARDED = [name for name in ALL_HEADS if name != "users_own"]


@pytest.fixture
def processes(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("name", SHARDED)
def test_a_sharded_head_is_the_head(processes, name):
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    head, hidden, target = ALL_HEADS[name](6, 14), torch.randn(5, 6), torch.randint(14, (5,))
    loss = head(hidden, target)
    expected = torch.autograd.grad(loss, list(head.parameters()))
    fully_shard(head)
    sharded = head(hidden, target)
    sharded.backward()
    torch.testing.assert_close(sharded, loss)
    for parameter, right in zip(head.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad.full_tensor(), right)


@pytest.mark.parametrize("name", SHARDED)
def test_a_sharded_head_predicts_and_prints(processes, name):
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    head, hidden = ALL_HEADS[name](6, 14), torch.randn(5, 6)
    expected = head.predict(hidden)
    fully_shard(head)
    with pytest.raises(TypeError, match=r'`predict`.*register_fsdp_forward_method\(head, "predict"\)'):
        head.predict(hidden)
    assert "6, 14" in repr(head)
    register_fsdp_forward_method(head, "predict")
    assert torch.equal(head.predict(hidden), expected)


@pytest.mark.filterwarnings("ignore:DTensor random operators may not")  # torch's own, on CPU
@pytest.mark.parametrize("name", SHARDED)
def test_a_head_made_without_memory_starts_when_it_has_some(processes, name):
    """As large models are made: on no device, sharded, given memory, and only then filled."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(3)
    expected = {key: value.clone() for key, value in ALL_HEADS[name](6, 14).named_parameters()}
    with torch.device("meta"):
        head = ALL_HEADS[name](6, 14)
    fully_shard(head)
    head.to_empty(device="cpu")
    for parameter in head.parameters():
        torch.nn.init.constant_(parameter, torch.nan)
    for module in head.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    for key, parameter in head.named_parameters():
        start = parameter.full_tensor().detach()
        assert start.isfinite().all(), key
        if key.startswith("function"):
            torch.testing.assert_close(start, expected[key])
        else:
            torch.testing.assert_close(start.std(), expected[key].std(), rtol=0.5, atol=0.0)


def test_a_function_that_is_sharded_by_itself_is_refused(processes):
    from torch.distributed.fsdp import fully_shard

    head = ALL_HEADS["plif"](6, 14)
    fully_shard(head.function)
    fully_shard(head)
    with pytest.raises(TypeError, match=r"`function` .* its v is sharded .* fully_shard\(head\)"):
        head(torch.randn(5, 6), torch.randint(14, (5,)))
