"""SGD that turns into averaged SGD, as one optimizer; its steps may be divided by the gradients' usual size.

The reference recipe swaps `SGD` for `ASGD` in mid-run, which drops parameters outside the model
from training, and torch's `ASGD` applies to each step the learning rate of the step before
(with lengths drawn at random, that of the wrong batch). Here the iterates are those of plain SGD
throughout, every step uses its own learning rate, and averaging is a mean kept beside them.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import (
    Tensor,
    _foreach_add,  # pyright: ignore[reportPrivateImportUsage]
    _foreach_add_,  # pyright: ignore[reportPrivateImportUsage]
    _foreach_addcmul_,  # pyright: ignore[reportPrivateImportUsage]
    _foreach_div,  # pyright: ignore[reportPrivateImportUsage]
    _foreach_mul,  # pyright: ignore[reportPrivateImportUsage]
    _foreach_mul_,  # pyright: ignore[reportPrivateImportUsage]
    _foreach_sqrt,  # pyright: ignore[reportPrivateImportUsage]
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
    """Stay with the iterates."""

    def fires(self, history: list[float], loss: float) -> bool:
        return False


Trigger = NonMonotone | AtEpoch | Doubling | Never
NEVER = Never()

# Added to the root of the mean squared gradient: so little that the small gradients of rare words' rows
# still make whole steps.
TINY = 1e-9


class AveragedSGD(Optimizer):
    """SGD with weight decay, its steps plain or divided; from the trigger on, also the mean of the iterates.

    Arguments:

    - `params`: parameters or groups; each group may have its own `lr`, `weight_decay` and `beta2`.
    - `lr`, `weight_decay`, `beta2`: for groups that name none.
    - `trigger`: when averaging starts, decided by `observe(loss)` once per evaluation.
    - `beta2`: None for plain steps. Else every gradient is first divided by the root of its mean square,
      which forgets by this factor a step and is corrected for its start: Adam with a beta1 of 0, as Melis
      et al. (2018) train LSTMs. Weight decay is not divided (AdamW).

    The average over the t iterates since the start is their plain mean. (torch's `ASGD` leaves
    the first of them out.)
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        weight_decay: float = 0.0,
        trigger: Trigger = NEVER,
        beta2: float | None = None,
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "beta2": beta2})
        self.trigger = trigger
        self.history: list[float] = []
        self.averaging = isinstance(trigger, AtEpoch) and trigger.epoch == 0
        # Steps averaged over. A tensor beside the parameters, so that a CUDA graph can count them.
        self._count: Tensor | None = None
        # Steps that mean squares have seen; likewise.
        self._seen: Tensor | None = None
        # What rates are multiplied by, unless it never was anything but 1; a tensor for the same reason.
        self._pace: Tensor | None = None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if isinstance(param_group, dict):  # torch says what else is wrong
            self._check_group(**self.defaults | param_group)
        super().add_param_group(param_group)

    @staticmethod
    def _check_group(lr: float, weight_decay: float, beta2: float | None, **_: Any) -> None:
        """The settings of a group, before it is one of the optimizer's."""
        if not 0.0 < lr < math.inf:
            raise ValueError(f"`lr` must be positive and finite; got {lr}. Pass a rate such as 30.")
        if not 0.0 <= weight_decay < math.inf:
            raise ValueError(
                f"`weight_decay` must be zero or more and finite; got {weight_decay}. Pass 0 for none."
            )
        if beta2 is not None and not 0.0 <= beta2 < 1.0:
            raise ValueError(
                f"`beta2` must be in [0, 1), or None for plain steps; got {beta2}. Pass 0.999, say."
            )

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
        started = self._next_started()
        for group in self.param_groups:
            self._descend(group, scale, started)
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
        pairs = [(p, self.state[p]["average"]) for p in self._parameters() if self._has("average", p)]
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
            "squared_steps": 0 if self._seen is None else int(self._seen.item()),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        missing = {"history", "averaging", "averaged_steps"} - state_dict.keys()
        if missing:
            raise ValueError(
                f"`state_dict` must come from AveragedSGD; it has no {', '.join(sorted(missing))}."
            )
        super().load_state_dict({name: state_dict[name] for name in ("state", "param_groups")})
        for group in self.param_groups:
            group.setdefault("beta2", None)  # which older states do not have
        self.history = [float(loss) for loss in state_dict["history"]]
        self.averaging = bool(state_dict["averaging"])
        self._count = self._counter(int(state_dict["averaged_steps"]))
        self._seen = self._counter(int(state_dict.get("squared_steps", 0)))

    def _descend(self, group: dict[str, Any], scale: float, started: dict[float, Tensor]) -> None:
        parameters = [p for p in group["params"] if p.grad is not None]
        if not parameters:
            return
        gradients: list[Tensor] | tuple[Tensor, ...] = [p.grad for p in parameters]
        beta2 = group["beta2"]
        if beta2 is not None:
            squares = [self._square(p) for p in parameters]
            _foreach_mul_(squares, beta2)
            _foreach_addcmul_(squares, gradients, gradients, value=1.0 - beta2)
            sizes = _foreach_sqrt(_foreach_div(squares, started[beta2].to(squares[0].dtype)))
            _foreach_add_(sizes, TINY)
            gradients = _foreach_div(gradients, sizes)
        if group["weight_decay"] != 0.0:
            gradients = _foreach_add(gradients, parameters, alpha=group["weight_decay"])
        if self._pace is not None:
            gradients = _foreach_mul(gradients, self._pace)
        _foreach_add_(parameters, gradients, alpha=-group["lr"] * scale)

    def _average(self) -> None:
        weight = self._next_weight()
        weights: dict[torch.dtype, Tensor] = {}
        for parameter in self._parameters():
            if not self._has("average", parameter):
                self.state[parameter]["average"] = parameter.detach().clone()
            average = self.state[parameter]["average"]
            average.lerp_(parameter, weights.setdefault(parameter.dtype, weight.to(parameter.dtype)))

    def _next_weight(self) -> Tensor:
        """Count one more iterate; its weight in the average, in float64."""
        if self._count is None:
            self._count = self._new_counter()
        self._count += 1.0
        return self._count.reciprocal()

    def _next_started(self) -> dict[float, Tensor]:
        """Count one more step; by beta2, the weight that squares from 0 on have by then, in float64."""
        used = {group["beta2"] for group in self.param_groups if group["beta2"] is not None}
        divided = [p for group in self.param_groups if group["beta2"] is not None for p in group["params"]]
        if all(p.grad is None for p in divided):
            return {}
        self._check_steady(divided)
        if self._seen is None:
            self._seen = self._new_counter()
        self._seen += 1.0
        return {beta2: 1.0 - beta2**self._seen for beta2 in used}

    def _check_steady(self, divided: list[Tensor]) -> None:
        """One count of steps serves all parameters, so none may begin later than others or pause."""
        begun = [self._has("square", p) for p in divided]
        if not any(begun):
            return
        for p, has_square in zip(divided, begun, strict=True):
            if has_square != (p.grad is not None):
                raise ValueError(
                    "`beta2` must be None for parameters that do not have a gradient at every step; one of "
                    f"shape {tuple(p.shape)} {'has none now' if has_square else 'has its first one now'}. "
                    "Put it into a group with beta2=None."
                )

    def _new_counter(self) -> Tensor:
        return torch.zeros((), dtype=torch.float64, device=next(self._parameters()).device)

    def _counter(self, count: int) -> Tensor | None:
        return self._new_counter() + count if count else None

    def _square(self, parameter: Tensor) -> Tensor:
        """The mean square of its gradients, from 0."""
        state = self.state[parameter]
        if "square" not in state:
            state["square"] = torch.zeros_like(parameter)
        return state["square"]

    def _has(self, name: str, parameter: Tensor) -> bool:
        """Whether its state holds an "average", or a "square"."""
        return name in self.state.get(parameter, {})  # plain indexing would make an entry

    def _can_fuse(self) -> bool:
        """Whether the kernel can take the step: float32, a gradient for each, averages of all or none."""
        parameters = list(self._parameters())
        if not parameters or triton.obstacle(parameters[0].device):
            return False
        gradients = [p.grad for p in parameters if p.grad is not None]
        averages, squares = (
            [self.state[p][name] for p in parameters if self._has(name, p)] for name in ("average", "square")
        )
        tensors = [*parameters, *gradients, *averages, *squares]
        return (
            len(gradients) == len(parameters)
            and len(averages) in (0, len(parameters))
            and all(t.dtype == torch.float32 and t.is_contiguous() and t.numel() < 2**31 for t in tensors)
            and len({t.device for t in tensors}) == 1
        )

    def _fused(self, scale: float, factor: Tensor | None) -> None:
        from uncork.lm.update_kernel import MeanSquare, Moved, update

        started = self._next_started()  # which may refuse the step: nothing is counted before
        weight = self._next_weight().float() if self.averaging else None
        for beta2 in (None, *started):
            moved = []
            for group in (g for g in self.param_groups if g["beta2"] == beta2):
                rate, decay = float(group["lr"] * scale), float(group["weight_decay"])
                for parameter in (p for p in group["params"] if p.requires_grad):
                    if self.averaging and not self._has("average", parameter):
                        # Of weight 0: the first iterate, made below, comes in at weight 1.
                        self.state[parameter]["average"] = parameter.detach().clone()
                    average = self.state[parameter]["average"] if self.averaging else None
                    square = None if beta2 is None else self._square(parameter)
                    moved.append(Moved(parameter, parameter.grad, average, square, rate, decay))
            mean_square = None if beta2 is None else MeanSquare(beta2, started[beta2].float(), TINY)
            update(moved, factor, self._pace, weight, mean_square)

    def _parameters(self) -> Iterator[Tensor]:
        for group in self.param_groups:
            yield from (p for p in group["params"] if p.requires_grad)
