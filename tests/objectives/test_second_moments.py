"""The closed form of the second moments: equal to autograd in every derivative, and cheap in numbers written,
multiplied and kept."""

from collections.abc import Callable

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from fullrank.objectives import OBJECTIVES, Terms, barlow_twins, frossl, total, vicreg
from fullrank.objectives.second_moments import SecondMoments, _second_moments, correlations, second_moments
from fullrank.testing import objective_case
from fullrank.testing.cost import measure_saved_bytes

# (center, scale, between)
OF_EACH_VIEW = [(True, True, False), (False, True, False), (True, False, False), (False, False, False)]
BETWEEN_VIEWS = [(True, True, True), (False, True, True)]
OBJECTIVE_NAMES = ["frossl", "barlow_twins", "vicreg"]
# Covariance or Gram matrix, of one or of several blocks and strips
SHAPES = [(7, 4), (4, 7), (5, 5), (700, 3), (3, 300), (290, 280), (270, 300), (150, 400)]


def embeddings(V, N, D, dtype=torch.float64):
    Z = torch.randn(V, N, D, generator=torch.Generator().manual_seed(0), dtype=dtype) + 0.5
    Z[0, :, 1] = 0.1  # constant up to rounding
    return Z


def weighted_sum(moments):
    """A scalar that depends on each moment by another weight."""
    return sum(
        ((i + 1) * (m * torch.arange(1, m.numel() + 1).view_as(m)).sum().tanh() for i, m in enumerate(moments)),
        torch.zeros(()),
    )


def moments_and_gradient(function, Z, arguments):
    Z = Z.clone().requires_grad_()
    moments = function(Z, *arguments)
    weights = [torch.linspace(-1, 2, m.numel(), dtype=Z.dtype).view_as(m) for m in moments]
    return moments, torch.autograd.grad(sum((w * m).sum() for w, m in zip(weights, moments, strict=True)), Z)[0]


def closed_form(Z, center, scale, between):
    return second_moments(Z, center=center, scale=scale, between=between)


def simple_form(Z, center, scale, between):
    simple = _second_moments.__wrapped__  # pyright: ignore[reportFunctionMemberAccess]
    return SecondMoments(*simple(Z, center=center, scale=scale, between=between))


def assert_equal(Z, arguments, *, tolerance=1e-12):
    values, gradient = moments_and_gradient(closed_form, Z, arguments)
    expected, expected_gradient = moments_and_gradient(simple_form, Z.double(), arguments)
    for name, value, reference in zip(SecondMoments._fields, values, expected, strict=True):
        scale = max(
            1.0,
            reference.abs().max().item(),
            (expected.diagonal.square().sum().item() if name == "off_diagonal" else 0),
        )
        assert value.dtype == Z.dtype
        assert value.shape == reference.shape
        assert (value - reference).abs().max() <= tolerance * scale, name
    assert (gradient - expected_gradient).abs().max() <= tolerance * expected_gradient.abs().max()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("arguments", OF_EACH_VIEW + BETWEEN_VIEWS)
def test_values_and_gradients_equal_those_of_autograd(arguments, shape):
    assert_equal(embeddings(2, *shape), arguments)


@pytest.mark.parametrize("V", [1, 3, 5])
@pytest.mark.parametrize("shape", [(7, 4), (4, 7)])
@pytest.mark.parametrize("arguments", OF_EACH_VIEW)
def test_any_number_of_views(arguments, shape, V):
    assert_equal(embeddings(V, *shape), arguments)


@pytest.mark.parametrize("shape", [(300, 40), (40, 300)])
@pytest.mark.parametrize("arguments", OF_EACH_VIEW + BETWEEN_VIEWS)
def test_float32_is_exact_to_rounding(arguments, shape):
    assert_equal(embeddings(2, *shape, dtype=torch.float32), arguments, tolerance=1e-5)


@pytest.mark.parametrize("shape", [(300, 40), (40, 300)])
@pytest.mark.parametrize("arguments", [(True, True, False), (True, False, False), (True, True, True)])
def test_a_large_mean_does_not_reach_the_gradient(arguments, shape):
    """The mean 1000 has a rounding error of 3e-5, which is 0.3 % of the distance of the views."""
    rng = torch.Generator().manual_seed(0)
    Z = torch.randn(1, *shape, generator=rng) + 1000
    Z = torch.cat([Z, Z + 0.01 * torch.randn(Z.shape, generator=rng)])
    exact = Z.double().requires_grad_()
    Z.requires_grad_()
    moments, expected = closed_form(Z, *arguments), simple_form(exact, *arguments)
    if arguments[1]:
        moments, expected = moments[1:], expected[1:]  # the norm of scaled columns is constant
    for moment, reference in zip(moments, expected, strict=True):
        (gradient,) = torch.autograd.grad(moment.sum(), Z, retain_graph=True)
        (exact_gradient,) = torch.autograd.grad(reference.sum(), exact, retain_graph=True)
        assert (gradient - exact_gradient).norm() < 3e-5 * exact_gradient.norm()
        torch.testing.assert_close(moment.double(), reference, rtol=1e-5, atol=0)


