"""The checks that run in one process: terms, gradient, precision, invariances, and the computation graph."""

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
from fullrank.objectives.signature import GENERATOR, hyperparameters, takes
from fullrank.objectives.terms import RETURN_FORM, TAKE_A_GENERATOR, GlobalRandomState, form_error
from fullrank.testing.case import LossAndGradients, ObjectiveCase, call, loss_of, max_abs, terms_of, value_and_grad
from fullrank.testing.processes import build_network, embed, images
from fullrank.testing.report import CheckResult

Tensors = Mapping[str, Tensor]
Results = Iterator[CheckResult]
# A function of a tensor in float64 and the names of its axes, such as "V N D" or "D D".
Transform = Callable[[Tensor, str, torch.Generator], Tensor]
# Largest rounding difference of two calls, in units of the largest term; products round differently at other memory
# addresses.
SAME = 1e-12
# Largest change of the value under a transform, in units of Σ|terms|, that counts as rounding.
ROUNDING = 1e-9


def check_terms(case: ObjectiveCase) -> Results:
    """Check that the objective returns named, finite, differentiable scalars in the precision of the embeddings, and
    that it is pure.
    """
    tensors = case.random_tensors()
    returned: Any = call(case, {name: t.clone().requires_grad_() for name, t in tensors.items()})
    error = form_error(returned)
    yield CheckResult(
        "returns terms", not error, error or ", ".join(returned), f"expected scalars by name; {RETURN_FORM}"
    )
    if error and not (isinstance(returned, Tensor) and returned.ndim == 0):  # the other checks accept a bare scalar
        return
    values = list(returned.values()) if isinstance(returned, dict) else [returned]
    terms, dtypes = torch.stack(values), sorted({str(value.dtype).removeprefix("torch.") for value in values})
    attached = "has a gradient" if terms.requires_grad else "is detached from the embeddings"
    remedy = "expected a finite loss; look for a division by zero, or a log or root of a negative"
    yield CheckResult("finite", bool(terms.sum().isfinite()), f"loss {terms.sum().item():.4g}", remedy)
    remedy = "expected float64 for float64; create new tensors like the embeddings: Z.new_zeros(…)"
    yield CheckResult("keeps the precision", dtypes == ["float64"], ", ".join(dtypes), remedy)
    remedy = "remove detach, no_grad, item, and numpy between the embeddings and the loss"
    yield CheckResult("differentiable", terms.requires_grad, attached, remedy)
    errors = "; ".join(_impurities(case, tensors, terms.detach()))
    remedy = f"expected a function only of its tensors; take state as an argument, {TAKE_A_GENERATOR}, and change no "
    yield CheckResult("pure", not errors, errors or "the same value twice", f"{remedy}argument in place")
    if takes(case.objective, GENERATOR):
        losses = torch.stack([loss_of(case, tensors, seed=seed).detach() for seed in range(8)])
        spread = f"the loss is {losses.mean().item():.4g} ± {losses.std().item():.2g} over eight seeds"
        yield CheckResult("random numbers", None, f"from `generator`: {spread}")


def _impurities(case: ObjectiveCase, tensors: Tensors, first: Tensor) -> Iterator[str]:
    """Find whether a second call gives other terms, draws random numbers, or changes an argument."""
    copies, state = {name: t.clone() for name, t in tensors.items()}, GlobalRandomState()
    second = torch.stack(list(terms_of(case, copies).values()))
    if drawn := state.changed():
        yield f"draws from the global generator of {' and '.join(drawn)}"
    if changed := [name for name, t in tensors.items() if not torch.equal(t, copies[name])]:
        yield f"changes {', '.join(changed)} in place"
    if not (difference := max_abs([second - first])) <= SAME * max_abs([first]):
        yield f"differs by {difference:.2g} at the second call"


def check_weights(case: ObjectiveCase) -> Results:
    """Check that a hyperparameter with the name of a term is its weight: doubling the weight doubles this term and no
    other.
    """
    tensors = case.random_tensors()
    terms, numbers = terms_of(case, tensors), hyperparameters(case.objective)
    for name in (name for name in numbers if name in terms):
        doubled = terms_of(replace(case, objective=partial(case.objective, **{name: 2 * numbers[name]})), tensors)
        expected = terms | {name: 2 * terms[name]}
        wrong = [term for term in terms if not torch.isclose(doubled[term], expected[term], rtol=SAME, atol=0)]
        measured = f"changes {', '.join(wrong)}" if wrong else "doubles only its term"
        remedy = "expected twice the term of its name, no other; multiply it by the hyperparameter, or rename one"
        yield CheckResult(f"weight {name}", not wrong, measured, remedy)


