"""Random shapes, dtypes and options: every backend against the naive loss in float64."""

import torch
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.helpers import CHUNKED, assert_same, gradients, make_case, our_loss, ours, over_backends, truth


# Derandomised: a change of code changes the verdict, not the day.
SETTINGS = settings(
    deadline=None,
    max_examples=250,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
functions = st.sampled_from(
    [None, "scale", "sigsoftmax", "generalized", "softcap", "plif7", "plif1001", "tabulated", "users_own"]
)
options = st.fixed_dictionaries(
    {
        "reduction": st.sampled_from(["mean", "sum", "none"]),
        "label_smoothing": st.sampled_from([0.0, 0.0, 0.1, 1.0]),
        "z_loss": st.sampled_from([0.0, 0.0, 1e-3, 1.0]),
        "weight": st.sampled_from([None, True]),
    }
)


@over_backends
@SETTINGS
@given(
    leading=shapes,
    width=st.integers(1, 9),
    words=st.integers(1, 40),
    components=st.sampled_from([None, None, 1, 2, 5]),
    function=functions,
    dense=st.booleans(),
    bias=st.booleans(),
    ignored=st.integers(-5, 5),
    options=options,
    dtype=st.sampled_from([torch.float64, torch.float32]),
    chunk=st.sampled_from([1, 300, 5_000, 10**8]),
    seed=st.integers(0, 10**6),
)
def test_any_problem(
    backend, leading, width, words, components, function, dense, bias, ignored, options, dtype, chunk, seed
):
    case = make_case(
        leading, width, words, components, function, dense, bias, dtype, seed,
        **options, **({} if dense else {"ignore_index": ignored}),
    )  # fmt: skip
    with backend.on(chunk):
        found = gradients(our_loss(case, backend.name), case)
    right = truth(case, backend)
    loss = found["loss"]
    assert loss.shape == (leading if options["reduction"] == "none" else ())
    assert all(found[n].dtype == (loss if n == "loss" else t).dtype for n, t in case.leaves().items())
    size = 1.0 + options["z_loss"] * 100
    rtol, atol = (1e-10, 1e-12) if dtype == torch.float64 else (2e-5, 2e-5 * size)
    if loss.isnan().all():  # nothing to count: the naive mean has NaN gradients, torch and we have zeros
        assert right["loss"].isnan().all()
        assert all(not g.any() for name, g in found.items() if name != "loss")
        return
    assert_same(found, right, rtol=rtol, atol=atol)


@SETTINGS
@given(
    tokens=st.integers(1, 6),
    words=st.integers(2, 20),
    shift=st.floats(-50, 50),
    seed=st.integers(0, 10**6),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)
def test_a_constant_added_to_all_logits_changes_nothing(tokens, words, shift, seed, dtype):
    case = make_case((tokens,), words=words, dtype=dtype, seed=seed, reduction="none")
    before = ours(case, CHUNKED)
    with torch.no_grad():
        case.bias.add_(shift)
    rtol = 1e-12 if dtype == torch.float64 else 2e-5
    assert_same(ours(case, CHUNKED), before, rtol=rtol, atol=rtol)


@SETTINGS
@given(tokens=st.integers(1, 8), words=st.integers(2, 20), seed=st.integers(0, 10**6))
def test_permuting_tokens_and_words_permutes_the_loss(tokens, words, seed):
    case = make_case((tokens,), words=words, function="plif7", seed=seed, reduction="none")
    before = ours(case, CHUNKED)
    order, names = torch.randperm(tokens), torch.randperm(words)
    moved = case.to(torch.float64)
    moved.input = case.input[order].detach().requires_grad_()
    moved.target = names.argsort()[case.target[order]]
    moved.weight = case.weight[names].detach().requires_grad_()
    moved.bias = case.bias[names].detach().requires_grad_()
    moved.upstream = case.upstream[order]
    after = ours(moved, CHUNKED)
    torch.testing.assert_close(after["loss"], before["loss"][order])
    torch.testing.assert_close(after["input"], before["input"][order])
    torch.testing.assert_close(after["weight"], before["weight"][names])
    torch.testing.assert_close(after["function.v"], before["function.v"])
