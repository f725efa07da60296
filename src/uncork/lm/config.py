"""What a language-model run is, as frozen dataclasses; a recipe is a function returning a `Config`.

Every field reads and writes as JSON, so `config.json` of a run folder rebuilds the run. Defaults
are those of the reference AWD-LSTM on Penn Treebank.
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal


# A step of Adam moves a parameter by about the rate, and parameters begin at 0.1 and below: a higher one was
# meant for plain steps.
HIGHEST_ADAM_LR = 0.1
LARGEST = 3.4e38  # a float32, which parameters and their steps are
HeadKind = Literal["softmax", "monotonic", "mixture"]
Option = int | float | bool | str | None


@dataclass(frozen=True, kw_only=True)
class FunctionConfig:
    """An increasing function by its name in `uncork.functions`, with its constructor's options."""

    name: str
    options: dict[str, Option] = field(default_factory=dict)
    lr: float | None = None
    """Learning rate of its parameters; None takes the model's. For PLIF it is per unit of function: the
    rate of a slope in a table of 100,000 knots on [-20, 20]. Another table's slopes get the rate at which
    the function moves alike."""
    weight_decay: float = 0.0
    """Decay of its parameters, of its own because it pulls PLIF's slopes to log 2, not to 1. For PLIF,
    as for `lr`, that of a table of 100,000 knots on [-20, 20]."""
    pull: float = 0.0
    """PLIF: adds this times the mean over the bound of (slope - 1)^2 to the loss."""
    smoothness: float = 0.0
    """PLIF: adds this times the mean over the bound of the squared change of slope per unit of x."""
    refine: dict[str, int] = field(default_factory=dict)
    """PLIF, coarse to fine: {epochs done: knots} moves the function as a table of so many knots would,
    from then on. {"0": 100, "20": 1000} starts at 100 and stays at 1000 after 20 epochs."""
    frozen: bool = False
    """Keep its parameters as drawn."""

    def __post_init__(self) -> None:
        if self.lr is not None:
            _positive("function.lr", self.lr)
        for name in ("weight_decay", "pull", "smoothness"):
            _not_negative(f"function.{name}", getattr(self, name))
        for epoch, knots in self.refine.items():
            if not (isinstance(epoch, str) and epoch.isdecimal() and type(knots) is int and knots >= 2):
                raise ValueError(
                    "`function.refine` must give a number of knots, 2 or more, for numbers of epochs; got "
                    f"{epoch!r}: {knots!r}. Write refine.20=1000."
                )
        for name in ("pull", "smoothness", "refine"):
            if getattr(self, name) and (self.name != "PLIF" or self.frozen):
                what = "a frozen function" if self.frozen else self.name
                raise ValueError(
                    f"`function.{name}` is for a PLIF that learns; got {getattr(self, name)} for {what}. "
                    "Leave it out."
                )
        if self.smoothness and self.refine:
            raise ValueError(
                f"`function.smoothness` must be 0 with `function.refine`; got {self.smoothness}. A coarse "
                "function is a staircase on the fine table, which has no finite roughness."
            )


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """Which head sits on the encoder."""

    kind: HeadKind = "softmax"
    function: FunctionConfig | None = None
    components: int = 15
    """Softmaxes in a mixture."""
    latent_dropout: float = 0.29
    """Locked dropout on a mixture's latent vectors."""
    backend: Literal["auto", "reference", "chunked", "triton"] = "auto"
    """What computes the loss; see `uncork.linear_cross_entropy`."""
    products: Literal["float32", "bfloat16"] = "float32"
    """Operands of the head's matrix products in training; scores are always those of float32."""

    def __post_init__(self) -> None:
        _one_of("head.products", self.products, ("float32", "bfloat16"))
        _one_of("head.kind", self.kind, ("softmax", "monotonic", "mixture"))
        _positive("head.components", self.components)
        _probability("head.latent_dropout", self.latent_dropout)
        _one_of("head.backend", self.backend, ("auto", "reference", "chunked", "triton"))
        if self.kind == "monotonic" and self.function is None:
            raise ValueError("`head.function` must be given for kind 'monotonic'; got None.")
        if self.kind == "softmax" and self.function is not None:
            raise ValueError(
                f"`head.function` must be None for kind 'softmax'; got {self.function.name!r}. "
                "Use kind 'monotonic'."
            )


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """AWD-LSTM: widths, dropouts, and the two activation penalties."""

    embedding: int = 400
    hidden: int = 1150
    layers: int = 3
    last_hidden: int | None = None
    """Width of the last layer; None takes the embedding's, which tying a plain head needs."""
    tied: bool = True
    embedding_dropout: float = 0.1
    input_dropout: float = 0.4
    hidden_dropout: float = 0.25
    output_dropout: float = 0.4
    weight_dropout: float = 0.5
    activation_penalty: float = 2.0
    """AR: times the mean square of the last layer's dropped output."""
    slowness_penalty: float = 1.0
    """TAR: times the mean square of its change from step to step."""
    head: HeadConfig = field(default_factory=HeadConfig)

    def __post_init__(self) -> None:
        for name in ("embedding", "hidden", "layers"):
            _positive(f"model.{name}", getattr(self, name))
        for name in ("embedding", "input", "hidden", "output", "weight"):
            _probability(f"model.{name}_dropout", getattr(self, f"{name}_dropout"))
        for name in ("activation_penalty", "slowness_penalty"):
            _not_negative(f"model.{name}", getattr(self, name))
        if self.last_hidden is not None:
            _positive("model.last_hidden", self.last_hidden)
        if self.tied and self.head.kind != "mixture" and self.width != self.embedding:
            raise ValueError(
                "`model.last_hidden` must equal `model.embedding` when a plain head is tied; got "
                f"{self.last_hidden} and {self.embedding}. Leave it None or untie the head."
            )

    @property
    def width(self) -> int:
        """Width of the vector the head reads."""
        return self.embedding if self.last_hidden is None else self.last_hidden


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Text and how it is cut into batches."""

    corpus: str = "penn"
    """penn, wikitext-2, wikitext-103, embedded, or the path of a folder with your own text."""
    root: str = "data"
    """Folder that holds named corpora, and where they are downloaded to."""
    batch_size: int = 20
    """Streams in all; under torchrun they are divided among the processes."""
    valid_batch_size: int = 10
    test_batch_size: int = 1
    bptt: int = 70
    bptt_spread: float = 5.0
    """Standard deviation of the drawn length; 0 fixes it at `bptt`."""
    bptt_excess: int | None = None
    """Longest excess over `bptt`; None leaves the draw as it falls."""
    limit_tokens: int | None = None
    """Use only so many tokens of each split: for smoke runs."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "valid_batch_size", "test_batch_size", "bptt"):
            _positive(f"data.{name}", getattr(self, name))
        _not_negative("data.bptt_spread", self.bptt_spread)
        if self.bptt_excess is not None:
            _not_negative("data.bptt_excess", self.bptt_excess)
        if self.limit_tokens is not None:
            _positive("data.limit_tokens", self.limit_tokens)


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """SGD, then averaging; or steps divided by the gradients' usual size, at a rate that falls."""

    rule: Literal["sgd", "adam"] = "sgd"
    """What a step is: the gradient times the rate; or, before that, divided by the root of its mean square,
    as by Adam without momentum. A function with a rate of its own takes plain steps under either."""
    lr: float = 30.0
    weight_decay: float = 1.2e-6
    """Times the rate, the share by which parameters shrink in a step, under either rule."""
    beta2: float = 0.999
    """adam: what the mean square of the gradients keeps of itself in a step."""
    clip: float | None = 0.25
    """Norm to which the gradient of all parameters together is clipped."""
    average: Literal["non-monotone", "epoch", "doubling", "never"] = "non-monotone"
    """When the average of the iterates begins: when valid stops improving; after `average_epoch`; then, and
    anew whenever the epochs have doubled since; or never."""
    patience: int = 5
    """Evaluations the non-monotone trigger looks back over."""
    average_epoch: int = 200
    """Epoch after which averaging starts when `average` is 'epoch' or 'doubling'."""
    decay_epoch: int | None = None
    """Epoch after which all learning rates fall, by as much each epoch, to just above 0; None keeps them."""

    def __post_init__(self) -> None:
        _one_of("optim.rule", self.rule, ("sgd", "adam"))
        _positive("optim.lr", self.lr)
        if self.rule == "adam" and self.lr > HIGHEST_ADAM_LR:
            raise ValueError(
                f"`optim.lr` must be at most {HIGHEST_ADAM_LR} with optim.rule=adam, whose steps are as long "
                f"as the rate; got {self.lr}. Set optim.lr=0.002, say."
            )
        _probability("optim.beta2", self.beta2)
        _not_negative("optim.weight_decay", self.weight_decay)
        if self.clip is not None:
            _positive("optim.clip", self.clip)
        _one_of("optim.average", self.average, ("non-monotone", "epoch", "doubling", "never"))
        _positive("optim.patience", self.patience)
        _not_negative("optim.average_epoch", self.average_epoch)
        if self.average == "doubling":
            _positive("optim.average_epoch", self.average_epoch)
        if self.decay_epoch is not None:
            _not_negative("optim.decay_epoch", self.decay_epoch)

    def pace(self, epoch: int, epochs: int) -> float:
        """What multiplies the learning rates in the epoch after `epoch` of them, of `epochs` in all."""
        if self.decay_epoch is None or epoch < self.decay_epoch:
            return 1.0
        return (epochs - epoch) / (epochs - self.decay_epoch + 1)


