import pytest
import torch

from uncork.lm.corpus import Corpus, batchify, encode, window


def write(folder, train, valid="a\n", test="a\n", names=("train.txt", "valid.txt", "test.txt")):
    for name, text in zip(names, (train, valid, test), strict=True):
        (folder / name).write_text(text, encoding="utf-8")


def test_words_are_numbered_by_appearance_and_lines_end_in_eos(tmp_path):
    write(tmp_path, " the cat \n\n sat  the\n", "dog cat\n", "the bird")
    corpus = Corpus.from_folder(tmp_path)
    assert corpus.words == ("the", "cat", "<eos>", "sat", "dog", "bird")
    assert corpus.train.tolist() == [0, 1, 2, 2, 3, 0, 2]  # the empty line is one <eos>
    assert corpus.valid.tolist() == [4, 1, 2]
    assert corpus.test.tolist() == [0, 5, 2]  # a last line without a newline ends as well


def test_a_mark_in_front_of_a_file_is_no_part_of_its_first_word(tmp_path):
    write(tmp_path, "\ufeffthe cat\n", valid="\ufeffthe\n")
    assert Corpus.from_folder(tmp_path).words == ("the", "cat", "<eos>", "a")


@pytest.mark.parametrize("pattern", ["ptb.{}.txt", "wiki.{}.tokens"])
def test_other_file_names_are_found(tmp_path, pattern):
    write(tmp_path, "a b\n", names=[pattern.format(s) for s in ("train", "valid", "test")])
    assert Corpus.from_folder(tmp_path).words == ("a", "b", "<eos>")


def test_missing_split_is_named(tmp_path):
    (tmp_path / "train.txt").write_text("a\n")
    with pytest.raises(FileNotFoundError, match="valid split.*valid.txt.*wiki.valid.tokens"):
        Corpus.from_folder(tmp_path)


def test_a_file_that_is_not_utf_8_is_named_with_its_line(tmp_path):
    write(tmp_path, "a b\n", valid="a\nb\n")
    (tmp_path / "valid.txt").write_bytes("a\n\u00e9t\u00e9\n".encode("latin-1"))
    with pytest.raises(
        ValueError, match=r"valid.txt` must be text in UTF-8, but line 2 is not .*Convert the file"
    ):
        Corpus.from_folder(tmp_path)


def test_lines_in_memory_follow_the_same_rule(tmp_path):
    write(tmp_path, "a b\nb\n")
    held = Corpus.from_lines(["a b", "b"], ["a"], ["a"])
    assert held.fingerprint == Corpus.from_folder(tmp_path).fingerprint


def test_fingerprint_sees_one_changed_word(tmp_path):
    first = Corpus.from_lines(["a b"], ["a"], ["a"])
    assert first.fingerprint != Corpus.from_lines(["a b"], ["b"], ["a"]).fingerprint


def test_penn_has_its_known_sizes(penn):
    corpus = Corpus.from_folder(penn)
    sizes = [corpus.num_words, corpus.train.numel(), corpus.valid.numel(), corpus.test.numel()]
    assert sizes == [10_000, 929_589, 73_760, 82_430]
    assert corpus.words[:2] == ("aer", "banknote")


def test_wikitext2_has_its_known_sizes(wikitext2):
    corpus = Corpus.from_folder(wikitext2)
    sizes = [corpus.num_words, corpus.train.numel(), corpus.valid.numel(), corpus.test.numel()]
    assert sizes == [33_278, 2_088_628, 217_646, 245_569]


def test_columns_of_a_batch_are_consecutive_text():
    stream_TB = batchify(torch.arange(11), 3)
    assert stream_TB.t().tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


@pytest.mark.parametrize("batch_size", [0, 6, 100])
def test_batch_size_must_leave_text_per_column(batch_size):
    with pytest.raises(ValueError, match="`batch_size` must leave at least 2 tokens"):
        batchify(torch.arange(11), batch_size)


def test_targets_are_the_next_words_and_windows_cover_every_prediction():
    stream_TB = batchify(torch.arange(20), 2)
    seen, start = [], 0
    while start < stream_TB.shape[0] - 1:
        tokens_TB, target_TB = window(stream_TB, start, 4)
        assert torch.equal(target_TB, tokens_TB + 1)
        seen += target_TB[:, 0].tolist()
        start += tokens_TB.shape[0]
    assert seen == list(range(1, 10))


def test_strangers_become_unk_or_are_refused():
    assert encode("a zebra", ["a", "<unk>"]) == [0, 1]
    with pytest.raises(ValueError, match="got 'zebra'"):
        encode("a zebra", ["a", "b"])
