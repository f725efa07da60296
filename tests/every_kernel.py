"""Every GPU kernel once, at small sizes, for a sanitizer that slows them down a hundredfold.

compute-sanitizer --tool racecheck python -m tests.every_kernel

Values are compared with plain torch in float64, so that a run that checks nothing cannot pass.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, log_softmax

from uncork.functions import PLIF, Scale, SigSoftmax, SoftCap
from uncork.lm.config import Config, DataConfig, HeadConfig, ModelConfig, OptimConfig
from uncork.lm.step import Carried, TrainingStep
from uncork.ops import linear_cross_entropy, mixture_cross_entropy


DEVICE = torch.device("cuda")
WIDTH = 24
# Words of a short and of a long row; the latter is no multiple of 8.
SHORT, LONG = 507, 33_001


WAYS = ("words", "smoothed", "distributions", "mixture", "mixture of distributions")


def losses() -> None:
    """Functions, tables short and long, mixtures, targets that are distributions, sums in fixed order."""
    functions: dict[str, nn.Module | None] = {
        "softmax": None, "scale": Scale(0.7), "sigsoftmax": SigSoftmax(), "softcap": SoftCap(3.0),
        # Narrow intervals of random slopes would tell which side of a knot float32 puts a logit.
        "seven knots": PLIF(7, 2.0, "random", seed=1), "PLIF": PLIF(100_000, 20.0),
    }  # fmt: skip
    for name, function in functions.items():
        for words, rows in ((SHORT, 20), (LONG, 5)):
            for dtype in (torch.float32, torch.bfloat16):
                for way in WAYS:
                    if way == "words" or (name in ("scale", "PLIF") and words == SHORT):
                        one_loss(function, words, rows, dtype, way)
                        print(f"{name}, {words} words, {dtype}, {way}: as in float64", flush=True)
    for dtype in (torch.float32, torch.bfloat16):
        for way in WAYS:
            torch.use_deterministic_algorithms(True, warn_only=True)
            one_loss(functions["PLIF"], SHORT, 20, dtype, way)
            torch.use_deterministic_algorithms(False)
            print(f"PLIF in fixed order, {dtype}, {way}: as in float64", flush=True)


def one_loss(function: nn.Module | None, words: int, rows: int, dtype: torch.dtype, way: str) -> None:
    torch.manual_seed(0)
    components = 3 if "mixture" in way else 1
    latent = torch.randn(rows, components, WIDTH).to(DEVICE, dtype).requires_grad_()
    weight = (torch.randn(words, WIDTH) * 0.5).to(DEVICE, dtype).requires_grad_()
    target = torch.randint(words, (rows,), device=DEVICE)
    if "distributions" in way:
        target = torch.rand(rows, words, device=DEVICE).softmax(1)
    elif way == "smoothed":
        target[1] = -100
    log_prior = log_softmax(torch.randn(rows, components), 1).to(DEVICE).requires_grad_()
    module = None if function is None else function.to(DEVICE)
    options = {"function": module, "label_smoothing": 0.1 if way == "smoothed" else 0.0, "backend": "triton"}
    if components > 1:
        loss = mixture_cross_entropy(latent, log_prior, weight, target, **options)
    else:
        loss = linear_cross_entropy(latent[:, 0], weight, target, **options)
    given = {"latent": latent, "weight": weight}
    if components > 1:
        given["prior"] = log_prior
    if module is not None:
        given |= dict(module.named_parameters())
    exact = truth(latent, log_prior, weight, target, module, options["label_smoothing"])
    assert_near("loss", loss, exact, dtype)
    gradients = (torch.autograd.grad(each, list(given.values())) for each in (loss, exact))
    for name, found, right in zip(given, *gradients, strict=True):
        assert_near(name, found, right, dtype)


def assert_near(name: str, found: Tensor, right: Tensor, dtype: torch.dtype) -> None:
    error = (found.double() - right.double()).norm() / right.double().norm()
    assert error < (1e-3 if dtype == torch.float32 else 0.05), (name, error)


def truth(
    latent: Tensor, log_prior: Tensor, weight: Tensor, target: Tensor, function: nn.Module | None,
    label_smoothing: float,
) -> Tensor:  # fmt: skip
    """The loss in float64, by torch's autograd."""
    z = linear(latent.double(), weight.double())
    log_p = log_softmax(z if function is None else function(z), -1)
    log_p = (log_p + log_prior.double()[..., None]).logsumexp(1) if latent.shape[1] > 1 else log_p[:, 0]
    if target.is_floating_point():
        return -(target.double() * log_p).sum(1).mean()
    counted = target != -100
    at_target = log_p[counted].gather(1, target[counted][:, None])[:, 0]
    return -((1.0 - label_smoothing) * at_target + label_smoothing * log_p[counted].mean(1)).mean()


def training_steps() -> None:
    """Persistent layers of two widths, weight drop, the update of either rule with and without averages."""
    for averages, adam in ((False, False), (True, False), (False, True), (True, True)):
        optim = OptimConfig(average="epoch", average_epoch=0 if averages else 9)
        optim = replace(optim, rule="adam", lr=0.002) if adam else optim
        model = ModelConfig(embedding=16, hidden=72, layers=3, head=HeadConfig(kind="softmax"))
        data = DataConfig(corpus="embedded", batch_size=20)
        config = Config(name="sanitised", precision="bfloat16", model=model, data=data, optim=optim)
        one_run(config)
        print(f"training steps, {optim.rule}, averages {averages}: finite", flush=True)


def one_run(config: Config) -> None:
    from uncork.lm.build import build_model, build_optimizer

    torch.manual_seed(0)
    words = 100
    model = build_model(config, words).to(DEVICE).train()
    stream = torch.randint(words, (40, config.data.batch_size), device=DEVICE)
    carried = Carried.fresh(model, config.data.batch_size, DEVICE)
    step = TrainingStep(config, model, model, build_optimizer(config, model), stream, carried)
    for length, pace in ((5, 1.0), (8, 0.5)):
        step.optimizer.set_pace(pace)
        step(length, epoch=0)
    assert torch.isfinite(carried.epoch_nll), "the loss must be a number"


if __name__ == "__main__":
    losses()
    training_steps()