def test_products_between_views_are_of_two_views_and_scaled_columns():
    for V, scale in ((3, True), (2, False)):
        with pytest.raises(AssertionError):
            second_moments(torch.ones(V, 4, 3), scale=scale, between=True)


@pytest.mark.parametrize("shape", [(7, 4), (4, 7)])
def test_memory_layout_does_not_matter(shape):
    Z = embeddings(2, *shape)
    for layout in (
        Z.mT.contiguous().mT,
        Z.permute(1, 2, 0).contiguous().permute(2, 0, 1),
        torch.cat([Z, Z], -1)[..., : shape[1]],
    ):
        assert not layout.is_contiguous()
        assert_equal(layout, (True, True, False))
    view = Z[:1].expand(2, *shape)
    gradients = [moments_and_gradient(f, view, (True, True, True))[1] for f in (closed_form, simple_form)]
    torch.testing.assert_close(*gradients, atol=1e-12, rtol=0)


@pytest.mark.parametrize("shape", [(64, 8), (8, 64)])
def test_the_gradient_of_nearly_equal_views_keeps_its_digits(shape):
    Z = embeddings(1, *shape, dtype=torch.float32)
    Z = torch.cat([Z, Z + 1e-4 * torch.randn(Z.shape, generator=torch.Generator().manual_seed(1))]).requires_grad_()
    moments = second_moments(Z)
    (gradient,) = torch.autograd.grad(moments.distance.sum(), Z)
    exact = Z.detach().double().requires_grad_()
    distance = simple_form(exact, True, True, False).distance
    (expected,) = torch.autograd.grad(distance.sum(), exact)
    live = torch.arange(shape[1]) != 1
    assert (gradient - expected)[..., live].norm() < 5e-3 * expected[..., live].norm()
    assert (moments.distance - distance)[live].abs().max() < 5e-3 * distance[live].max()


@pytest.mark.parametrize("shape", [(6, 3), (3, 6)])
@pytest.mark.parametrize("arguments", OF_EACH_VIEW + BETWEEN_VIEWS)
def test_second_derivatives_equal_finite_differences(arguments, shape):
    Z = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda Z: weighted_sum(closed_form(Z, *arguments)), Z)
    assert torch.autograd.gradgradcheck(lambda Z: weighted_sum(closed_form(Z, *arguments)), Z)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # of torch's own forward-mode derivatives
@pytest.mark.parametrize("shape", [(6, 3), (3, 6)])
@pytest.mark.parametrize("name", OBJECTIVE_NAMES)
def test_transforms_of_torch_func_agree_with_autograd(name, shape):
    Z = torch.randn(4, 2, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def loss(Z):
        return sum(OBJECTIVES[name](Z).values())

    gradients = torch.stack([torch.autograd.grad(loss(z), z)[0] for z in Z.clone().requires_grad_()])
    hessian = torch.autograd.functional.hessian(loss, Z[0])
    slope = (gradients[0] * Z[1]).sum()
    close = {"atol": 1e-10, "rtol": 1e-8}
    torch.testing.assert_close(torch.func.grad(loss)(Z[0]), gradients[0], **close)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss))(Z), gradients, **close)
    torch.testing.assert_close(torch.func.vmap(loss)(Z), torch.stack([loss(z) for z in Z]), **close)
    torch.testing.assert_close(torch.func.hessian(loss)(Z[0]), hessian, **close)
    torch.testing.assert_close(torch.autograd.functional.hessian(loss, Z[0], vectorize=True), hessian, **close)
    torch.testing.assert_close(torch.func.jvp(loss, (Z[0],), (Z[1],))[1], slope, **close)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(Z[0], Z[1])
        torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(loss(dual)).tangent, slope, **close)
    z = Z[0].clone().requires_grad_()
    (batched,) = torch.autograd.grad(loss(z), z, torch.tensor([1.0, -2.0], dtype=torch.float64), is_grads_batched=True)
    torch.testing.assert_close(batched, torch.stack([gradients[0], -2 * gradients[0]]), **close)


@pytest.mark.parametrize("shape", [(8, 4), (4, 8)])
@pytest.mark.parametrize("name", OBJECTIVE_NAMES)
def test_nan_and_infinity_reach_value_and_gradient(name, shape):
    for bad in (torch.nan, torch.inf):
        Z = embeddings(2, *shape, dtype=torch.float32)
        Z[1, 2, 3] = bad
        Z.requires_grad_()
        loss = sum(OBJECTIVES[name](Z).values())
        loss.backward()
        assert not loss.isfinite()
        assert Z.grad is not None
        assert not Z.grad.isfinite().all()


def test_a_second_backward_pass_gives_the_same_gradient():
    for shape in [(8, 4), (4, 8)]:
        Z = embeddings(2, *shape).requires_grad_()
        loss = sum(frossl(Z).values())
        first, second = (torch.autograd.grad(loss, Z, retain_graph=True)[0] for _ in range(2))
        assert torch.equal(first, second)


