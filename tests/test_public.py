"""The public names of `fullrank`, which are imported when they are first used."""

import subprocess
import sys
import types

import pytest

import fullrank


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_every_public_name_exists():
    assert sorted(fullrank.__all__) == dir(fullrank)
    for name in fullrank.__all__:
        assert not isinstance(getattr(fullrank, name), types.ModuleType)


def test_an_unknown_name_is_an_error():
    with pytest.raises(AttributeError, match="module 'fullrank' has no attribute 'pretrian'"):
        _ = fullrank.pretrian


def test_importing_the_package_imports_no_heavy_module():
    done = python("import sys; import fullrank; print(sorted({'torch', 'numpy', 'tyro'} & set(sys.modules)))")
    assert (done.stdout, done.stderr) == ("[]\n", "")


REFUSE = """
import sys
import jaxtyping, numpy, pydantic.dataclasses, torch

class Refuse:
    def find_spec(name, *_):
        if name.partition(".")[0] not in {"fullrank", *sys.stdlib_module_names, *sys.modules}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Refuse)
"""
"""No other library can be imported after this."""
LIGHT = {
    "objectives": """
from fullrank.objectives import frossl, total
Z = torch.randn(2, 8, 4, requires_grad=True)
total(frossl(Z)).backward()
print(bool(Z.grad.norm() > 0))
""",
    "spectrum": """
from fullrank.spectrum import StreamingSpectrum, compute_metrics
streaming = StreamingSpectrum()
streaming.update(torch.randn(64, 8))
print(1 < compute_metrics(streaming.compute())["effective_rank"].value < 8)
""",
    "views": """
from fullrank.views import BlurConfig, MultiViewTransform, ViewConfig
transform = MultiViewTransform(ViewConfig(size=8, blur=BlurConfig(probability=1)), mean=(0.5,), std=(0.2,), channels=1)
views, = transform(torch.randint(256, (4, 1, 10, 12), dtype=torch.uint8), transform.make_params(0, 0, 4))
print(views.shape == (2, 4, 1, 8, 8))
""",
    "nn": """
from fullrank.views import ViewConfig
from fullrank.nn import EMA, Loss, ProjectorConfig, Views, build_predictor, build_projector
x = torch.stack(Views(ViewConfig(size=8))(torch.rand(4, 3, 10, 12))).flatten(2)
projector, predictor = build_projector(ProjectorConfig(widths=(16, 8)), 192), build_predictor(8, 4)
Loss("byol")([predictor(projector(view)) for view in x], [EMA(projector)(view) for view in x]).backward()
print(bool(projector[0].weight.grad.norm() > 0))
""",
}


@pytest.mark.parametrize("part", LIGHT)
def test_a_part_needs_only_torch_numpy_jaxtyping_and_pydantic(part):
    done = python(REFUSE + LIGHT[part])
    assert (done.stdout, done.stderr) == ("True\n", "")
