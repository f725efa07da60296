"""Recipes: the published sizes and settings, names that can be found, commands that run."""

import json
import subprocess
import sys

import pytest

from uncork.cli import main
from uncork.lm import Config
from uncork.lm.build import build_function, build_model, count_parameters
from uncork.lm.config_io import from_dict, to_dict
from uncork.recipes import RECIPES, build
from uncork.results import write_atomic


HEADS = (
    "softmax", "sigsoftmax", "temperature", "plif", "plif_authors", "plif_frozen", "monotone", "mos",
    "mos_plif",
)  # fmt: skip
WORDS = {"penn": 10_000, "wikitext-2": 33_278, "embedded": 300}


@pytest.mark.parametrize(
    ("recipe", "published"),
    [
        ("penn_softmax", 24_221_600),  # 24.2M
        ("penn_softmax_reference", 24_221_600),
        ("wikitext2_softmax", 33_556_078),  # as issue 88 of the reference repository counts
        ("penn_mos", 21_500_620),  # 21.5M
        ("penn_sigsoftmax", 24_221_600),
        ("penn_temperature", 24_221_601),
        ("penn_plif_authors", 24_321_600),  # 24.32M in the authors' code
        ("penn_mos_plif", 22_500_620),
        ("penn_monotone", 24_221_662),  # 3 x 20, a bias and a line
    ],
)
def test_parameter_counts_are_the_published_ones(recipe, published):
    config = build(recipe)
    assert count_parameters(build_model(config, WORDS[config.data.corpus])) == published


@pytest.mark.parametrize("corpus", ["penn", "wikitext2", "embedded"])
def test_every_head_has_a_recipe_and_a_tiny_one(corpus):
    for head in HEADS:
        assert f"{corpus}_{head}" in RECIPES
        if corpus != "embedded":
            assert f"{corpus}_{head}_tiny" in RECIPES


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_are_named_after_themselves_and_survive_json(name):
    config = build(name)
    assert config.name == name
    assert from_dict(Config, json.loads(json.dumps(to_dict(config)))) == config


def test_an_ablation_of_learning_needs_overrides_only():
    changes = (
        "lr=30",
        "pull=1",
        "weight_decay=1.2e-6",
        "refine.0=100",
        "refine.50=1000",
        "options.knots=1000",
    )
    config = build("penn_plif", tuple(f"model.head.function.{change}" for change in changes))
    function = config.model.head.function
    assert function is not None and (function.lr, function.pull, function.weight_decay) == (30.0, 1.0, 1.2e-6)
    assert function.refine == {"0": 100, "50": 1000} and function.options["knots"] == 1000
    build_function(function)


def test_the_authors_settings():
    for name in ("penn_softmax", "penn_plif", "penn_plif_authors", "penn_plif_frozen"):
        config = build(name)
        assert (config.optim.lr, config.optim.average, config.optim.average_epoch) == (20.0, "epoch", 200)
        assert (config.model.hidden_dropout, config.model.input_dropout) == (0.3, 0.4)
        assert (config.data.batch_size, config.seed, config.epochs) == (20, 141, 1000)
    function = build("penn_plif_authors").model.head.function
    assert function is not None and function.lr == 0.02
    assert function.options == {"knots": 100_000, "bound": 20.0, "init": "random"}
    frozen = build("penn_plif_frozen").model.head.function
    assert frozen is not None and frozen.frozen
    learned = build("wikitext2_plif").model.head.function
    assert learned is not None and learned.lr == 3.0 and learned.options["init"] == "identity"


def test_the_reference_settings():
    config = build("penn_softmax_reference")
    assert (config.optim.lr, config.optim.clip, config.optim.weight_decay) == (30.0, 0.25, 1.2e-6)
    assert (config.optim.average, config.optim.patience, config.seed) == ("non-monotone", 5, 141)
    model = config.model
    assert (model.embedding, model.hidden, model.layers) == (400, 1150, 3)
    dropouts = ("embedding", "input", "hidden", "output", "weight")
    assert [getattr(model, f"{n}_dropout") for n in dropouts] == [0.1, 0.4, 0.25, 0.4, 0.5]
    assert (model.activation_penalty, model.slowness_penalty) == (2.0, 1.0)
    assert (config.data.batch_size, config.data.bptt, config.data.bptt_spread) == (20, 70, 5.0)


def test_unknown_recipes_get_a_suggestion():
    with pytest.raises(ValueError, match="got 'pen_softmax'. Did you mean penn_softmax"):
        build("pen_softmax")


OUTSIDE = """
from dataclasses import replace
from uncork.recipes import build

def mine():
    "Mine: no published number."
    config = build("embedded_softmax", ("data.limit_tokens=2000", "epochs=1", "data.batch_size=8"))
    return replace(config, name="mine")

def wrong():
    return {"lr": 3}

number = 3
"""


