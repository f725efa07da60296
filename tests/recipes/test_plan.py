"""Variants: how they are written, and that each run has a folder of its own."""

from pathlib import Path

import pytest

from uncork.recipes.plan import Variant, parse_variant, plan


@pytest.mark.parametrize(
    ("text", "variant"),
    [
        ("penn_plif", Variant("penn_plif", "penn_plif")),
        (
            "penn_plif:model.head.function.lr=1",
            Variant("penn_plif,model.head.function.lr=1", "penn_plif", ("model.head.function.lr=1",)),
        ),
        ("slow=penn_plif:optim.lr=1,epochs=3", Variant("slow", "penn_plif", ("optim.lr=1", "epochs=3"))),
        ("plain=penn_softmax", Variant("plain", "penn_softmax")),
        ("my.runs:mine", Variant("my.runs_mine", "my.runs:mine")),
        ("m=my.runs:mine:seed=2", Variant("m", "my.runs:mine", ("seed=2",))),
        (
            'x=a:model.head.function={"name":"PLIF","options":{}},seed=1',
            Variant("x", "a", ('model.head.function={"name":"PLIF","options":{}}', "seed=1")),
        ),
        ("a:data.corpus=/some/text", Variant("a,data.corpus=_some_text", "a", ("data.corpus=/some/text",))),
    ],
)
def test_variants_are_read(text, variant):
    assert parse_variant(text) == variant


@pytest.mark.parametrize("text", ["", "x=", ":epochs=3", "../up=penn_plif", "a b=penn_plif", "n=a/b=c:d=e"])
def test_what_cannot_be_a_variant_or_a_folder_is_refused(text):
    with pytest.raises(ValueError, match=r"A variant must|must be a name listed"):
        plan([text], [1], [], Path("out"))


def test_a_long_variant_must_be_named():
    text = "penn_plif:" + ",".join(f"model.head.function.refine.{n}={n + 1}" for n in range(5))
    with pytest.raises(ValueError, match="at most 120.*Give one, such as `slow=penn_plif:"):
        parse_variant(text)
    assert parse_variant(f"long={text}").name == "long"


def test_every_variant_meets_every_seed_with_common_and_own_changes():
    runs = plan(
        ["embedded_softmax", "low=embedded_softmax:optim.lr=2"],
        [5, 6],
        ["epochs=3", "optim.lr=9"],
        Path("out"),
    )
    assert [str(run.folder) for run in runs] == [
        "out/embedded_softmax-5", "out/low-5", "out/embedded_softmax-6", "out/low-6",
    ]  # fmt: skip
    assert [(run.config.optim.lr, run.config.epochs, run.config.seed) for run in runs] == [
        (9.0, 3, 5), (2.0, 3, 5), (9.0, 3, 6), (2.0, 3, 6),
    ]  # fmt: skip
    assert runs[1].overrides == ("epochs=3", "optim.lr=2", "seed=5")


def test_without_seeds_a_recipe_keeps_its_own():
    assert [run.name for run in plan(["penn_softmax", "penn_mos"], [], [], Path("out"))] == [
        "penn_softmax-141", "penn_mos-28",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("variants", "seeds", "changes", "message"),
    [
        ([], [1], [], "at least one recipe"),
        (["embedded_mos", "embedded_mos"], [1], [], "two are `embedded_mos-1`.*names of their own"),
        (["embedded_mos"], [1, 1], [], "Give each seed once"),
        (["embedded_mos"], [1], ["seed=3"], "`seeds` must not be given together with.*'seed=3'"),
        (["embedded_mos:seed=3"], [1], [], "`seeds` must not be given"),
        (["embedded_mo"], [1], [], "Did you mean embedded_mos"),
        (["embedded_mos"], [1], ["lr=3"], "`lr` is not part of the configuration"),
        (
            ["embedded_mos", "bad=embedded_plif:model.head.function.options.knotz=5"],
            [1],
            [],
            "^bad: `function.options` of PLIF must be among .*'knotz'. Did you mean knots",
        ),
        (
            ["bad=embedded_plif:model.head.function.options.knots=1"],
            [1],
            [],
            "^bad: `knots` must be at least",
        ),
        (["bad=embedded_plif:model.head.function.smoothness=1e9"], [1], [], "^bad: `function.smoothness`"),
        (["worse=embedded_plif:device=gpu"], [1], [], "^worse: `device` must be the name of a CPU"),
        (["embedded_plif"], [1], ["data.corpus=pen"], "`data.corpus` must be one of .*Did you mean penn"),
    ],
)
def test_mistakes_are_found_before_anything_starts(variants, seeds, changes, message):
    with pytest.raises(ValueError, match=message):
        plan(variants, seeds, changes, Path("out"))
