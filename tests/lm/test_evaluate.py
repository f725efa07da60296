import math
from types import SimpleNamespace

import pytest
import torch

from uncork.lm import HeadConfig, batchify, build_corpus, build_model, generate
from uncork.lm.evaluate import cache_evaluation, dynamic_evaluation, evaluate, nll_by_part, reading_length


@pytest.fixture(params=["softmax", "mixture"])
def trained(request, make_config):
    config = make_config(HeadConfig(kind=request.param, components=3))
    corpus = build_corpus(config.data)
    model = build_model(config, corpus.num_words)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3.0)  # away from uniform
    return model, corpus


def log_probabilities(model, stream_TB):
    """log p of each next word, from scores over the whole text at once, in float64."""
    model = model.double().eval()
    with torch.no_grad():
        scores_TBV, _ = model(stream_TB[:-1])
    log_p_TBV = scores_TBV.log_softmax(-1)
    model.float()
    return log_p_TBV.gather(-1, stream_TB[1:, :, None])[..., 0]


@pytest.mark.parametrize("length", [7, 70, 10_000])
def test_perplexity_two_ways(trained, length):
    model, corpus = trained
    stream_TB = batchify(corpus.valid[:400], 3)
    score = evaluate(model, stream_TB, length)
    log_p_TB = log_probabilities(model, stream_TB)
    assert score.predictions == log_p_TB.numel() == 132 * 3
    assert score.nll == pytest.approx(-log_p_TB.mean().item(), rel=1e-6)
    assert score.perplexity == pytest.approx(math.exp(-log_p_TB.mean().item()), rel=1e-5)


@pytest.mark.parametrize(("parts", "of_each"), [(12, 4), (13, 4), (2, 1), (10_000, 132)])
def test_parts_of_a_text_are_scored_in_its_order(trained, parts, of_each):
    """Each stream is a third of the text, and has a third of the parts."""
    model, corpus = trained
    stream_TB = batchify(corpus.valid[:400], 3)
    model.train()
    found = nll_by_part(model, stream_TB, 7, parts)
    assert model.training
    log_p_TB = log_probabilities(model, stream_TB)
    right = [-part.mean().item() for b in range(3) for part in log_p_TB[:, b].tensor_split(of_each)]
    assert found == pytest.approx(right, rel=1e-5) and len(found) == 3 * of_each
    assert sum(found) / len(found) == pytest.approx(
        evaluate(model, stream_TB, 7).nll, rel=1e-5
    )  # equal parts


@pytest.mark.parametrize(("streams", "steps"), [(1, 4096), (10, 409), (80, 70)])
def test_a_gpu_reads_in_windows_that_keep_it_busy(streams, steps):
    on = lambda cuda: SimpleNamespace(is_cuda=cuda, shape=(1000, streams))
    assert reading_length(on(True), 70) == steps
    assert reading_length(on(False), 70) == 70


def test_evaluation_restores_the_mode_and_draws_nothing(trained):
    model, corpus = trained
    stream_TB = batchify(corpus.valid[:100], 2)
    model.train()
    state = torch.get_rng_state()
    evaluate(model, stream_TB)
    assert model.training and torch.equal(torch.get_rng_state(), state)


def slow_cache(model, stream_B1, theta, share, size):
    """The neural cache with one loop over positions and one over the history."""
    log_p = log_probabilities(model, stream_B1)[:, 0]
    with torch.no_grad():
        hidden = model.double().eval().encoder(stream_B1[:-1]).raw_TBD[:, 0]
    model.float()
    target = stream_B1[1:, 0]
    total = 0.0
    for t in range(len(target)):
        past = range(max(0, t - size), t)
        p = log_p[t].exp()
        if len(past):
            attention = torch.stack([theta * hidden[t] @ hidden[i] for i in past]).softmax(0)
            hit = sum(a for a, i in zip(attention, past, strict=True) if target[i] == target[t])
            p = (1 - share) * p + share * hit
        total -= math.log(p)
    return total / len(target)


@pytest.mark.parametrize(("size", "length"), [(5, 3), (5, 50), (500, 11)])
def test_cache_equals_the_written_out_one(trained, size, length):
    model, corpus = trained
    stream_TB = batchify(corpus.valid[:60], 1)
    score = cache_evaluation(model, stream_TB, theta=2.0, share=0.3, size=size, length=length)
    assert score.nll == pytest.approx(slow_cache(model, stream_TB, 2.0, 0.3, size), rel=1e-5)


def test_cache_of_no_share_is_the_plain_score(trained):
    model, corpus = trained
    stream_TB = batchify(corpus.valid[:200], 2)
    score = cache_evaluation(model, stream_TB, share=0.0)
    assert score.nll == pytest.approx(evaluate(model, stream_TB).nll, rel=1e-6)
    with pytest.raises(ValueError, match="`share`"):
        cache_evaluation(model, stream_TB, share=1.0)
    for theta in (math.nan, math.inf):  # NaN would pass for an empty cache
        with pytest.raises(ValueError, match="`theta` must be finite; got"):
            cache_evaluation(model, stream_TB, theta=theta)


