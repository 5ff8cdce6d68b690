"""The checks that run in one process: terms, gradient, precision, invariances, and the computation graph."""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import jaxtyping
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.autograd import gradcheck
from torch.overrides import TorchFunctionMode

from fullrank.errors import exception_line
from fullrank.objectives.signature import hyperparameters, takes_generator
from fullrank.objectives.terms import GlobalRandomState, form_error
from fullrank.testing.case import LossAndGradients, ObjectiveCase, call, loss_of, max_abs, terms_of, value_and_grad
from fullrank.testing.processes import build_network, embed, images
from fullrank.testing.report import CheckResult, info, required

Tensors = Mapping[str, Tensor]
# A function of all tensors of an objective, in float64.
Transform = Callable[[ObjectiveCase, Tensors, torch.Generator], Tensors]
# Largest rounding difference of two calls, in units of the largest term; products round differently at other memory
# addresses.
SAME = 1e-12
# Largest change of the value under a transform, in units of Σ|terms|, that counts as rounding.
ROUNDING = 1e-9


def _tensors(case: ObjectiveCase, **sizes: int) -> dict[str, Tensor]:
    return case.random_tensors(torch.Generator().manual_seed(0), **sizes)


def check_terms(case: ObjectiveCase) -> list[CheckResult]:
    """Check that the objective returns named, finite, differentiable scalars in the precision of the embeddings, and
    that it is pure.
    """
    tensors = _tensors(case)
    returned: Any = call(case, {name: t.clone().requires_grad_() for name, t in tensors.items()})
    error = form_error(returned)
    results = [required("returns terms", not error, error or ", ".join(returned))]
    if error and not (isinstance(returned, Tensor) and returned.ndim == 0):  # the other checks accept a bare scalar
        return results
    values = list(returned.values()) if isinstance(returned, dict) else [returned]
    terms = torch.stack(values)
    dtypes = sorted({str(value.dtype).removeprefix("torch.") for value in values})
    attached = terms.requires_grad
    results += [
        required("finite", bool(terms.sum().isfinite()), f"loss {terms.sum().item():.4g}"),
        required("keeps the precision", dtypes == ["float64"], ", ".join(dtypes)),
        required("differentiable", attached, "has a gradient" if attached else "is detached from the embeddings"),
        _check_purity(case, tensors, terms.detach()),
    ]
    if takes_generator(case.objective):
        losses = torch.stack([loss_of(case, tensors, seed=seed).detach() for seed in range(8)])
        spread = f"the loss is {losses.mean().item():.4g} ± {losses.std().item():.2g} over eight seeds"
        results.append(info("random numbers", f"from `generator`: {spread}"))
    return results


def _check_purity(case: ObjectiveCase, tensors: Tensors, first: Tensor) -> CheckResult:
    """Check that a second call gives the same terms, draws no random numbers, and changes no argument."""
    copies = {name: t.clone() for name, t in tensors.items()}
    state = GlobalRandomState()
    second = torch.stack(list(terms_of(case, copies).values()))
    changed = [name for name, t in tensors.items() if not torch.equal(t, copies[name])]
    difference = (second - first).abs().max().item()
    drawn = state.changed()
    errors = [f"draws from the global generator of {' and '.join(drawn)}"] if drawn else []
    errors += [f"changes {', '.join(changed)} in place"] if changed else []
    errors += [] if difference <= SAME * max_abs([first]) else [f"differs by {difference:.2g} at the second call"]
    return required("pure", not errors, "; ".join(errors) or "the same value twice")


def check_weights(case: ObjectiveCase) -> list[CheckResult]:
    """Check that a hyperparameter with the name of a term is its weight: doubling the weight doubles this term and no
    other.
    """
    tensors = _tensors(case)
    terms = terms_of(case, tensors)
    results = []
    for name, weight in hyperparameters(case.objective).items():
        if name in terms:
            doubled = terms_of(replace(case, objective=partial(case.objective, **{name: 2 * weight})), tensors)
            expected = {term: (2 if term == name else 1) * value for term, value in terms.items()}
            wrong = [t for t in terms if not torch.isclose(doubled[t], expected[t], rtol=SAME, atol=0)]
            measured = f"changes {', '.join(wrong)}" if wrong else "doubles only its term"
            results.append(required(f"weight {name}", not wrong, measured))
    return results


