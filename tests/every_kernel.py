"""Every GPU kernel once, at small sizes, for a sanitizer that slows them down a hundredfold.

compute-sanitizer --tool racecheck python -m tests.every_kernel

Values are compared with plain torch in float64, so that a run that checks nothing cannot pass.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, log_softmax, nll_loss

from uncork.functions import PLIF, Scale, SigSoftmax, SoftCap
from uncork.lm.config import Config, DataConfig, HeadConfig, ModelConfig, OptimConfig
from uncork.lm.step import Carried, TrainingStep
from uncork.ops import linear_cross_entropy, mixture_cross_entropy


DEVICE = torch.device("cuda")
WIDTH = 24
# Words of a short and of a long row; the latter is no multiple of 8.
SHORT, LONG = 507, 33_001


def losses() -> None:
    """Functions, tables short and long, mixtures, targets that are distributions, sums in fixed order."""
    functions: dict[str, nn.Module | None] = {
        "softmax": None, "scale": Scale(0.7), "sigsoftmax": SigSoftmax(), "softcap": SoftCap(3.0),
        "seven knots": PLIF(7, 2.0, "random", seed=1), "PLIF": PLIF(100_000, 20.0, "random", seed=2),
    }  # fmt: skip
    for name, function in functions.items():
        for words, rows in ((SHORT, 20), (LONG, 5)):
            for dtype in (torch.float32, torch.bfloat16):
                for way in ("words", "distributions", "mixture", "deterministic"):
                    if way == "words" or (name == "PLIF" and words == SHORT):
                        torch.use_deterministic_algorithms(way == "deterministic", warn_only=True)
                        one_loss(function, words, rows, dtype, way)
                        print(f"{name}, {words} words, {dtype}, {way}: as in float64", flush=True)
    torch.use_deterministic_algorithms(False)


def one_loss(function: nn.Module | None, words: int, rows: int, dtype: torch.dtype, way: str) -> None:
    torch.manual_seed(0)
    components = 3 if way == "mixture" else 1
    latent = torch.randn(rows, components, WIDTH).to(DEVICE, dtype).requires_grad_()
    weight = (torch.randn(words, WIDTH) * 0.5).to(DEVICE, dtype).requires_grad_()
    target = torch.randint(words, (rows,), device=DEVICE)
    if way == "distributions":
        target = torch.rand(rows, words, device=DEVICE).softmax(1)
    log_prior = log_softmax(torch.randn(rows, components), 1).to(DEVICE)
    module = None if function is None else function.to(DEVICE)
    if components > 1:
        loss = mixture_cross_entropy(latent, log_prior, weight, target, function=module, backend="triton")
    else:
        loss = linear_cross_entropy(latent[:, 0], weight, target, function=module, backend="triton")
    loss.backward()
    exact = truth(latent, log_prior, weight, target, module)
    error = abs(loss.item() - exact.item())
    assert error < (1e-4 if dtype == torch.float32 else 0.05), (loss.item(), exact.item())
    assert all(p.grad is not None and p.grad.isfinite().all() for p in (latent, weight))


@torch.no_grad()
def truth(
    latent: Tensor, log_prior: Tensor, weight: Tensor, target: Tensor, function: nn.Module | None
) -> Tensor:
    z = linear(latent.double(), weight.double())
    log_p = log_softmax(z if function is None else function(z), -1)
    if latent.shape[1] == 1:
        return cross_entropy(log_p[:, 0], target.double() if target.is_floating_point() else target)
    return nll_loss((log_p + log_prior.double()[..., None]).logsumexp(1), target)


def training_steps() -> None:
    """Persistent layers of two widths, weight drop, the update with and without averages."""
    for averages in (False, True):
        optim = OptimConfig(average="epoch", average_epoch=0 if averages else 9)
        model = ModelConfig(embedding=16, hidden=72, layers=3, head=HeadConfig(kind="softmax"))
        data = DataConfig(corpus="embedded", batch_size=20)
        config = Config(name="sanitised", precision="bfloat16", model=model, data=data, optim=optim)
        one_run(config)
        print(f"training steps, averages {averages}: finite", flush=True)


def one_run(config: Config) -> None:
    from uncork.lm.build import build_model, build_optimizer

    torch.manual_seed(0)
    words = 100
    model = build_model(config, words).to(DEVICE).train()
    stream = torch.randint(words, (40, config.data.batch_size), device=DEVICE)
    carried = Carried.fresh(model, config.data.batch_size, DEVICE)
    step = TrainingStep(config, model, model, build_optimizer(config, model), stream, carried)
    for length in (5, 8):
        step(length, epoch=0)
    assert torch.isfinite(carried.epoch_nll), "the loss must be a number"


if __name__ == "__main__":
    losses()
    training_steps()