def test_dynamic_evaluation_that_does_not_move_is_the_plain_score(trained):
    model, corpus = trained
    train_TB, stream_TB = batchify(corpus.train[:200], 4), batchify(corpus.valid[:100], 1)
    score = dynamic_evaluation(model, train_TB, stream_TB, lr=0.0)
    assert score.nll == pytest.approx(evaluate(model, stream_TB).nll, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "value"),
    [("lr", -1.0), ("lr", math.nan), ("decay", -0.1), ("decay", math.inf), ("epsilon", 0.0), ("length", 0)],
)
def test_dynamic_settings_out_of_range_are_named(trained, name, value):
    model, corpus = trained
    stream_TB = batchify(corpus.valid[:100], 1)
    with pytest.raises(ValueError, match=f"`{name}` must be .*; got {value}"):
        dynamic_evaluation(model, stream_TB, stream_TB, **{name: value})


def test_no_decay_is_the_limit_of_a_small_one(trained):
    model, corpus = trained
    train_TB, stream_TB = batchify(corpus.train[:200], 4), batchify(corpus.valid[:100], 1)
    none, small, large = (
        dynamic_evaluation(model, train_TB, stream_TB, decay=decay).nll for decay in (0.0, 1e-9, 0.5)
    )
    assert none == pytest.approx(small, rel=1e-6) != large


def test_dynamic_evaluation_learns_from_repetition_and_leaves_the_model(trained):
    model, corpus = trained
    train_TB = batchify(corpus.train[:400], 4)
    stream_TB = corpus.valid[:20].repeat(15)[:, None]
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    plain = evaluate(model, stream_TB).nll
    dynamic = dynamic_evaluation(model, train_TB, stream_TB, lr=0.01).nll
    assert dynamic < plain - 0.1
    assert all(torch.equal(before[n], p) for n, p in model.named_parameters())
    assert all(p.grad is None for p in model.parameters())


def test_dynamic_steps_equal_the_published_rule(make_config):
    config = make_config()
    corpus = build_corpus(config.data)
    model = build_model(config, corpus.num_words).double().eval()
    train_TB, stream_TB = batchify(corpus.train[:44], 4), batchify(corpus.valid[:16], 1)
    lr, decay, epsilon = 0.05, 0.3, 0.01
    score = dynamic_evaluation(model, train_TB, stream_TB, lr=lr, decay=decay, epsilon=epsilon, length=5)

    parameters = list(model.parameters())
    gradients, states = [], None
    for start in (0, 5):
        features = model.encoder(train_TB[start : start + 5], states)
        states = [(h.detach(), c.detach()) for h, c in features.states]
        loss = model.head(features.dropped_TBD, train_TB[start + 1 : start + 6])
        gradients.append(torch.autograd.grad(loss, parameters))
    rms = [((a**2 + b**2) / 2).sqrt() for a, b in zip(*gradients, strict=True)]
    mean = sum(r.mean() for r in rms) / len(rms)
    assert any((r / mean > 1 / decay).any() for r in rms)  # the rule's bound on the pull back counts
    start_values = [p.detach().clone() for p in parameters]
    states, total = None, 0.0
    for start in (0, 5, 10):  # the pull back first shows in the third
        features = model.encoder(stream_TB[start : start + 5], states)
        states = [(h.detach(), c.detach()) for h, c in features.states]
        loss = model.head(features.dropped_TBD, stream_TB[start + 1 : start + 6])
        total += loss.item() / 3
        with torch.no_grad():
            found = torch.autograd.grad(loss, parameters)
            for p, p_0, r, g in zip(parameters, start_values, rms, found, strict=True):
                rate = decay * torch.minimum(r / mean, torch.tensor(1 / decay))
                p.copy_(p + rate * (p_0 - p) - lr * g / (r + epsilon))
    assert score.nll == pytest.approx(total, rel=1e-9)


def test_generation_is_seeded_and_continues_the_prompt(trained):
    model, corpus = trained
    words = list(corpus.words)
    first, again, other = (generate(model, words, "w005 w001", length=20, seed=s) for s in (1, 1, 2))
    assert first == again != other
    assert first.startswith("w005 w001")
    drawn = first.replace("\n", " <eos> ").split()
    assert len(drawn) == 22 and set(drawn) <= set(words)


def test_generation_follows_the_model(trained):
    model, corpus = trained
    with torch.no_grad():
        model.head.bias[7] = 100.0
    assert generate(model, corpus.words, length=5) == " ".join([corpus.words[7]] * 5)
    assert generate(model, corpus.words, "w001", length=0) == "w001"
    with pytest.raises(ValueError, match="`seed` must be at least 0 and below 2"):
        generate(model, corpus.words, seed=2**70)


def test_unknown_prompt_words_are_named(trained):
    model, corpus = trained
    with pytest.raises(ValueError, match="got 'zebra'"):
        generate(model, corpus.words, "zebra")