def check_gradient_flow(case: ObjectiveCase) -> list[CheckResult]:
    """Check that each view of the embeddings gets a finite gradient, and that targets and state get none."""
    gradients = value_and_grad(case, _tensors(case)).gradients
    names = case.embedding_names
    errors = [f"none for a view of {name}" for name in names if not all(view.any() for view in gradients[name])]
    errors += [f"not finite for {name}" for name in names if not gradients[name].isfinite().all()]
    largest = f"largest component {max_abs(gradients[name] for name in names):.2g}"
    results = [required("reaches every view", not errors, "; ".join(errors) or largest)]
    if constants := case.target_names + case.state_names:
        leaks = [name for name in constants if gradients[name].any()]
        measured = f"a gradient for {', '.join(leaks)}" if leaks else "no gradient"
        results.append(required("no gradient for targets and state", not leaks, measured))
    return results


def check_finite_differences(case: ObjectiveCase) -> list[CheckResult]:
    """Check that autograd's gradient equals central differences, in float64; of an objective with stop-gradients, that
    of the function without them.
    """
    tensors = _tensors(case, N=8, D=4)
    points = [tensors[name].detach().clone().requires_grad_() for name in case.embedding_names]

    def loss(*embeddings: Tensor) -> Tensor:
        return loss_of(case, tensors | dict(zip(case.embedding_names, embeddings, strict=True)))

    def without_stops(*embeddings: Tensor) -> Tensor:
        with NoStopGradient():
            return loss(*embeddings)

    for function, measured in ((loss, "yes"), (without_stops, "yes, apart from detached values")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if gradcheck(function, points, raise_exception=False):
                return [required("equals finite differences", True, measured)]
    return [required("equals finite differences", False, "no")]


class NoStopGradient(TorchFunctionMode):
    """A mode in which `detach` and `no_grad` do nothing.

    >>> x = torch.tensor(3.0, requires_grad=True)
    >>> with NoStopGradient():
    ...     torch.autograd.grad(x * x.detach(), x)
    (tensor(6.),)
    """

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Call `func` with gradient."""
        if func is Tensor.detach:
            return args[0]
        with torch.enable_grad():
            return func(*args, **(kwargs or {}))


# Name → function that collapses embeddings (…, N, D) partly or completely.
COLLAPSES: dict[str, Callable[[Tensor], Tensor]] = {
    # The mean of a constant column has a rounding error for 0.1, and is exact for 0.5.
    "constant columns": lambda t: t.index_fill(-1, torch.tensor([1]), 0.1).index_fill(-1, torch.tensor([2]), 0.5),
    "zero column": lambda t: t.index_fill(-1, torch.tensor([1]), 0.0),
    "equal rows": lambda t: t[..., :1, :].expand_as(t),
    "equal rows and views": lambda t: t[(0,) * (t.ndim - 2)][:1].expand_as(t),
    "all zero": torch.zeros_like,
    "rank one": lambda t: t[..., :1].expand_as(t),
}


def check_collapse(case: ObjectiveCase) -> list[CheckResult]:
    """Check for a finite loss and a bounded gradient at collapsed embeddings; dividing by a rounding error gives a
    gradient of 1/ε.
    """

    def gradient(result: LossAndGradients) -> float:
        return max_abs(result.gradients[name] for name in case.embedding_names)

    tensors, samples = _tensors(case), case.embedding_names + case.target_names
    limit = 100 * max(10.0, gradient(value_and_grad(case, tensors)))  # at random embeddings
    results = []
    for name, collapse in COLLAPSES.items():
        collapsed = {key: collapse(t) if key in samples else t for key, t in tensors.items()}
        single, double = (value_and_grad(case, collapsed, dtype=dtype) for dtype in (torch.float32, torch.float64))
        largest = max(gradient(single), gradient(double), key=lambda g: math.inf if math.isnan(g) else g)
        finite = bool(single.loss.isfinite() and double.loss.isfinite())
        found = f"loss {double.loss.item():.4g}, largest gradient {largest:.2g}, limit {limit:.2g}"
        passed = finite and largest < limit  # False for NaN
        results.append(required(f"collapse: {name}", passed, found if finite else "the loss is not finite"))
    return results


def check_float32(case: ObjectiveCase) -> list[CheckResult]:
    """Check that value and gradient in float32 are close to those in float64."""
    tensors = _tensors(case)
    exact, single = value_and_grad(case, tensors), value_and_grad(case, tensors, dtype=torch.float32)
    value = abs(single.loss.item() - exact.loss.item()) / max(exact.scale, 1.0)
    pairs = [(single.gradients[name], exact.gradients[name]) for name in case.embedding_names]
    gradient = max(((g - e).norm() / e.norm()).item() for g, e in pairs)
    passed = value <= 1e-5 and gradient <= 1e-4 and single.loss.dtype == torch.float32
    return [required("float32", passed, f"{single.loss.dtype}, value off by {value:.1e}, gradient by {gradient:.1e}")]


def check_bfloat16(case: ObjectiveCase) -> list[CheckResult]:
    """Check that the loss is within 1 % of float32 if the network is under bfloat16 autocast and the embeddings are
    cast to float32.
    """
    D = 16
    student, teacher = (build_network(D, perturbation=perturbation).float() for perturbation in (0.0, 0.1))
    state = {name: t.float() for name, t in case.sample_state(torch.Generator().manual_seed(0), D=D).items()}
    losses, finite, scale = [], True, 1.0
    for autocast in (True, False):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            X, T = (embed(network, images(case.views, 256).float()) for network in (student, teacher))
        tensors = case.tensors(X.float(), T.float(), state)
        loss = loss_of(case, tensors)
        finite &= all(bool(g.isfinite().all()) for g in torch.autograd.grad(loss, list(student.parameters())))
        losses.append(loss.item())
        scale = value_and_grad(case, tensors).scale
    error = abs(losses[0] - losses[1]) / scale
    measured = f"loss off by {error:.1%}" if finite else "a gradient is not finite"
    return [required("bfloat16 network", finite and error <= 0.01, measured)]


def check_invariances(case: ObjectiveCase) -> list[CheckResult]:
    """Report for each transform whether the value changes; no invariance is required."""
    changes = relative_changes(case).items()
    answers = {name: "yes" if change <= ROUNDING else f"no: value changes by {change:.2g}" for name, change in changes}
    return [info(f"invariant under {name}", answer) for name, answer in answers.items()]


def relative_changes(case: ObjectiveCase) -> dict[str, float]:
    """Return the change of the value, in units of Σ|terms|, under each transform of the embeddings.

    >>> from fullrank.objectives import simclr
    >>> from fullrank.testing import objective_case
    >>> [name for name, change in relative_changes(objective_case(simclr)).items() if change > ROUNDING]
    ['scale of each dimension', 'shift of each dimension']
    """
    tensors = _tensors(case)
    before = value_and_grad(case, tensors)
    moved = {name: move(case, tensors, torch.Generator().manual_seed(1)) for name, move in TRANSFORMS.items()}
    return {name: ((loss_of(case, t) - before.loss).abs() / before.scale).item() for name, t in moved.items()}


def _of_samples(transform: Callable[[Tensor, torch.Generator], Tensor]) -> Transform:
    """Return a transform of all embeddings and targets, with the same random numbers for each tensor."""

    def apply(case: ObjectiveCase, tensors: Tensors, generator: torch.Generator) -> Tensors:
        state, samples = generator.get_state(), case.embedding_names + case.target_names
        return {name: transform(t, generator.set_state(state)) if name in samples else t for name, t in tensors.items()}

    return apply


def _axes_of_state(case: ObjectiveCase) -> dict[str, str]:
    return {name: axes for name, (axes, _) in case.state.tensors.items()} if case.state else {}


def _of_space(matrix: Callable[[int, torch.Generator], Tensor]) -> Transform:
    """Return an orthogonal transform of the embedding space, including the state; `matrix` returns its (D, D)
    matrix.
    """

    def apply(case: ObjectiveCase, tensors: Tensors, generator: torch.Generator) -> Tensors:
        A, axes = matrix(next(iter(tensors.values())).shape[-1], generator), _axes_of_state(case)
        return {name: A.mT @ t @ A if axes.get(name, "").endswith("D D") else t @ A for name, t in tensors.items()}

    return apply


def _flip_views(case: ObjectiveCase, tensors: Tensors, generator: torch.Generator) -> Tensors:
    """Reverse the views, and the state tensors that have one entry per view."""
    axes = _axes_of_state(case)
    has_views = {name: axes[name].startswith("V") if name in axes else t.ndim == 3 for name, t in tensors.items()}
    return {name: t.flip(0) if has_views[name] else t for name, t in tensors.items()}


def _uniform(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=generator, dtype=torch.float64) + 0.5


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


# Name → transform of the tensors.
TRANSFORMS: dict[str, Transform] = {
    "order of samples": _of_samples(lambda t, g: t[..., torch.randperm(t.shape[-2], generator=g), :]),
    "order of dimensions": _of_space(lambda D, g: torch.eye(D).double()[torch.randperm(D, generator=g)]),
    "order of views": _flip_views,
    "rotation": _of_space(lambda D, g: torch.linalg.qr(_normal(g, D, D)).Q),
    "scale": _of_samples(lambda t, g: 1.7 * t),
    "scale of each dimension": _of_samples(lambda t, g: _uniform(g, t.shape[-1]) * t),
    "shift of each dimension": _of_samples(lambda t, g: t + _normal(g, t.shape[-1])),
    "scale of each row": _of_samples(lambda t, g: _uniform(g, *t.shape[:-1], 1) * t),
}


def check_compile(case: ObjectiveCase) -> list[CheckResult]:
    """Check that `torch.compile(fullgraph=True)` accepts the function, and that the compiled function gives the same
    terms.
    """
    name = "compiles into one graph"
    if takes_generator(case.objective):
        return [info(name, "not tested: torch.compile accepts no generator")]
    tensors = _tensors(case)
    expected = terms_of(case, tensors)
    with _no_shape_checks():
        try:
            compiled = torch.compile(lambda tensors: terms_of(case, tensors), fullgraph=True, backend="eager")(tensors)
        except Exception as error:  # of any type, from dynamo or from the function
            return [required(name, False, exception_line(error))]
    difference = max_abs((compiled[term] - expected[term]) / expected[term].abs().clamp_min(1) for term in expected)
    same = difference <= SAME  # a compiled function may sum in another order
    return [required(name, same, "the same terms" if same else f"differs by {difference:.2g}")]


def check_host_sync(case: ObjectiveCase) -> list[CheckResult]:
    """Check that loss and gradient read no value of a tensor on the host. (On CUDA, eigvalsh and Cholesky always
    synchronise.)
    """
    tensors, sync = _tensors(case), ""
    with FakeTensorMode() as mode, _no_shape_checks():
        fake = {name: mode.from_tensor(t).requires_grad_(name in case.embedding_names) for name, t in tensors.items()}
        try:
            torch.autograd.grad(loss_of(case, fake), [fake[name] for name in case.embedding_names])
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            sync = f"reads a value on the host ({exception_line(error)})"
    return [required("no host synchronisation", not sync, sync or "reads none")]


@contextmanager
def _no_shape_checks() -> Iterator[None]:
    """Disable jaxtyping's checks, which break a graph."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)
