"""One training step of the model against a slow, obvious one in float64, with every mask fixed."""

from dataclasses import replace

import pytest
import torch

from uncork.lm import HeadConfig, ModelConfig
from uncork.lm.awd_lstm import AWDLSTM, LanguageModel, detach
from uncork.lm.build import build_head
from uncork.lm.optim import AveragedSGD


VOCABULARY, T, B = 11, 6, 3
CONFIG = ModelConfig(embedding=4, hidden=5, layers=3)
MIXTURE = replace(CONFIG, last_hidden=6, head=HeadConfig(kind="mixture", components=2))


def build(config: ModelConfig) -> LanguageModel:
    model = LanguageModel(AWDLSTM(VOCABULARY, config), build_head(config, VOCABULARY), config)
    return model.double()


@pytest.fixture
def masks(monkeypatch):
    """Every mask the model draws, in the order drawn."""
    drawn: list[torch.Tensor] = []

    def keep_mask(like, p):
        mask = (torch.rand_like(like) >= p).to(like.dtype) / (1.0 - p)
        drawn.append(mask)
        return mask

    monkeypatch.setattr("uncork.lm.dropout.keep_mask", keep_mask)
    monkeypatch.setattr("uncork.lm.weight_drop.drop", lambda weight, p: weight * keep_mask(weight, p))
    return drawn


def slow_lstm(x_TBD, hidden, cell, weight_ih, weight_hh, bias_ih, bias_hh):
    outputs = []
    for x_BD in x_TBD:
        gates = x_BD @ weight_ih.T + bias_ih + hidden @ weight_hh.T + bias_hh
        enter, forget, new, leave = gates.chunk(4, dim=1)
        cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
        hidden = leave.sigmoid() * cell.tanh()
        outputs.append(hidden)
    return torch.stack(outputs), hidden, cell


def slow_loss(weights, config, tokens_TB, target_TB, states, masks):
    """The published model, written out. `weights` maps the model's parameter names to tensors."""
    masks = iter(masks)
    embedding_VD = weights["encoder.embedding.weight"]
    x_TBD = (embedding_VD * next(masks))[tokens_TB]
    x_TBD = x_TBD * next(masks)
    new_states = []
    for layer in range(config.layers):
        if layer > 0:
            x_TBD = x_TBD * next(masks)
        parts = {n: weights[f"encoder.layers.{layer}.{n}"] for n in ("weight_ih", "bias_ih", "bias_hh")}
        weight_hh = weights[f"encoder.layers.{layer}.weight_hh"] * next(masks)
        hidden, cell = states[layer]
        x_TBD, hidden, cell = slow_lstm(x_TBD, hidden[0], cell[0], weight_hh=weight_hh, **parts)
        new_states.append((hidden[None], cell[None]))
    raw_TBD, dropped_TBD = x_TBD, x_TBD * next(masks)
    log_p_TBV = slow_log_prob(weights, config, dropped_TBD, embedding_VD, masks)
    nll = -log_p_TBV.gather(-1, target_TB[..., None]).mean()
    ar = 2.0 * (dropped_TBD**2).sum() / dropped_TBD.numel()
    change_TBD = raw_TBD[1:] - raw_TBD[:-1]
    tar = 1.0 * (change_TBD**2).sum() / change_TBD.numel()
    assert next(masks, None) is None, "the model drew a mask the published one does not have"
    return nll + ar + tar, nll, new_states


def slow_log_prob(weights, config, dropped_TBD, embedding_VD, masks):
    bias_V = weights["head.bias"]
    if config.head.kind == "softmax":
        return (dropped_TBD @ embedding_VD.T + bias_V).log_softmax(-1)
    latent_TBKE = torch.tanh(
        dropped_TBD @ weights["head.latent.weight"].T + weights["head.latent.bias"]
    ).unflatten(-1, (config.head.components, config.embedding))
    latent_TBKE = latent_TBKE * next(masks)
    prior_TBK = (dropped_TBD @ weights["head.prior.weight"].T).softmax(-1)
    p_TBKV = (latent_TBKE @ embedding_VD.T + bias_V).softmax(-1)
    return (prior_TBK[..., None] * p_TBKV).sum(-2).log()


