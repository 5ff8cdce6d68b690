"""The Python code of the pages, executed as it stands, and the flags of their commands, parsed."""

import re
import runpy
import shlex
import shutil
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from lightning.fabric import Fabric
from PIL import Image

import fullrank
from fullrank import methods
from fullrank.cli.flags import parse
from fullrank.cli.main import main
from fullrank.methods.backbones import build_backbone
from fullrank.methods.builders import BY_TENSORS, build_siamese
from fullrank.objectives import OBJECTIVES, simclr
from fullrank.sweep.sweeping import sweep_plan
from fullrank.testing.case import EMBEDDINGS
from fullrank.training import build_optimizer, fit

ROOT = Path(__file__).parents[1]
NAMES = ("own-loop", "augmentations", "run-directory", "objectives", "own-objective", "spectrum", "reproduce")
PAGES = ("README.md", *(f"docs/{name}.md" for name in NAMES))
PAGES_OF_COMMANDS = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md"))


def blocks(page):
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)


@pytest.mark.filterwarnings("ignore")  # of Lightning
@pytest.mark.parametrize(("page", "k"), [(page, k) for page in PAGES for k in range(len(blocks(page)))])
def test_a_block_of_a_page_runs_alone(page, k, tmp_path, monkeypatch, untyped):
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks(page)[k], f"{page}, block {k + 1}", "exec"), {"__name__": "page"})


@pytest.mark.filterwarnings("ignore")  # of Lightning
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_lightning_module_of_any_method_trains_as_fit(objective):
    (block,) = [block for block in blocks("docs/own-loop.md") if "class Pretraining" in block]
    settings = {"objective": objective, "views.0.size": 16, "batch_size": 16}
    settings |= {} if objective.startswith("directclr") else {"projector.widths": (32, 8)}
    names = {"__name__": "page", "SETTINGS": settings}
    given = '{"objective": "byol", "views.0.size": 16}'
    assert given in block
    exec(block[: block.index("batches =")].replace(given, "SETTINGS"), names)
    module, views = names["Pretraining"](), torch.randn(3, 2, 16, 3, 16, 16)
    method, fabric = deepcopy(module.method), Fabric(accelerator="cpu", devices=1)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = names["lightning"].Trainer(max_epochs=2, accelerator="cpu", enable_model_summary=False, **quiet)
    torch.manual_seed(0)
    trainer.fit(module, torch.utils.data.DataLoader(views, batch_size=None))
    method.training_length = methods.TrainingLength(3, 6)
    torch.manual_seed(0)
    trained, optimizer = fabric.setup(method, build_optimizer(names["recipe"].optimizer, method))
    batches = [([x], torch.full((16,), -1)) for x in (*views, *views)]
    list(fit(fabric, trained, optimizer, batches, lambda step: names["recipe"].optimizer.lr))
    torch.testing.assert_close(module.method.state_dict(), method.state_dict(), rtol=0, atol=0, equal_nan=True)


# What a block has on the page → what it has in the test: weights that need no network, and a shorter run.
CHANGES = {
    "timm:resnet18": "timm-untrained:test_resnet",
    "path/to/labels.csv": "path/to/photos",
    '"cifar10-small", images': '"cifar10-small", images, epochs=1',
    '"cifar10", objective="barlow_twins"': '"digits", objective="barlow_twins", epochs=1',
    'pretrain("digits", out': 'pretrain("digits", epochs=1, out',
    "seeds=3,": 'seeds=1, jobs=Jobs(cluster="debug"),',
    "import sweep\n": "import Jobs, sweep\n",
    "epochs=5,": "epochs=1,",
    "num_proc=8": "num_proc=None",
}


