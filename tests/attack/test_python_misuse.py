"""Wrong calls of the public Python functions: one line that says what was received and what was expected, and nothing
is written.

The cases run in one process of their own, because the runtime type checks of the tests would answer before the library
does.
"""

import json
import re
import subprocess
import sys
import textwrap

import pytest

SETUP = """
    import json, os, sys, warnings
    from pathlib import Path
    import numpy as np, torch
    from PIL import Image
    import fullrank
    from fullrank import Run, Spectrum, UserError, embed, evaluate, export, load, measure_spectrum, open_images, pretrain
    from fullrank.images import MemoryImages, Preprocess, as_images
    from fullrank.methods import BackboneConfig, build_backbone
    from fullrank.objectives import barlow_twins, frossl, simclr, vicreg
    from fullrank.recipes import RECIPES, Recipe
    from fullrank.report import write_report
    from fullrank.training import OptimizerConfig

    warnings.simplefilter("ignore")
    run, cases = Path(sys.argv[1]), json.loads(sys.argv[2])
    quiet = {"console": __import__("rich.console").console.Console(quiet=True), "out": "new"}
    model = load(run)
    digits = open_images("digits")["all"].subset(range(40))
    unlabelled = as_images(np.zeros((40, 1, 8, 8), np.uint8))
    Path("text.png").write_text("no image")
    Path("empty").mkdir()
    Path("note.txt").write_text("a note")
    Path("note.csv").write_text("a note")
    os.mkfifo("pipe.png")
    small = BackboneConfig(name="resnet18", arguments={"channels": [8, 8, 16, 16], "layers": [1, 1, 1, 1]})
    torch.save(build_backbone(small).state_dict(), "weights.pt")

    def files():
        found = [path for root in (Path(), run) for path in root.rglob("*")]
        return sorted((str(path), path.lstat().st_mtime_ns, path.lstat().st_size) for path in found if path.name != ".lock")

    for name, code in cases.items():
        before, error = files(), None
        try:
            eval(code)
        except BaseException as caught:
            error = caught
        print(json.dumps({
            "name": name,
            "error": None if error is None else type(error).__name__,
            "is_user_error": isinstance(error, UserError),
            "message": str(error),
            "written": [path for path, *_ in set(files()) ^ set(before)],
        }), flush=True)
"""