def check_gradient_flow(case: ObjectiveCase) -> Results:
    """Check that each view of the embeddings gets a finite gradient, and that targets and state get none."""
    gradients = value_and_grad(case, case.random_tensors()).gradients
    names, constants = case.embedding_names, case.target_names + case.state_names
    errors = [f"none for a view of {name}" for name in names if not all(view.any() for view in gradients[name])]
    errors += [f"not finite for {name}" for name in names if not gradients[name].isfinite().all()]
    largest = f"largest component {max_abs(gradients[name] for name in names):.2g}"
    remedy = "use every view in the loss; name a tensor that is only a target T or K"
    yield CheckResult("reaches every view", not errors, "; ".join(errors) or largest, remedy)
    if constants:
        leaks = [name for name in constants if gradients[name].any()]
        measured = f"a gradient for {', '.join(leaks)}" if leaks else "no gradient"
        remedy = "detach them in the function; they are of a teacher or of earlier batches"
        yield CheckResult("no gradient for targets and state", not leaks, measured, remedy)


def check_finite_differences(case: ObjectiveCase) -> Results:
    """Check that autograd's gradient equals central differences, in float64; of an objective with stop-gradients, that
    of the function without them.
    """
    tensors = case.random_tensors(N=8, D=4)
    points = [tensors[name].detach().clone().requires_grad_() for name in case.embedding_names]

    def loss(*embeddings: Tensor) -> Tensor:
        return loss_of(case, tensors | dict(zip(case.embedding_names, embeddings, strict=True)))

    def without_stops(*embeddings: Tensor) -> Tensor:
        with NoStopGradient():
            return loss(*embeddings)

    answers = {"yes": loss, "yes, apart from detached values": without_stops}
    with warnings.catch_warnings(action="ignore"):
        passed = (text for text, function in answers.items() if gradcheck(function, points, raise_exception=False))
        measured = next(passed, "no")
    remedy = "look for an in-place change, .data, or a custom backward"
    yield CheckResult("equals finite differences", measured != "no", measured, remedy)


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


def check_collapse(case: ObjectiveCase) -> Results:
    """Check for a finite loss and a bounded gradient at collapsed embeddings; dividing by a rounding error gives a
    gradient of 1/ε.
    """

    def gradient(*results: LossAndGradients) -> float:
        return max_abs(result.gradients[name] for result in results for name in case.embedding_names)

    tensors, samples = case.random_tensors(), case.embedding_names + case.target_names
    limit = 100 * max(10.0, gradient(value_and_grad(case, tensors)))  # at random embeddings
    for name, collapse in COLLAPSES.items():
        collapsed = {key: collapse(t) if key in samples else t for key, t in tensors.items()}
        single, double = (value_and_grad(case, collapsed, dtype=dtype) for dtype in (torch.float32, torch.float64))
        finite, largest = bool((single.loss + double.loss).isfinite()), gradient(single, double)
        found = f"loss {double.loss.item():.4g}, largest gradient {largest:.2g}, limit {limit:.2g}"
        passed = finite and largest < limit  # a gradient of NaN is not below the limit
        remedy = "guard the norm, logarithm or root at zero, in the backward pass too (clamp before, not after)"
        yield CheckResult(f"collapse: {name}", passed, found if finite else "the loss is not finite", remedy)


def check_float32(case: ObjectiveCase) -> Results:
    """Check that value and gradient in float32 are close to those in float64."""
    exact, single = (value_and_grad(case, case.random_tensors(), dtype=d) for d in (torch.float64, torch.float32))
    value = abs(single.loss.item() - exact.loss.item()) / max(exact.scale, 1.0)
    pairs = [(single.gradients[name], exact.gradients[name]) for name in case.embedding_names]
    gradient = max(((g - e).norm() / e.norm()).item() for g, e in pairs)
    passed = value <= 1e-5 and gradient <= 1e-4 and single.loss.dtype == torch.float32
    measured = f"{single.loss.dtype}, value off by {value:.1e}, gradient by {gradient:.1e}"
    remedy = "expected float32 for float32, its value to 1e-5 and gradient to 1e-4; subtract the mean before square, "
    yield CheckResult("float32", passed, measured, f"{remedy}exp or log; use logsumexp, log1p")


def check_bfloat16(case: ObjectiveCase) -> Results:
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
        losses.append(loss := loss_of(case, tensors))
        finite &= all(bool(g.isfinite().all()) for g in torch.autograd.grad(loss, list(student.parameters())))
        scale = value_and_grad(case, tensors).scale
    error = abs(losses[0].item() - losses[1].item()) / scale
    measured = f"loss off by {error:.1%}" if finite else "a gradient is not finite"
    remedy = "expected a loss within 1 % of float32; look for divisions by small numbers, which amplify small "
    remedy += "differences of the embeddings"
    yield CheckResult("bfloat16 network", finite and error <= 0.01, measured, remedy)


def check_invariances(case: ObjectiveCase) -> Results:
    """Report for each transform whether the value changes; no invariance is required."""
    for name, change in relative_changes(case).items():
        measured = "yes" if change <= ROUNDING else f"no: value changes by {change:.2g}"
        yield CheckResult(f"invariant under {name}", None, measured)


