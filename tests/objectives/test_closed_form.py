"""Every objective with a closed form equals its simple form; what it may allocate and multiply."""

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fullrank.objectives import OBJECTIVES, closed_form, rows, similarities, total
from fullrank.objectives.determinant import logdet
from fullrank.objectives.simclr import contrast
from fullrank.objectives.ssl_hsic import kernel_moments
from fullrank.objectives.tico import penalty as tico_penalty
from fullrank.testing import objective_case
from fullrank.testing.cost import OperationCount

NUMBERS = {"directclr": {"d0": 5}, "directclr_paper": {"d0": 5}}
IN_BLOCKS = ("simclr", "moco", "directclr", "directclr_paper", "ssl_hsic", "simmer")
"""Objectives that compare samples and need no matrix of all of them."""


@pytest.fixture
def simple(monkeypatch):
    """Call to switch every closed form off."""
    return lambda: monkeypatch.setattr(closed_form, "plain", lambda *tensors: False)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 3 rows."""
    monkeypatch.setattr(similarities, "BLOCK", {"cpu": 3, "other": 3})


def case_of(name):
    return objective_case(OBJECTIVES[name], hyper=NUMBERS.get(name))


def tensors_of(case, *, N=7, D=5, seed=0):
    tensors = case.random_tensors(torch.Generator().manual_seed(seed), N=N, D=D)
    return {name: t.clone().requires_grad_(name in case.embedding_names) for name, t in tensors.items()}


def value_and_gradients(case, tensors, *, create_graph=False):
    terms = case.objective(**tensors)
    inputs = [tensors[name] for name in case.embedding_names]
    # different weights, so that terms cannot be exchanged
    loss = torch.stack([(i + 1) * term for i, term in enumerate(terms.values())]).sum()
    return [*terms.values(), *torch.autograd.grad(loss, inputs, create_graph=create_graph)]


def assert_equal(found, expected, *, atol=1e-12):
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=atol, rtol=1e-12, equal_nan=True)


@pytest.mark.parametrize("shape", [(7, 5), (5, 12), (24, 5)])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_value_and_gradients_equal_those_of_the_simple_form(name, shape, simple, small_blocks):
    case = case_of(name)
    if name in ("wmse", "corinfomax") and shape[0] <= shape[1]:
        pytest.skip("needs N > D")
    tensors = tensors_of(case, N=shape[0], D=shape[1])
    found = value_and_gradients(case, tensors)
    simple()
    assert_equal(found, value_and_gradients(case, tensors))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_second_derivatives_equal_those_of_the_simple_form(name, simple, small_blocks):
    case = case_of(name)
    tensors = tensors_of(case)

    def second():
        gradients = value_and_gradients(case, tensors, create_graph=True)[-len(case.embedding_names) :]
        gradient = gradients[0]
        if not gradient.requires_grad:
            return []
        vector = torch.arange(gradient.numel(), dtype=gradient.dtype).view_as(gradient).sin()
        return torch.autograd.grad((gradient * vector).sum(), tensors[case.embedding_names[0]])

    found = second()
    simple()
    assert_equal(found, second(), atol=1e-10)


@pytest.mark.parametrize("name", IN_BLOCKS)
def test_chunked_equals_unchunked(name, monkeypatch):
    """With blocks of 3 rows, kept or made again, and with one block."""
    case, results = case_of(name), []
    tensors = tensors_of(case, N=8)
    for block, keep in ((3, 10**6), (3, 0), (10**6, 10**6)):
        monkeypatch.setattr(similarities, "BLOCK", {"cpu": block, "other": block})
        monkeypatch.setattr(similarities, "KEEP", keep)
        results.append(value_and_gradients(case, tensors))
    assert_equal(results[0], results[1])
    assert_equal(results[0], results[2])


@pytest.mark.parametrize("name", OBJECTIVES)
def test_nan_stays_nan(name, small_blocks):
    case = case_of(name)
    tensors = tensors_of(case)
    first = case.embedding_names[0]
    tensors[first] = tensors[first].detach().index_fill(1, torch.tensor([2]), torch.nan).requires_grad_()
    assert total(case.objective(**tensors)).isnan()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_zero_row_equals_the_simple_form(name, simple, small_blocks):
    case = case_of(name)
    tensors = tensors_of(case)
    first = case.embedding_names[0]
    tensors[first] = tensors[first].detach().index_fill(1, torch.tensor([2]), 0).requires_grad_()
    found = value_and_gradients(case, tensors)
    simple()
    assert_equal(found, value_and_gradients(case, tensors))


def test_a_batch_of_one_sample_has_the_gradient_of_the_simple_form(simple):
    """The only row of a view has no others: log Σ exp is −∞, without gradient."""
    case = case_of("directclr_paper")
    tensors = tensors_of(case, N=1)
    found = value_and_gradients(case, tensors)
    simple()
    assert_equal(found, value_and_gradients(case, tensors))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_softmax_keeps_small_probabilities_in_every_precision(dtype):
    S = torch.tensor([[0.0, 5.0, 10.0], [0.0, 0.0, 1e4]], dtype=dtype)
    P, sums = rows.softmax_and_logsumexp(S, temperature=1.0)
    torch.testing.assert_close(P, S.softmax(-1))
    torch.testing.assert_close(sums, S.logsumexp(-1))


def test_a_missing_number_is_an_error(randn):
    with pytest.raises(TypeError, match="scale"):
        similarities.logsumexp_others(randn(4, 3))


def test_functions_with_a_closed_form_pass_gradgradcheck(randn, small_blocks):
    A, B, Q = randn(2, 4, 3), randn(2, 4, 3), randn(2, 4, 3).softmax(-1)
    C = randn(3, 3)
    functions = [
        (rows.unit_rows, (A,)),
        (rows.pair_cosines, (A, B)),
        (rows.scatter, (A,)),
        (rows.gram, (A,)),
        (lambda A: logdet(rows.scatter(A), epsilon=0.1), (A,)),
        (rows.sum_of_squares, (A,)),
        (lambda Z: contrast(Z, scale=2.0), (A,)),
        (lambda S: rows.cross_entropies(S, Q, temperature=0.5), (A,)),
        (lambda U: similarities.logsumexp_others(U, scale=2.0), (A.flatten(0, 1),)),
        (lambda U, W: similarities.logsumexp_products(U, W, scale=2.0, columns=True), (A[0], B.flatten(0, 1))),
        (lambda U: tico_penalty(U, C, forgetting=0.7), (A.flatten(0, 1),)),
        (lambda U: kernel_moments(U, scale=0.8), (A.flatten(0, 1),)),
    ]
    for function, points in functions:
        points = tuple(t.detach().requires_grad_() for t in points)
        assert torch.autograd.gradcheck(function, points)
        assert torch.autograd.gradgradcheck(function, points)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning")  # torch's own forward mode
def test_a_function_with_a_closed_form_works_under_transforms(randn):
    A = randn(6, 3)

    def f(U):
        return similarities.logsumexp_others(U, scale=2.0).sum()

    point = A.clone().requires_grad_()
    gradient = torch.autograd.grad(f(point), point)[0]
    torch.testing.assert_close(torch.func.grad(f)(A), gradient)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(f))(A.expand(2, 6, 3)), gradient.expand(2, 6, 3))
    derivative = torch.func.jvp(f, (A,), (A.sin(),))[1]
    torch.testing.assert_close(derivative, (gradient * A.sin()).sum())
    vectorized = torch.autograd.functional.hessian(f, A, vectorize=True)
    torch.testing.assert_close(vectorized, torch.func.hessian(f)(A))


@pytest.mark.parametrize(
    "layout", [lambda t: t.mT.contiguous().mT, lambda t: t[:, :, None].expand(-1, -1, 2, -1)[:, :, 0]]
)
@pytest.mark.parametrize("name", ["simclr", "byol", "ssl_hsic", "tico", "dino"])
def test_the_layout_in_memory_does_not_matter(name, layout):
    case = case_of(name)
    tensors = tensors_of(case)
    strided = {
        key: layout(t.detach()).requires_grad_(t.requires_grad) if t.ndim == 3 else t for key, t in tensors.items()
    }
    assert_equal(value_and_gradients(case, strided), value_and_gradients(case, tensors))


def test_a_tensor_may_be_given_twice_or_depend_on_another(randn):
    """The second derivatives count each path once."""
    A = randn(2, 4, 3).requires_grad_()
    for f in (lambda A: rows.pair_cosines(A, A), lambda A: rows.pair_cosines(A, A.sin())):
        assert torch.autograd.gradcheck(f, A)
        assert torch.autograd.gradgradcheck(f, A)


class LargestTensor(TorchDispatchMode):
    """Records the largest number of elements of a tensor that an operation returned."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(t, torch.Tensor):
                self.largest = max(self.largest, t.untyped_storage().nbytes() // t.element_size())
        return out


@pytest.mark.parametrize("name", IN_BLOCKS)
def test_a_large_batch_needs_no_matrix_of_all_samples(name, monkeypatch):
    """Sixteen times as many samples as dimensions: nothing larger than the embeddings, and one block of rows of the
    similarities."""
    N, D, block = 256, 16, 16
    monkeypatch.setattr(similarities, "BLOCK", {"cpu": block, "other": block})
    monkeypatch.setattr(similarities, "KEEP", 0)
    case = case_of(name)
    tensors = tensors_of(case, N=N, D=D)
    with LargestTensor() as mode:
        value_and_gradients(case, tensors)
    assert mode.largest <= max(t.numel() for t in tensors.values()) < N * N


@pytest.mark.parametrize("name", ["spectral_contrastive", "ivne", "corinfomax_batch"])
def test_the_smaller_matrix_is_chosen(name):
    case = case_of(name)
    for N, D in ((64, 8), (8, 64)):
        tensors = tensors_of(case, N=N, D=D)
        with LargestTensor() as mode:
            value_and_gradients(case, tensors)
        assert mode.largest <= 2 * N * D


@pytest.mark.parametrize(
    ("name", "N", "D", "products"),
    [
        ("simclr", 12, 6, 24**2 * 6 * 1.5),
        ("ssl_hsic", 12, 6, 24**2 * 6 * 1.5),
        ("tico", 12, 6, 2 * 24 * 6**2),
        ("tico", 4, 24, 8 * 24**2 + 2 * 8**2 * 24),
        ("corinfomax_batch", 12, 6, 2 * (2 * 12 * 6**2 + 2 * 6**3)),
    ],
)
def test_counts_of_multiplications(name, N, D, products, monkeypatch):
    """Blocks above the diagonal stand for those below it, and a symmetric product has a gradient of one product."""
    monkeypatch.setattr(similarities, "BLOCK", {"cpu": 3, "other": 3})
    case = replace(case_of(name), views=2)
    tensors = tensors_of(case, N=N, D=D)
    with OperationCount() as counter:
        value_and_gradients(case, tensors)
    assert products <= counter.multiplications <= 1.15 * products
