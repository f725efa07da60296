import json
import re
from dataclasses import replace

import pytest

from uncork.lm import Config, DataConfig, FunctionConfig, HeadConfig, ModelConfig, OptimConfig, build_corpus
from uncork.lm.build import build_function, build_model, build_optimizer, check
from uncork.lm.config_io import from_dict, override, to_dict


PLIF = HeadConfig(
    kind="monotonic", function=FunctionConfig(name="PLIF", options={"knots": 10, "init": "random"}, lr=0.02)
)


def test_json_round_trip():
    config = Config(name="x", model=ModelConfig(head=PLIF), max_steps=7)
    assert from_dict(Config, json.loads(json.dumps(to_dict(config)))) == config


def test_overrides_are_typed():
    config = override(
        Config(name="x", model=ModelConfig(head=PLIF)),
        [
            "optim.lr=20",
            "seed=5",
            "data.corpus=my/text",
            "tensorboard=true",
            "optim.clip=none",
            "model.head.function.options.knots=99",
            "optim.average=epoch",
            "max_steps=3",
        ],  # fmt: skip
    )
    assert config.optim.lr == 20.0 and isinstance(config.optim.lr, float)
    assert (config.seed, config.data.corpus, config.tensorboard) == (5, "my/text", True)
    assert (config.optim.clip, config.optim.average, config.max_steps) == (None, "epoch", 3)
    assert config.model.head.function is not None
    assert config.model.head.function.options == {"knots": 99, "init": "random"}


@pytest.mark.parametrize(
    "assignments",
    [
        ["model.last_hidden=7", "model.tied=false"],
        ["optim.decay_epoch=600", "epochs=700"],
        ["model.head.kind=monotonic", 'model.head.function={"name": "SigSoftmax"}'],
        ["model.head.kind=monotonic", "model.head.function.name=SigSoftmax"],
        ["recurrence=persistent", "precision=bfloat16"],
    ],
)
def test_overrides_are_checked_together_whatever_their_order(assignments):
    config = Config(name="x")
    with pytest.raises(ValueError):
        override(config, assignments[:1])
    assert override(config, assignments) == override(config, assignments[::-1]) != config


def test_an_override_inside_a_part_that_was_just_given():
    config = override(Config(name="x"), ['model={"embedding": 7}', "model.head.components=3"])
    assert (config.model.embedding, config.model.head.components) == (7, 3)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("optim.lr", "must read `name=value`"),
        ("optim.clipp=3", r"`optim.clipp` is not part .* mean `optim.clip`"),
        ("seed=1.5", "`seed` must be int; got 1.5"),
        ("seed=true", "`seed` must be int; got True"),
        (
            "optim.average=sometimes",
            r"`optim.average` must be one of non-monotone, epoch, doubling, never; got 'sometimes'\.$",
        ),
        ("optim.average=epochs", r"; got 'epochs'\. Did you mean epoch\?$"),
        ("optim.average=3", r"`optim.average` must be one of non-monotone, .*, never; got 3\.$"),
        ('optim={"average": "doubling", "average_epoch": 0}', "`optim.average_epoch` must be positive"),
        ("optim.lr=-1", "`optim.lr` must be positive; got -1"),
        ("optim.rule=adam", r"`optim.lr` must be at most 0.1 with optim.rule=adam, .*; got 30.0\. Set"),
        ("optim.rule=adamw", r"`optim.rule` must be one of sgd, adam; got 'adamw'\. Did you mean adam\?$"),
        ("optim.beta2=1", r"`optim.beta2` must be a probability in \[0, 1\); got 1"),
        ("optim.decay_epoch=-1", "`optim.decay_epoch` must be zero or more; got -1"),
        ("optim.decay_epoch=500", r"`optim.decay_epoch` must be below epochs \(500\); got 500\. Give"),
        ("model.input_dropout=1", r"`model.input_dropout` must be a probability in \[0, 1\)"),
        ("model.last_hidden=7", "`model.last_hidden` must equal `model.embedding`"),
        ("model.head.kind=monotonic", "`head.function` must be given"),
        ("seed.x=1", "`seed` is 141 and has no part named 'x'"),
        ("precision=fp16", r"`precision` must be one of float32, tf32, bfloat16; got 'fp16'\.$"),
        ("precision=Float16", r"got 'Float16'\. Did you mean bfloat16\?$"),
        ("graphs=atuo", r"`graphs` must be bool or auto; got 'atuo'\. Did you mean auto\?$"),
    ],
)
def test_bad_overrides_say_what_is_wrong(assignment, message):
    with pytest.raises(ValueError, match=message):
        override(Config(name="x"), [assignment])


@pytest.mark.parametrize("part", ["options.knots", "refine.20"])
def test_a_path_that_goes_on_after_a_value_is_refused(part):
    config = Config(name="x", model=ModelConfig(head=PLIF))
    with pytest.raises(ValueError, match=rf"function\.{part}` is a single value and has no part named 'foo'"):
        override(config, [f"model.head.function.{part}.foo=500"])


def test_unknown_names_in_a_file_are_refused():
    with pytest.raises(ValueError, match="`model.hiden` is not part"):
        from_dict(Config, {"name": "x", "model": {"hiden": 3}})
    with pytest.raises(ValueError, match="`name` must be given"):
        from_dict(Config, {})