@pytest.mark.parametrize("config", [CONFIG, MIXTURE], ids=["softmax", "mixture"])
def test_one_step_equals_the_written_out_one(config, masks):
    model = build(config).train()
    weights = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
    optimizer = AveragedSGD(model.parameters(), lr=30.0, weight_decay=0.1)
    tokens_TB, target_TB = torch.randint(VOCABULARY, (2, T, B)).unbind()
    states = [(torch.randn_like(h), torch.randn_like(c)) for h, c in model.encoder.initial_states(B)]

    step = model(tokens_TB, states, target_TB)
    step.loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step(scale=T / 70)

    loss, nll, new_states = slow_loss(weights, config, tokens_TB, target_TB, states, masks)
    loss.backward()
    torch.testing.assert_close(step.loss, loss, rtol=1e-10, atol=0)
    torch.testing.assert_close(step.nll, nll, rtol=1e-10, atol=0)
    torch.testing.assert_close(step.states, new_states, rtol=1e-10, atol=1e-12)
    slow_norm = torch.stack([w.grad.square().sum() for w in weights.values()]).sum().sqrt()
    torch.testing.assert_close(norm, slow_norm, rtol=1e-8, atol=0)
    assert slow_norm > 0.25  # or clipping would not be tested
    for name, parameter in model.named_parameters():
        gradient = weights[name].grad * 0.25 / (slow_norm + 1e-6)
        decayed = gradient + 0.1 * weights[name]
        expected = weights[name] - 30.0 * T / 70 * decayed
        torch.testing.assert_close(parameter, expected, rtol=1e-8, atol=1e-10, msg=name)


def test_evaluation_has_no_masks_and_no_noise(masks):
    model = build(CONFIG).eval()
    tokens_TB = torch.randint(VOCABULARY, (T, B))
    first, second = (model(tokens_TB)[0] for _ in range(2))
    assert torch.equal(first, second) and not masks


def test_carried_states_make_two_windows_one(masks):
    model = build(CONFIG).eval()
    tokens_TB = torch.randint(VOCABULARY, (T, B))
    whole, _ = model(tokens_TB)
    first, states = model(tokens_TB[:2])
    second, _ = model(tokens_TB[2:], detach(states))
    torch.testing.assert_close(whole, torch.cat([first, second]))


def test_tied_weight_is_one_parameter():
    model = build(CONFIG)
    assert model.head.weight is model.encoder.embedding.weight
    untied = build(replace(CONFIG, tied=False))
    assert untied.head.weight is not untied.encoder.embedding.weight


def test_a_window_of_one_word_has_no_change_to_penalise():
    tokens_TB = torch.zeros(1, B, dtype=torch.int64)
    step = build(replace(CONFIG, activation_penalty=0.0))(tokens_TB, None, tokens_TB)
    assert step.loss == step.nll and step.nll > 0
    penalised = build(CONFIG)(tokens_TB, None, tokens_TB)
    assert penalised.loss > penalised.nll and penalised.loss.isfinite()


def test_the_start_is_the_published_one():
    model = build(replace(CONFIG, hidden=100))
    assert model.encoder.embedding.weight.abs().max() <= 0.1
    assert model.head.bias.abs().max() == 0
    assert model.encoder.layers[1].weight_hh.abs().max() <= 0.1  # 1 / sqrt(100)


@pytest.mark.parametrize("config", [CONFIG, MIXTURE], ids=["softmax", "mixture"])
def test_products_of_the_head_in_bfloat16_are_for_training(config):
    """The loss and its gradients are then those of rounded operands; scores stay what they were."""
    torch.manual_seed(0)
    head = replace(config.head, products="bfloat16", latent_dropout=0.0)
    off = {f"{name}_dropout": 0.0 for name in ("embedding", "input", "hidden", "output", "weight")}
    exact = build(replace(config, **off, head=replace(head, products="float32"))).float()
    narrow = build(replace(config, **off, head=head)).float()
    narrow.load_state_dict(exact.state_dict())
    tokens_TB, target_TB = torch.randint(VOCABULARY, (2, T, B))
    losses = [model.train()(tokens_TB, None, target_TB).loss for model in (exact, narrow)]
    assert losses[0] != losses[1] and losses[1].dtype == torch.float32
    torch.testing.assert_close(*losses, rtol=1e-2, atol=0.0)
    for loss in losses:
        loss.backward()
    for right, found in zip(exact.parameters(), narrow.parameters(), strict=True):
        assert found.grad.dtype == torch.float32
        assert (found.grad - right.grad).norm() <= 0.02 * right.grad.norm()
    with torch.no_grad():
        losses = [model.eval()(tokens_TB, None, target_TB).loss for model in (exact, narrow)]
    assert losses[0] == losses[1]