@dataclass(frozen=True, kw_only=True)
class Config:
    """One run."""

    name: str
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    seed: int = 141
    epochs: int = 500
    max_steps: int | None = None
    """Stop after so many steps in all, with a last evaluation."""
    finetune: str | None = None
    """Run folder to start from: averages from the first step, ends when the trigger fires."""
    device: str = "auto"
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    """float32 leaves torch's settings alone (cuDNN may use TF32 in the recurrence); tf32 lets other
    matrix products use it too; bfloat16 computes the recurrence in it, and the rest as tf32 does."""
    recurrence: Literal["auto", "library", "persistent"] = "auto"
    """What runs the LSTM: torch's kernels, or one launch per layer and window that keeps the recurrent
    matrix on the chip. auto takes the latter where it can be: on CUDA, in bfloat16, at widths that suit."""
    graphs: bool | Literal["auto"] = "auto"
    """Replay steps as CUDA graphs, one per length of window: the host no longer slows the GPU down. auto
    does so for one process on CUDA whose loss runs in Triton's kernels."""
    log_every: int = 200
    save_every: int | None = None
    """Steps between states saved inside an epoch."""
    save_epochs: int = 1
    """Epochs between states saved at their ends. A stop saves one anyway; what a kill loses is done again."""
    tensorboard: bool = False

    def __post_init__(self) -> None:
        for name in ("epochs", "log_every", "save_epochs"):
            _positive(name, getattr(self, name))
        for name in ("max_steps", "save_every"):
            if getattr(self, name) is not None:
                _positive(name, getattr(self, name))
        _one_of("precision", self.precision, ("float32", "tf32", "bfloat16"))
        _one_of("recurrence", self.recurrence, ("auto", "library", "persistent"))
        function = self.model.head.function
        if (
            self.optim.rule == "adam"
            and function is not None
            and (function.name, function.frozen, function.lr) == ("PLIF", False, None)
        ):
            raise ValueError(
                "`function.lr` must be given for a PLIF with optim.rule=adam, since slopes take plain steps; "
                "got None. Set model.head.function.lr=2, say."
            )
        if self.optim.decay_epoch is not None and self.optim.decay_epoch >= self.epochs:
            raise ValueError(
                f"`optim.decay_epoch` must be below epochs ({self.epochs}); got {self.optim.decay_epoch}. "
                "Give the epoch after which the rates fall, or None to keep them."
            )
        if self.recurrence == "persistent" and self.precision != "bfloat16":
            raise ValueError(
                f"`recurrence` 'persistent' must come with precision 'bfloat16'; got {self.precision!r}. Set "
                "precision=bfloat16, or leave recurrence at 'auto'."
            )

    @property
    def may_persist(self) -> bool:
        """Whether layers are persistent wherever the device and their widths suit."""
        return self.recurrence != "library" and self.precision == "bfloat16"


