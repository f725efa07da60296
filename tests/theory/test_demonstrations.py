import pytest

from uncork.theory.demonstrations import DEMONSTRATIONS, Demonstration, demonstrations


@pytest.mark.parametrize("seed", [0, 1])
def test_every_statement_turns_out_as_documented(seed):
    rows = list(demonstrations(seed))
    assert [row.statement for row in rows if not row.as_expected] == []
    false = [row.statement for row in rows if row.as_printed_false]
    assert len(false) == 3 and all("as printed" in statement for statement in false)
    assert len({row.statement for row in rows}) == len(rows)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_out_of_range_is_named(seed):
    with pytest.raises(ValueError, match=r"`seed` must be from 0"):
        next(demonstrations(seed))


def test_a_surprise_is_reported():
    row = Demonstration("s", "c", 1.0, ">=", 2.0, holds=False)
    assert not row.as_expected and row.record()["as_expected"] is False


def test_all_statements_are_covered():
    text = " ".join(row.statement for group in DEMONSTRATIONS for row in group(0))
    for name in (
        "Theorem 1",
        "Theorem 2",
        "Theorem 3",
        "Lemma 4",
        "Theorem 5",
        "Theorem 6",
        "Theorem 7",
    ):
        assert name in text
