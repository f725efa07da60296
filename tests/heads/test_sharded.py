"""Heads whose parameters are divided among processes, here one: what FSDP asks of a module."""

import pytest
import torch
from torch import distributed as dist

from uncork.functions import PLIF, MonotoneNetwork, Scale
from uncork.heads import MixtureHead, MonotonicHead, SoftmaxHead


pytestmark = pytest.mark.skipif(not dist.is_available(), reason="no torch.distributed")
HEADS = {
    "softmax": lambda: SoftmaxHead(6, 14),
    "scale": lambda: MonotonicHead(6, 14, Scale()),
    "network": lambda: MonotonicHead(6, 14, MonotoneNetwork(4, skip=True)),
    "plif": lambda: MonotonicHead(6, 14, PLIF(50, 5.0, "random", seed=0)),
    "mixture": lambda: MixtureHead(6, 14, components=3, function=PLIF(50)),
}


@pytest.fixture
def processes(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("name", HEADS)
def test_a_sharded_head_is_the_head(processes, name):
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    head, hidden, target = HEADS[name](), torch.randn(5, 6), torch.randint(14, (5,))
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

    head = HEADS["plif"]()
    fully_shard(head.function)
    fully_shard(head)
    with pytest.raises(TypeError, match=r"`function` .* its v is sharded .* fully_shard\(head\)"):
        head(torch.randn(5, 6), torch.randint(14, (5,)))
