"""A configuration and the command rebuilt from it are the same run."""

import shlex

import pytest

from uncork.lm.config_io import to_dict
from uncork.recipes import RECIPES, build
from uncork.recipes.command import command, overrides


def rebuilt(config):
    changes = overrides(to_dict(config))
    assert changes is not None
    text = command(to_dict(config), changes)
    program, verb, recipe, *changes = shlex.split(text)
    assert (program, verb) == ("uncork", "train")
    return build(recipe, tuple(changes))


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_as_it_stands_needs_no_override(name):
    config = build(name)
    assert overrides(to_dict(config)) == []
    assert command(to_dict(config), []) == f"uncork train {name} seed={config.seed}"


@pytest.mark.parametrize(
    "changes",
    [
        ("seed=7",),
        ("optim.lr=12.5", "epochs=3", "optim.clip=none"),
        ("model.head.function.options.knots=1000", "model.head.function.lr=0.5"),
        ("model.head.function.options.seed=3",),  # an option the recipe does not give
        ('model.head.function={"name": "Scale", "lr": 0.1}',),  # other options altogether
        ("model.head.kind=mixture", "model.head.function=none"),
        ("data.corpus=my texts/of one's own",),
        ('data.corpus="None"', 'finetune="12"'),  # texts that read as something else
        ("tensorboard=true", "max_steps=10"),
    ],
)
def test_the_command_makes_the_configuration_again(changes):
    config = build("penn_plif", changes)
    assert rebuilt(config) == config


def test_a_head_of_another_kind():
    head = 'model.head={"kind": "monotonic", "function": {"name": "SoftCap", "options": {"cap": 15.0}}}'
    config = build("penn_softmax", (head, "seed=3"))
    assert rebuilt(config) == config


def test_the_command_does_not_say_where_the_corpora_lie():
    config = build("penn_softmax", ("data.root=/somewhere/on/a/machine",))
    changes = overrides(to_dict(config))
    assert changes == ["data.root=/somewhere/on/a/machine"]
    assert command(to_dict(config), changes) == "uncork train penn_softmax seed=141"


def test_nothing_is_said_of_other_recipes_or_other_versions():
    assert overrides({"name": "mine", "seed": 1}) is None
    assert overrides(to_dict(build("penn_plif")) | {"a_later_field": 1}) is None