def relative_changes(case: ObjectiveCase) -> dict[str, float]:
    """Return the change of the value, in units of Σ|terms|, under each transform of the embeddings.

    >>> from fullrank.objectives import simclr
    >>> from fullrank.testing import objective_case
    >>> [name for name, change in relative_changes(objective_case(simclr)).items() if change > ROUNDING]
    ['scale of each dimension', 'shift of each dimension']
    """
    tensors = case.random_tensors()
    before = value_and_grad(case, tensors)
    axes = {name: " ".join("VND"[-t.ndim :]) for name, t in tensors.items()}
    axes |= {name: of_state for name, (of_state, _) in case.state.tensors.items()}
    changes = {}
    for name, move in TRANSFORMS.items():  # with the same random numbers for each tensor
        moved = {key: move(t, axes[key], torch.Generator().manual_seed(1)) for key, t in tensors.items()}
        changes[name] = ((loss_of(case, moved) - before.loss).abs() / before.scale).item()
    return changes


def _of_samples(transform: Callable[[Tensor, torch.Generator], Tensor]) -> Transform:
    """Return a transform of all embeddings and targets, not of the state."""
    return lambda t, axes, g: transform(t, g) if "N" in axes else t


def _of_space(matrix: Callable[[int, torch.Generator], Tensor]) -> Transform:
    """Return an orthogonal transform of the embedding space, including the state; `matrix` returns its (D, D)
    matrix.
    """

    def apply(t: Tensor, axes: str, g: torch.Generator) -> Tensor:
        A = matrix(t.shape[-1], g)
        return A.mT @ t @ A if axes.endswith("D D") else t @ A

    return apply


_uniform, _normal = partial(torch.rand, dtype=torch.float64), partial(torch.randn, dtype=torch.float64)
# Name → transform of the tensors.
TRANSFORMS: dict[str, Transform] = {
    "order of samples": _of_samples(lambda t, g: t[..., torch.randperm(t.shape[-2], generator=g), :]),
    "order of dimensions": _of_space(lambda D, g: torch.eye(D).double()[torch.randperm(D, generator=g)]),
    "order of views": lambda t, axes, g: t.flip(0) if axes.startswith("V") else t,
    "rotation": _of_space(lambda D, g: torch.linalg.qr(_normal(D, D, generator=g)).Q),
    "scale": _of_samples(lambda t, g: 1.7 * t),
    "scale of each dimension": _of_samples(lambda t, g: (_uniform(t.shape[-1], generator=g) + 0.5) * t),
    "shift of each dimension": _of_samples(lambda t, g: t + _normal(t.shape[-1], generator=g)),
    "scale of each row": _of_samples(lambda t, g: (_uniform(*t.shape[:-1], 1, generator=g) + 0.5) * t),
}


def check_compile(case: ObjectiveCase) -> Results:
    """Check that `torch.compile(fullgraph=True)` accepts the function, and that the compiled function gives the same
    terms.
    """
    name, tensors = "compiles into one graph", case.random_tensors()
    if takes(case.objective, GENERATOR):
        yield CheckResult(name, None, "not tested: torch.compile accepts no generator")
        return
    expected = terms_of(case, tensors)
    remedy = "expected the same terms with fullgraph=True; use torch.where instead of if"
    with _no_shape_checks():
        try:
            compiled = torch.compile(lambda tensors: terms_of(case, tensors), fullgraph=True, backend="eager")(tensors)
        except Exception as error:  # of any type, from dynamo or from the function
            yield CheckResult(name, False, exception_line(error), remedy)
            return
    difference = max_abs((compiled[term] - expected[term]) / expected[term].abs().clamp_min(1) for term in expected)
    same = difference <= SAME  # a compiled function may sum in another order
    yield CheckResult(name, same, "the same terms" if same else f"differs by {difference:.2g}", remedy)


def check_host_sync(case: ObjectiveCase) -> Results:
    """Check that loss and gradient read no value of a tensor on the host. (On CUDA, eigvalsh and Cholesky always
    synchronise.)
    """
    sync = ""
    with FakeTensorMode() as mode, _no_shape_checks():
        fake = {name: mode.from_tensor(t) for name, t in case.random_tensors().items()}
        points = [fake[name].requires_grad_() for name in case.embedding_names]
        try:
            torch.autograd.grad(loss_of(case, fake), points)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            sync = f"reads a value on the host ({exception_line(error)})"
    remedy = "use torch.where instead of if, and no .item(), float(), bool() or print of a tensor"
    yield CheckResult("no host synchronisation", not sync, sync or "reads none", remedy)


@contextmanager
def _no_shape_checks() -> Iterator[None]:
    """Disable jaxtyping's checks, which break a graph."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