def test_a_field_that_is_gone_is_passed_over_where_it_asked_for_nothing():
    assert from_dict(Config, {"name": "x", "pieces": 1}) == Config(name="x")
    with pytest.raises(ValueError, match="`pieces` is not part of the configuration"):
        from_dict(Config, {"name": "x", "pieces": 4})


def test_functions_are_built_by_public_name_only():
    function = build_function(FunctionConfig(name="PLIF", options={"knots": 7}, frozen=True))
    assert not any(p.requires_grad for p in function.parameters())
    for name in ("os.system", "AbstractMonotone", "base"):
        with pytest.raises(ValueError, match="`function.name` must be one of"):
            build_function(FunctionConfig(name=name))
    with pytest.raises(
        ValueError, match="`function.options` of PLIF must be among knots.*'knotz'.*mean knots"
    ):
        build_function(FunctionConfig(name="PLIF", options={"knotz": 7}))
    with pytest.raises(ValueError, match=r"got 'plif'\. Did you mean PLIF\?$"):
        build_function(FunctionConfig(name="plif"))


@pytest.mark.parametrize(("corpus", "guess"), [("pen", "penn"), ("wikitext2", "wikitext-2")])
def test_a_misspelt_corpus_gets_a_suggestion(corpus, guess):
    message = (
        rf"`data.corpus` must be one of embedded, penn, .* or an existing folder.*Did you mean {guess}\?$"
    )
    with pytest.raises(ValueError, match=message):
        build_corpus(DataConfig(corpus=corpus))


def test_a_configuration_is_checked_without_data(tmp_path):
    check(Config(name="x", data=DataConfig(corpus=str(tmp_path)), model=ModelConfig(head=PLIF)))
    for device in ("cpu", "auto"):
        check(Config(name="x", device=device))
    with pytest.raises(ValueError, match="`device` must be the name of a CPU or an NVIDIA GPU; got 'gpu'"):
        check(Config(name="x", device="gpu"))
    with pytest.raises(ValueError, match="`data.corpus` must be one of"):
        check(Config(name="x", data=DataConfig(corpus=str(tmp_path / "none"))))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weight_decay": -1.0}, "`function.weight_decay` must be zero or more"),
        ({"pull": -1.0}, "`function.pull` must be zero or more"),
        ({"smoothness": float("nan")}, "`function.smoothness` must be zero or more"),
        ({"refine": {"soon": 10}}, "`function.refine` must give a number of knots.*'soon': 10"),
        ({"refine": {"3": 1}}, "`function.refine` must give a number of knots, 2 or more"),
        ({"name": "Scale", "pull": 1.0}, "`function.pull` is for a PLIF that learns; got 1.0 for Scale"),
        ({"frozen": True, "refine": {"0": 10}}, "`function.refine` is for a PLIF that learns.*frozen"),
        ({"smoothness": 1.0, "refine": {"0": 10}}, "`function.smoothness` must be 0 with `function.refine`"),
    ],
)
def test_settings_of_a_function_that_cannot_be(settings, message):
    with pytest.raises(ValueError, match=message):
        FunctionConfig(**{"name": "PLIF"} | settings)


def test_stages_are_given_as_overrides():
    head = HeadConfig(kind="monotonic", function=FunctionConfig(name="PLIF"))
    config = override(
        Config(name="x", model=ModelConfig(head=head)),
        ["model.head.function.refine.0=100", "model.head.function.refine.20=1000"],
    )
    function = config.model.head.function
    assert function is not None and function.refine == {"0": 100, "20": 1000}
    assert from_dict(Config, json.loads(json.dumps(to_dict(config)))) == config


@pytest.mark.parametrize(
    ("lr", "rule", "plain"), [(None, "adam", False), (0.1, "adam", True), (None, "sgd", True)]
)
def test_a_function_of_a_rate_of_its_own_takes_plain_steps(lr, rule, plain):
    head = HeadConfig(kind="monotonic", function=FunctionConfig(name="Scale", lr=lr))
    config = Config(name="x", model=ModelConfig(embedding=4, hidden=4, layers=1, head=head))
    config = replace(config, optim=OptimConfig(rule=rule, lr=0.01, beta2=0.9))
    weights, function = build_optimizer(config, build_model(config, 9)).param_groups
    assert weights["beta2"] == (0.9 if rule == "adam" else None)
    assert function["beta2"] == (None if plain else 0.9) and function["lr"] == (lr or 0.01)


def test_slopes_never_take_divided_steps():
    config = replace(Config(name="x"), optim=OptimConfig(rule="adam", lr=0.01))
    with_plif = lambda **changes: replace(
        config, model=ModelConfig(head=replace(PLIF, function=replace(PLIF.function, **changes)))
    )
    with pytest.raises(ValueError, match=r"`function.lr` must be given for a PLIF with optim.rule=adam"):
        check(with_plif(lr=None))
    check(with_plif(lr=2.0))
    check(with_plif(lr=None, frozen=True))


@pytest.mark.parametrize("name", ["lr", "clip", "weight_decay"])
def test_rates_and_norms_without_end_are_refused(name):
    for large in (float("inf"), 1e39):
        with pytest.raises(ValueError, match=rf"`optim.{name}` must be finite; got {re.escape(str(large))}"):
            OptimConfig(**{name: large})