def test_the_gram_matrix_gives_no_covariance_less_than_a_rounding_error():
    Z = torch.zeros(2, 64, 256)
    Z[..., :32] = torch.linalg.qr(
        torch.randn(64, 32, generator=torch.Generator().manual_seed(0))
    ).Q  # D > N, but few live columns
    off = second_moments(Z, center=False).off_diagonal
    assert off.abs().max() < 1e-4  # exactly zero without rounding, of a sum of squares of 32


def test_correlations_equal_inner_products():
    Z = embeddings(2, 9, 4)
    A = (Z - Z.mean(1, keepdim=True)) / Z.std(1, keepdim=True).clamp_min(1e-9) / 8**0.5
    expected = (A[0] * A[1]).sum(0)
    expected[1] = 0  # the constant column
    torch.testing.assert_close(correlations(second_moments(Z, between=True)), expected)


# Cost, counted and not timed


class Tensors(TorchDispatchMode):
    """Counts multiplications in products, numbers written, the largest tensor, and the most numbers that exist at one
    time."""

    def __init__(self, ignored: torch.Tensor):
        super().__init__()
        self.ignored = ignored.untyped_storage()._cdata
        self.multiplications = self.written = self.largest = self.peak = 0
        self.alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func._schema.name in ("aten::baddbmm_", "aten::bmm", "aten::mm"):
            self.multiplications += out.numel() * args[-2].shape[-1]
        for t in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(t, torch.Tensor) and t.untyped_storage()._cdata != self.ignored:
                self.largest = max(self.largest, t.untyped_storage().nbytes() // t.element_size())
                if not func.is_view:
                    self.written += t.numel()
                storage = t.untyped_storage()
                self.alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes() // t.element_size()
        self.alive = {key: (reference, n) for key, (reference, n) in self.alive.items() if not reference.expired()}
        self.peak = max(self.peak, sum(n for _, n in self.alive.values()))
        return out


def count(loss: Callable[[torch.Tensor], torch.Tensor], N: int, D: int) -> Tensors:
    """Count the tensors of loss and gradient, without the embeddings themselves."""
    Z = torch.randn(2, N, D, generator=torch.Generator().manual_seed(0)).requires_grad_()
    with Tensors(ignored=Z) as tensors:
        loss(Z).backward()
    return tensors


def loss_of(objective: Callable[..., Terms]) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda Z: total(objective(Z))


@pytest.mark.parametrize(("N", "D"), [(64, 65536), (65536, 64)])
@pytest.mark.parametrize("objective", [frossl, barlow_twins, vicreg])
def test_no_tensor_is_larger_than_the_embeddings(objective, N, D):
    tensors = count(loss_of(objective), N, D)
    assert tensors.largest <= 2 * N * D
    assert tensors.peak <= (2.5 if N < D else 1.5) * 2 * N * D  # the gradient, the columns in the Gram form, and blocks


@pytest.mark.parametrize(("N", "D"), [(256, 2048), (2048, 256)])
@pytest.mark.parametrize(("name", "arguments"), [("frossl", (True, True, False)), ("vicreg", (True, False, False))])
def test_the_closed_form_writes_less_than_three_quarters_and_keeps_less_than_half_of_autograd(name, arguments, N, D):
    closed = count(loss_of(OBJECTIVES[name]), N, D)
    autograd = count(lambda Z: torch.cat([m.flatten() for m in simple_form(Z, *arguments)]).sum(), N, D)
    assert closed.written < 0.75 * autograd.written
    assert closed.peak < autograd.peak / 2
    assert closed.peak < 3 * 2 * N * D


@pytest.mark.parametrize(("N", "D"), [(1024, 1100), (1100, 1024)])
@pytest.mark.parametrize("objective", [frossl, vicreg])
def test_the_symmetric_product_is_computed_by_nine_sixteenths(objective, N, D):
    product = 2 * N * D * min(N, D)  # of two views
    assert count(loss_of(objective), N, D).multiplications == (9 / 16 + 1) * product


@pytest.mark.parametrize(("N", "D", "products"), [(64, 512, 2), (512, 64, 3 / 2)])
def test_barlow_twins_multiplies_through_the_smaller_matrix(N, D, products):
    """A Gram matrix for each view, or one matrix between the views; and a product for each view in the gradient."""
    assert count(loss_of(barlow_twins), N, D).multiplications == products * 2 * N * D * min(N, D)


@pytest.mark.parametrize("objective", [frossl, barlow_twins, vicreg])
def test_matrices_of_the_smaller_size_are_saved_for_backward_and_in_the_gram_form_the_columns(objective):
    for N, D, columns in [(16, 512, 2 * 16 * 512), (512, 16, 0)]:
        assert measure_saved_bytes(objective_case(objective), N=N, D=D) < 4 * (columns + 2 * 16**2 + 40 * D)