CASES = {
    # pretrain
    "pretrain of a number": ("pretrain(3, **quiet)", "recipe is 3"),
    "pretrain of a list": ("pretrain(['digits'], **quiet)", "recipe is"),
    "pretrain of an unknown recipe": ("pretrain('digitz', **quiet)", "did you mean 'digits'"),
    "pretrain of a missing folder": ("pretrain('no/such/folder', **quiet)", "neither a recipe nor a path"),
    "pretrain of nothing": ("pretrain(**quiet)", "recipe"),
    "pretrain of an empty folder": ("pretrain('empty', **quiet)", "empty"),
    "pretrain of a file": ("pretrain('note.txt', **quiet)", "note.txt"),
    "epochs as text": ("pretrain('digits', epochs='2', **quiet)", "epochs"),
    "epochs of zero": ("pretrain('digits', epochs=0, **quiet)", "epochs"),
    "epochs as a fraction": ("pretrain('digits', epochs=1.5, **quiet)", "epochs"),
    "a batch of None": ("pretrain('digits', batch_size=None, **quiet)", "batch_size"),
    "a misspelt field": ("pretrain('digits', epoch=2, **quiet)", "did you mean 'epochs'"),
    "a rate as text": ("pretrain('digits', **{'optimizer.lr': 'x'}, **quiet)", "lr"),
    "a rate of infinity": ("pretrain('digits', **{'optimizer.lr': float('inf')}, **quiet)", "lr"),
    "an optimizer as a number": ("pretrain('digits', optimizer=3, **quiet)", "optimizer"),
    "an unknown objective": ("pretrain('digits', objective='vicregg', **quiet)", "did you mean 'vicreg'"),
    "an objective as a function": ("pretrain('digits', objective=vicreg, **quiet)", "objective is"),
    "an unknown backbone": ("pretrain('digits', backbone='resnet81', **quiet)", "resnet81"),
    "a view that does not exist": ("pretrain('digits', **{'views.4.size': 8}, **quiet)", "views.4.size"),
    "a recipe with a wrong type": ("pretrain(Recipe(epochs='2'), **quiet)", "epochs"),
    "a recipe with a part of another type": ("pretrain(Recipe(optimizer={'lr': 1}), **quiet)", "optimizer"),
    "data as a number": ("pretrain('digits', 7, **quiet)", "data is 7"),
    "data of three dimensions": ("pretrain('digits', torch.zeros(5, 8, 8), **quiet)", r"expected \(n, C, H, W\)"),
    "data that is normalised": ("pretrain('digits', torch.randn(64, 1, 8, 8), **quiet)", r"\[0, 1\]"),
    "resume of a missing run": ("pretrain(resume='no/run', console=quiet['console'])", "no/run"),
    "an objective of the wrong method": ("pretrain('digits', method={'momentum': 'x'}, **quiet)", "momentum"),
    # load
    "load of a number": ("load(3)", "model is 3"),
    "load of None": ("load(None)", "model is None"),
    "load of an empty text": ("load('')", "expected RUN"),
    "load of a NUL": ("load('a\\0b')", "expected RUN"),
    "load of bytes": ("load(b'run')", "expected RUN"),
    "load of a folder": ("load('empty')", "empty"),
    "load of a missing step": ("load(f'{run}@7')", "step 7"),
    "load of a file of text": ("load('file:note.txt')", "note.txt"),
    "load with a size of text": ("load('file:note.txt', backbone='resnet18', size='x')", "note.txt"),
    "load of a run with a backbone": ("load(run, backbone='resnet18')", "backbone"),
    "load of an unknown network": ("load('timm:resnet81')", "did you mean 'resnet18'"),
    "a network of weights as a number": ("load('file:weights.pt', backbone=3)", "backbone is 3"),
    "a size of weights as text": ("load('file:weights.pt', backbone=small, size='x')", "size"),
    "a mean of weights as one number": ("load('file:weights.pt', backbone=small, mean=0.5)", "mean"),
    "channels of weights as text": ("load('file:weights.pt', backbone=small, channels='3')", "channels is '3'"),
    "weights of another network": ("load('file:weights.pt', backbone='test_resnet')", "missing"),
    # features
    "features of nothing": ("model.features([])", "empty"),
    "features of a number": ("model.features(3)", "images is 3"),
    "features of a list of numbers": ("model.features([1, 2])", "image 0 is 1"),
    "features of a missing file": ("model.features('no.png')", "no.png"),
    "features of a folder": ("model.features('empty')", "folder"),
    "features of a file without an image": ("model.features(['text.png'])", "text.png"),
    "features of a pipe": ("model.features('pipe.png')", "pipe.png"),
    "features of normalised pixels": ("model.features(np.random.default_rng(0).normal(size=(8, 8)))", r"\[0, 1\]"),
    "features of NaN": ("model.features(np.full((8, 8), np.nan))", r"\[0, 1\]"),
    "features of integers": ("model.features(np.zeros((8, 8), np.int32))", "int32"),
    "features of objects": ("model.features(np.array([[None]]))", "image"),
    "features of five dimensions": ("model.features(torch.zeros(1, 1, 1, 8, 8))", "shape"),
    "features of channels first": ("model.features(np.zeros((3, 20, 20), np.uint8))", "transpose"),
    "features in batches of none": ("model.features(digits, batch_size=0)", "batch_size"),
    # evaluate, embed, export, measure_spectrum
    "evaluate of a number": ("evaluate(3)", "model is 3"),
    "evaluate without data": ("evaluate('timm-untrained:test_resnet')", "data"),
    "evaluate without labels": ("evaluate(run, unlabelled)", "no labels"),
    "evaluate of a missing folder": ("evaluate(run, 'no/folder')", "no/folder"),
    "evaluate by an unknown probe": ("evaluate(run, probes=['svm'])", "unknown probe 'svm'"),
    "evaluate by a text of probes": ("evaluate(run, probes='knn')", r"probes=\['knn'\]"),
    "evaluate without probes": ("evaluate(run, probes=[])", "no probe"),
    "evaluate on a device that is not there": ("evaluate(run, device='tpu')", "device 'tpu'"),
    "evaluate too many dimensions": ("evaluate(run, dimensions=':99', probes=['knn'], baselines=False)", ":99"),
    "evaluate with a seed of text": ("evaluate(run, seed='x')", "seed"),
    "evaluate with an unknown argument": ("evaluate(run, probe='knn')", "unexpected keyword argument 'probe'"),
    "embed of data as a number": ("embed(run, 3)", "data is 3"),
    "embed of two images as one": ("embed(run, torch.zeros(2, 8, 8))", r"\(n, C, H, W\)"),
    "embed into a number": ("embed(run, out=3)", "out is 3"),
    "embed into an unknown format": ("embed(run, out='a.xlsx')", ".parquet"),
    "embed over an existing file": ("embed(run, digits, out='note.csv')", "exists already"),
    "embed in batches of text": ("embed(run, digits, batch_size='x')", "batch_size"),
    "export into an unknown format": ("export(run, 'a.pt')", ".safetensors"),
    "export of a missing run": ("export('no/run', 'a.onnx')", "no/run"),
    "spectrum of a missing split": ("measure_spectrum(run, 'digits', split='dev')", "dev"),
    "spectrum of a split of opened images": ("measure_spectrum(run, digits, split='test')", "split"),
    "spectrum with workers of text": ("measure_spectrum(run, workers='x')", "workers"),
    # Run, Spectrum, objectives, images, report
    "a checkpoint that does not exist": ("Run(run).checkpoint(7)", "step 7"),
    "a run that does not exist": ("Run('no/run').recipe", "no/run"),
    "a spectrum of a list": ("Spectrum.from_embeddings([[1.0, 2.0]])", "tensor"),
    "a spectrum of integers": ("Spectrum.from_embeddings(torch.ones(4, 2, dtype=torch.int64))", "floating"),
    "a spectrum of NaN": ("Spectrum.from_embeddings(torch.full((4, 2), torch.nan))", "finite|NaN"),
    "a spectrum of one row": ("Spectrum.from_embeddings(torch.ones(2))", r"\(n, D\)"),
    "an objective of two arguments": ("frossl(torch.ones(8, 4), torch.ones(8, 4))", "frossl"),
    "an objective of a list": ("vicreg([torch.ones(8, 4)] * 2)", "vicreg"),
    "an objective of three views": ("barlow_twins(torch.randn(3, 8, 4))", "2"),
    "an objective with an unknown argument": ("simclr(torch.randn(2, 8, 4), tau=0.1)", "tau"),
    "images of a missing source": ("open_images('no/folder')", "no/folder"),
    "images of a number": ("open_images(3)", "3"),
    "images of an unknown split": ("open_images('digits', split='train')", "train"),
    "a report of nothing": ("write_report([], Path('r.html'))", "run"),
    "a report of a folder": ("write_report([Path('empty')], Path('r.html'))", "empty"),
}
"""What is wrong → a call, and a word of the message."""


@pytest.fixture(scope="module")
def outcomes(run, tmp_path_factory):
    """The outcome of each case, by name."""
    calls = json.dumps({name: code for name, (code, _) in CASES.items()})
    command = [sys.executable, "-c", textwrap.dedent(SETUP), str(run.path), calls]
    done = subprocess.run(command, cwd=tmp_path_factory.mktemp("misuse"), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return {outcome["name"]: outcome for outcome in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_call_is_one_helpful_line_and_writes_nothing(outcomes, case):
    _, words = CASES[case]
    found = outcomes[case]
    assert found["is_user_error"] or (
        found["error"] == "TypeError" and "unexpected keyword argument" in found["message"]
    ), found
    assert "\n" not in found["message"]
    assert len(found["message"]) < 600
    assert re.search(words, found["message"]), found
    assert found["written"] == []
