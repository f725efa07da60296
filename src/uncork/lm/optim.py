"""SGD that turns into averaged SGD, as one optimizer.

The reference recipe swaps `SGD` for `ASGD` in mid-run, which drops parameters outside the model
from training, and torch's `ASGD` applies to each step the learning rate of the step before
(with lengths drawn at random, that of the wrong batch). Here the iterates are those of plain SGD
throughout, every step uses its own learning rate, and averaging is a mean kept beside them.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import (
    Tensor,
    _foreach_add,  # pyright: ignore[reportPrivateImportUsage]
    _foreach_add_,  # pyright: ignore[reportPrivateImportUsage]
    _foreach_mul,  # pyright: ignore[reportPrivateImportUsage]
    _foreach_mul_,  # pyright: ignore[reportPrivateImportUsage]
)
from torch.optim import Optimizer

from uncork.ops import triton


@dataclass(frozen=True)
class NonMonotone:
    """Fire when the loss is above the best of all but the last `patience` evaluations (NT-ASGD)."""

    patience: int = 5

    def fires(self, history: list[float], loss: float) -> bool:
        return len(history) > self.patience and loss > min(history[: -self.patience])


@dataclass(frozen=True)
class AtEpoch:
    """Fire at the evaluation after epoch `epoch`; 0 averages from the first step on."""

    epoch: int

    def fires(self, history: list[float], loss: float) -> bool:
        return len(history) + 1 >= self.epoch


@dataclass(frozen=True)
class Doubling(AtEpoch):
    """The same, and the average starts anew whenever the epochs have doubled since it last did.

    So it never covers more than the later half of the run, and the first choice of where to begin does not
    matter in the end.
    """

    def restarts(self, epochs: int) -> bool:
        ratio, rest = divmod(epochs, self.epoch)
        return rest == 0 and ratio > 1 and ratio & (ratio - 1) == 0


@dataclass(frozen=True)
class Never:
    """Stay with plain SGD."""

    def fires(self, history: list[float], loss: float) -> bool:
        return False


Trigger = NonMonotone | AtEpoch | Doubling | Never
NEVER = Never()


class AveragedSGD(Optimizer):
    """Plain SGD with weight decay; from the trigger on, it also keeps the mean of the iterates.

    Arguments:

    - `params`: parameters or groups; each group may have its own `lr` and `weight_decay`.
    - `lr`, `weight_decay`: for groups that name none.
    - `trigger`: when averaging starts, decided by `observe(loss)` once per evaluation.

    The average over the t iterates since the start is their plain mean. (torch's `ASGD` leaves
    the first of them out.)
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        weight_decay: float = 0.0,
        trigger: Trigger = NEVER,
    ) -> None:
        if not lr > 0.0:
            raise ValueError(f"`lr` must be positive; got {lr}. Pass a rate such as 30.")
        if weight_decay < 0.0:
            raise ValueError(f"`weight_decay` must be zero or more; got {weight_decay}. Pass 0 for none.")
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        self.trigger = trigger
        self.history: list[float] = []
        self.averaging = isinstance(trigger, AtEpoch) and trigger.epoch == 0
        # Steps averaged over. A tensor beside the parameters, so that a CUDA graph can count them.
        self._count: Tensor | None = None
        # What rates are multiplied by, unless it never was anything but 1; a tensor for the same reason.
        self._pace: Tensor | None = None

    @torch.no_grad()
    def step(
        self,
        closure: Callable[[], Any] | None = None,
        *,
        scale: float = 1.0,
        factor: Tensor | None = None,
    ) -> Any:
        """One step; `scale` multiplies every group's learning rate for this step alone.

        `factor`, a number on the parameters' device, multiplies all gradients: that of clipping. Afterwards
        `grad` may or may not be multiplied. On a GPU the whole step is one pass over every tensor.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._can_fuse():
            self._fused(scale, factor)
            return loss
        if factor is not None:
            _foreach_mul_([p.grad for p in self._parameters() if p.grad is not None], factor)
        for group in self.param_groups:
            self._descend(group, scale)
        if self.averaging:
            self._average()
        return loss

    def set_pace(self, pace: float) -> None:
        """Multiply all learning rates by `pace` from now on, in CUDA graphs too if called before they are.

        It is no part of the state: whoever loads one sets it again.
        """
        if not 0.0 < pace <= 1.0:
            raise ValueError(f"`pace` must be above 0 and at most 1; got {pace}. Pass 1 for the full rate.")
        if self._pace is None:
            self._pace = torch.ones((), device=next(self._parameters()).device)
        self._pace.fill_(pace)

    @property
    def averaged_steps(self) -> int:
        """Iterates in the average; reading it waits for the device."""
        return 0 if self._count is None else int(self._count.item())

    def observe(self, loss: float) -> bool:
        """Note an evaluation's loss; True if the trigger fires on it (averaging then starts)."""
        fires = self.trigger.fires(self.history, loss)
        self.history.append(loss)
        self.averaging = self.averaging or fires
        restarts = isinstance(self.trigger, Doubling) and self.trigger.restarts(len(self.history))
        if restarts and self._count is not None:
            self._count.zero_()  # in place, for a CUDA graph; at weight 1 the next iterate is the average
        return fires

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside, parameters hold their averages; before averaging has begun, nothing changes."""
        pairs = [(p, self.state[p]["average"]) for p in self._parameters() if p in self.state]
        iterates = [p.detach().clone() for p, _ in pairs]
        with torch.no_grad():
            for parameter, average in pairs:
                parameter.copy_(average)
        try:
            yield
        finally:
            with torch.no_grad():
                for (parameter, _), iterate in zip(pairs, iterates, strict=True):
                    parameter.copy_(iterate)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "history": list(self.history),
            "averaging": self.averaging,
            "averaged_steps": self.averaged_steps,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        missing = {"history", "averaging", "averaged_steps"} - state_dict.keys()
        if missing:
            raise ValueError(
                f"`state_dict` must come from AveragedSGD; it has no {', '.join(sorted(missing))}."
            )
        super().load_state_dict({name: state_dict[name] for name in ("state", "param_groups")})
        self.history = [float(loss) for loss in state_dict["history"]]
        self.averaging = bool(state_dict["averaging"])
        count = int(state_dict["averaged_steps"])
        device = next(self._parameters()).device
        self._count = torch.tensor(float(count), dtype=torch.float64, device=device) if count else None

    def _descend(self, group: dict[str, Any], scale: float) -> None:
        parameters = [p for p in group["params"] if p.grad is not None]
        if not parameters:
            return
        gradients: list[Tensor] | tuple[Tensor, ...] = [p.grad for p in parameters]
        if group["weight_decay"] != 0.0:
            gradients = _foreach_add(gradients, parameters, alpha=group["weight_decay"])
        if self._pace is not None:
            gradients = _foreach_mul(gradients, self._pace)
        _foreach_add_(parameters, gradients, alpha=-group["lr"] * scale)

    def _average(self) -> None:
        weight = self._next_weight()
        weights: dict[torch.dtype, Tensor] = {}
        for parameter in self._parameters():
            state = self.state[parameter]
            if "average" not in state:
                state["average"] = parameter.detach().clone()
            state["average"].lerp_(parameter, weights.setdefault(parameter.dtype, weight.to(parameter.dtype)))

    def _next_weight(self) -> Tensor:
        """Count one more iterate; its weight in the average, in float64."""
        if self._count is None:
            device = next(self._parameters()).device
            self._count = torch.zeros((), dtype=torch.float64, device=device)
        self._count += 1.0
        return self._count.reciprocal()

    def _can_fuse(self) -> bool:
        """Whether the kernel can take the step: float32, a gradient for each, averages of all or none."""
        parameters = list(self._parameters())
        if not parameters or triton.obstacle(parameters[0].device):
            return False
        gradients = [p.grad for p in parameters if p.grad is not None]
        averages = [self.state[p]["average"] for p in parameters if p in self.state]
        tensors = [*parameters, *gradients, *averages]
        return (
            len(gradients) == len(parameters)
            and len(averages) in (0, len(parameters))
            and all(t.dtype == torch.float32 and t.is_contiguous() and t.numel() < 2**31 for t in tensors)
            and len({t.device for t in tensors}) == 1
        )

    def _fused(self, scale: float, factor: Tensor | None) -> None:
        from uncork.lm.update_kernel import Moved, update

        weight = self._next_weight().float() if self.averaging else None
        moved = []
        for group in self.param_groups:
            rate, decay = float(group["lr"] * scale), float(group["weight_decay"])
            for parameter in (p for p in group["params"] if p.requires_grad):
                if self.averaging and parameter not in self.state:
                    # Of weight 0: the first iterate, made below, comes in at weight 1.
                    self.state[parameter]["average"] = parameter.detach().clone()
                average = self.state[parameter]["average"] if self.averaging else None
                moved.append(Moved(parameter, parameter.grad, average, rate, decay))
        update(moved, factor, self._pace, weight)

    def _parameters(self) -> Iterator[Tensor]:
        for group in self.param_groups:
            yield from (p for p in group["params"] if p.requires_grad)