@pytest.fixture(scope="module")
def world(run, photos, train, tmp_path_factory):
    """A folder with the images and the runs that the pages name, and Python names that a page leaves to the reader."""
    from small import small_recipe

    folder = tmp_path_factory.mktemp("world")
    for name in ("photos", "labelled-photos", "new-photos"):
        shutil.copytree(photos, folder / "path/to" / name)
        for k in range(10):
            Image.new("RGB", (24, 24), (20 * k,) * 3).save(folder / "path/to" / name / "dog" / f"flat {k}.png")
    shutil.copytree(photos, folder / "photos")
    for name in ("a", "b"):
        shutil.copy(photos / "cat/06.jpg", folder / f"{name}.jpg")
    for name in ("runs/digits", "runs/a", "runs/b", "runs/cifar10-small", "RUN", "their/run"):
        shutil.copytree(run.path, folder / name)
    of_photos = {"data.source": str(photos), "epochs": 1, "batch_size": 16}
    train(fullrank.recipes.resolve(small_recipe(), of_photos), folder / "runs/photos")
    shutil.copy(run.path / "recipe.json", folder / "their/recipe.json")
    (folder / "scans.csv").write_text("path,patient\n")
    for name, page in (("my_module", "own-objective"), ("my_loss", "sweep")):
        written = [block for block in blocks(f"docs/{page}.md") if block.startswith(f"# {name}.py")]
        (folder / f"{name}.py").write_text("\n".join(written))
    images = torch.randint(256, (160, 3, 32, 32), dtype=torch.uint8)
    paths = sorted(map(str, (folder / "path/to/photos").rglob("*.*g")))
    names = {
        "fullrank": fullrank,
        "images": images,
        "paths": paths,
        "labels": ["cat", "dog", None] * 23 + ["cat"],
        "train": images[:60],
        "test": images[60:90],
    }
    config = methods.BackboneConfig(arguments={"channels": [4, 4, 8, 8], "layers": [1, 1, 1, 2]}, stem="small")
    projector = methods.build_projector(methods.ProjectorConfig(kind="sub-vector", d0=3), 8)
    names["method"] = methods.JointEmbedding(build_backbone(config), projector, simclr).double()
    names |= {"views": [torch.randn(2, 16, 3, 16, 16).double()], "build_with_hidden": build_siamese}
    return folder, names


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "page", ["alarm", "choose", "data-formats", "evaluating", "extending", "index", "neighbours", "projectors",
             "protocols", "recipes", "security", "sweep"],
)  # fmt: skip
def test_the_blocks_of_a_page_run_one_after_the_other(page, world, monkeypatch, untyped):
    folder, names = world
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setitem(BY_TENSORS, ("Z", "H"), build_siamese)  # a block adds these rows
    monkeypatch.setitem(EMBEDDINGS, "H", ("", lambda X: X))
    names = {**names, "__name__": __name__}
    for k, block in enumerate(blocks(f"docs/{page}.md")):
        for written, tested in CHANGES.items():
            block = block.replace(written, tested)
        exec(compile(block, f"{page}, block {k + 1}", "exec"), names)


class Parsed(Exception):
    """Raised in place of the work of a command."""


def commands(page):
    """The commands of the shell blocks of a page, without comments."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.DOTALL | re.MULTILINE)
    text = "".join(text for language, text in fences if language in ("", "bash"))
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.startswith("fullrank ")]
    return [shlex.split(line, comments=True)[1:] for line in lines]


@pytest.mark.parametrize("page", [page for page in ("README.md", *PAGES_OF_COMMANDS) if commands(page)])
def test_the_commands_of_a_page_have_flags_that_exist(page, world, monkeypatch):
    def parse_only(*arguments, **options):
        parse(*arguments, **options)
        raise Parsed

    def list_only(*plan):
        raise Parsed

    def plan_only(recipe, grid, *, jobs, only, console, **options):
        given = {name: options.pop(name) for name in ("seeds", "choose", "evaluate", "out", "trust")}
        sweep_plan(recipe, grid, options, **given, console=console)
        raise Parsed

    monkeypatch.chdir(world[0])
    monkeypatch.syspath_prepend(world[0])
    for module in ("flags", "pretrain", "check"):
        monkeypatch.setattr(f"fullrank.cli.{module}.parse", parse_only)
    monkeypatch.setattr("fullrank.cli.sweep.sweep", plan_only)
    monkeypatch.setattr("fullrank.cli.sweep.list_cells", list_only)
    for words in commands(page):
        with pytest.raises(Parsed):
            assert main(words), words


def test_the_tables_of_the_pages_are_what_their_code_prints():
    tools = runpy.run_path(str(ROOT / "docs/extensions/render.py"))
    for page in set(tools["pages"]()) - {ROOT / "docs/command-line.md"}:  # whose form depends on the version of tyro
        assert tools["render"](page) == page.read_text("utf-8"), page