def _positive(name: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"`{name}` must be positive; got {value}. Give a number above 0.")
    _float32(name, value)


def _not_negative(name: str, value: float) -> None:
    if not value >= 0:
        raise ValueError(
            f"`{name}` must be zero or more; got {value}. Leave it at 0, or give a positive number."
        )
    _float32(name, value)


def _float32(name: str, value: float) -> None:
    if value > LARGEST:
        raise ValueError(
            f"`{name}` must be finite; got {value}. Give a smaller number, which float32 can hold."
        )


def _probability(name: str, value: float) -> None:
    if not 0.0 <= value < 1.0:
        raise ValueError(f"`{name}` must be a probability in [0, 1); got {value}. Give a share such as 0.4.")


def _one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        guess = did_you_mean(value, choices)
        raise ValueError(f"`{name}` must be one of {', '.join(choices)}; got {value!r}.{guess}")


def did_you_mean(value: object, known: Iterable[str]) -> str:
    """The end of an error message: the nearest known name, in whatever case, or nothing."""
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(str(value).lower(), by_lower, n=1)
    return f" Did you mean {by_lower[near[0]]}?" if near else ""


def check_seed(seed: int) -> None:
    """torch's generator on a CPU takes 32 bits: of two seeds 2^32 apart the runs would be the same."""
    if not 0 <= seed < 2**32:
        raise ValueError(f"`seed` must be at least 0 and below 2^32; got {seed}. Give one such as 141.")
