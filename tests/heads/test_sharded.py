"""Heads whose parameters are divided among processes, here one: what FSDP asks of a module."""

import pytest
import torch
from torch import distributed as dist

from tests.helpers import ALL_HEADS


pytestmark = pytest.mark.skipif(not dist.is_available(), reason="no torch.distributed")


@pytest.fixture
def processes(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


# Not one whose parameter has no dimension: FSDP refuses that by itself, and says what to do.
@pytest.mark.parametrize("name", [name for name in ALL_HEADS if name != "users_own"])
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


def test_a_function_that_is_sharded_by_itself_is_refused(processes):
    from torch.distributed.fsdp import fully_shard

    head = ALL_HEADS["plif"](6, 14)
    fully_shard(head.function)
    fully_shard(head)
    with pytest.raises(TypeError, match=r"`function` .* its v is sharded .* fully_shard\(head\)"):
        head(torch.randn(5, 6), torch.randint(14, (5,)))