@pytest.fixture
def outside(tmp_path, monkeypatch):
    (tmp_path / "outside_recipes.py").write_text(OUTSIDE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("outside_recipes", None)


def test_recipes_outside_the_package_are_accepted(outside):
    assert build("outside_recipes:mine", ("seed=9",)).seed == 9
    with pytest.raises(TypeError, match="must return an uncork.lm.Config; .* returned dict"):
        build("outside_recipes:wrong")
    with pytest.raises(ValueError, match="has no 'number'|must name a function"):
        build("outside_recipes:number")
    with pytest.raises(ValueError, match="PYTHONPATH"):
        build("no_such_package.module:f")


def test_the_commands_train_evaluate_and_generate(outside, capsys):
    assert main(["train", "outside_recipes:mine", "seed=5"]) == 0
    assert "runs/mine: valid" in capsys.readouterr().out
    result = json.loads((outside / "runs" / "mine" / "result.json").read_text())
    assert main(["evaluate", "runs/mine"]) == 0
    printed = capsys.readouterr().out
    assert f"test perplexity {result['test_perplexity']:.2f}" in printed
    for method in ("dynamic", "cache"):
        assert main(["evaluate", "runs/mine", "data.limit_tokens=600", "--method", method]) == 0
        stored = json.loads((outside / "runs" / "mine" / f"evaluation-{method}-test.json").read_text())
        assert f"test perplexity {stored['perplexity']:.2f}" in capsys.readouterr().out
    arguments = ["evaluate", "runs/mine", "data.limit_tokens=600", "--method", "cache"]
    assert main([*arguments, "--cache.share", "0"]) == 0
    without = capsys.readouterr().out
    assert main([*arguments[:-2], "--method", "plain"]) == 0
    assert capsys.readouterr().out == without  # a cache without a share changes nothing
    assert main(["generate", "runs/mine", "--prompt", "w001 w002", "--length", "5"]) == 0
    assert capsys.readouterr().out.startswith("w001 w002")
    assert main(["train", "outside_recipes:mine", "seed=5", "--resume"]) == 0  # finished already


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "nothing"], "`recipe` must be a name listed"),
        (["train", "embedded_softmax", "lr=3"], "`lr` is not part of the configuration"),
        (["evaluate", "no/run"], "must be a run folder"),
        (["generate", "no/run"], "must be a run folder"),
        (["recipes", "nothing"], "`recipe` must be"),
    ],
)
def test_mistakes_end_in_one_line(outside, capsys, arguments, message):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_the_list_of_recipes_shows_numbers(capsys):
    assert main(["recipes"]) == 0
    assert "LMS 59.45/57.25" in capsys.readouterr().out
    assert main(["recipes", "penn_mos"]) == 0
    assert '"components": 15' in capsys.readouterr().out


def test_the_corpus_command_counts(capsys, data_root):
    assert main(["corpus", "penn", "--root", str(data_root)]) == 0
    out = capsys.readouterr().out
    assert "10000 words" in out and "929589 tokens in train" in out
    assert out.endswith("the published text\n") and "not" not in out


def test_the_corpus_command_tells_another_text_under_a_known_name(capsys, tmp_path):
    for split in ("train", "valid", "test"):
        write_atomic(tmp_path / "penn" / f"{split}.txt", b"a b c a b c\n" * 50)
    assert main(["corpus", "penn", "--root", str(tmp_path)]) == 0
    assert capsys.readouterr().out.endswith("not the published text: train, valid, test\n")


def test_training_needs_nothing_but_torch_numpy_and_safetensors(tmp_path):
    code = (
        "import sys\n"
        "for name in 'tyro rich tensorboard scipy matplotlib jinja2 transformers'.split():\n"
        "    sys.modules[name] = None\n"
        "from uncork.recipes.__main__ import main\n"
        "assert main(sys.argv[1:]) == 0\n"
        "raise SystemExit(main(sys.argv[1:]))\n"
    )
    arguments = ["embedded_mos", "data.limit_tokens=2000", "epochs=1", "--out", str(tmp_path / "run")]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert done.stdout.startswith(f"{tmp_path / 'run'}: valid "), done.stderr
    assert done.returncode == 2 and "must be a new folder" in done.stderr


@pytest.mark.parametrize("value", ["Infinity", "-Infinity", "NaN", "1e999", "9" * 400])
@pytest.mark.parametrize("field", ["optim.lr", "optim.clip", "model.activation_penalty"])
def test_a_number_that_is_not_finite_is_refused(field, value):
    """It would be a loss of NaN some steps later."""
    with pytest.raises(ValueError, match=f"`{field}` must be a finite number; got"):
        build("penn_softmax", (f"{field}={value}",))
