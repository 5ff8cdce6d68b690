"""What is wrong with a command line is answered before torch or another large library is imported."""

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "torchvision", "lightning", "timm", "datasets", "pyarrow", "plotly", "matplotlib", "sklearn", "scipy", "pandas")
ANSWERS = {
    "--help": (0, "usage: fullrank COMMAND"),
    "--version": (0, "fullrank 0."),
    "pretrian digits": (2, "did you mean 'pretrain'?"),
    "recipes": (0, "cifar10-small"),
    "recipes cifar10": (0, '"hyper"'),
    "recipes cifar": (2, "did you mean 'cifar10'?"),
    "pretrain --help": (0, "barlow_twins"),
    "pretrain digits --help": (0, "--hyper.invariance"),
    "pretrain digits --objective moco --help": (0, "--method.queue"),
    "pretrain digts": (2, "did you mean 'digits'?"),
    "pretrain no/such/photos": (2, "neither a recipe nor a path that exists"),
    "pretrain digits --epochs three": (2, "error parsing --epochs"),
    "pretrain digits --epochs 0": (2, "epochs: got 0"),
    "pretrain digits --epoch 3": (2, "unrecognized options: --epoch"),
    "pretrain digits --hyper.invarience 2": (2, "--hyper.invariance"),
    "pretrain digits --objective vicregg": (2, "did you mean 'vicreg'?"),
    "pretrain digits --method.queue 3": (2, "unrecognized options: --method.queue"),
    "pretrain digits --data no/such/photos": (2, "no file or folder 'no/such/photos'"),
    "pretrain digits --data h:photos": (2, "no file or folder 'h:photos'"),
    "pretrain --resume no/such/run": (2, "no run at no/such/run"),
    "pretrain --resume . --epochs x": (2, "error parsing --epochs"),
    "evaluate --help": (0, "--probes"),
    "finetune --help": (0, "--seeds"),
    "finetune timm:resnet18 --labelled no/such/photos": (2, "no file or folder"),
    "finetune timm:resnet18 --seeds 0": (2, "--seeds is 0"),
    "evaluate no/such/run": (2, "is no run directory"),
    "evaluate file:missing.safetensors": (2, "no file missing.safetensors"),
    "evaluate timm:resnet18 --data no/such/photos": (2, "no file or folder"),
    "evaluate timm:resnet18 --dimensions 3": (2, "is not a range"),
    "evaluate timm:resnet18 --seed x": (2, "error parsing --seed"),
    "evaluate timm:resnet18 --linear-sgd.lrr 0.1": (2, "did you mean --linear-sgd.lr"),
    "evaluate timm:resnet18 --knn.k 0": (2, "knn.k: got 0"),
    "evaluate timm:resnet18 --linear-sgd.views 101": (2, "there are only 100 epochs"),
    "evaluate timm:resnet18 --probes svn": (2, "linear-imagenet"),
    "evaluate timm:resnet18 --transfer digits no/such/photos": (2, "no file or folder"),
    "spectrum no/such/run": (2, "is no run directory"),
    "choose --help": (0, "--labelled"),
    "choose timm:resnet18 --data digits": (2, "expected two or more"),
    "choose timm:resnet18 no/such/run --data digits": (2, "is no run directory"),
    "choose timm:resnet18 timm:resnet50 --data digits --out a.png": (2, "expected .html, .json or .csv"),
    "spectrum timm:resnet18 --out a.csv": (2, "expected .npz, .json or .png"),
    "embed timm:resnet18 --out a.txt": (2, "expected .parquet, .csv, .npz or .npy"),
    "export no/such/run --out a.onnx": (2, "is no run directory"),
    "report no/such/run --out a.html": (2, "is not a run directory"),
    "check vicregg": (2, "did you mean 'vicreg'?"),
    "check vicreg --hyper.covariance x": (2, "error parsing --hyper.covariance"),
    "reproduce frossl/fig1": (2, "unknown figure"),
    "sweep --help": (0, "--choose"),
    "sweep digts --seeds 2": (2, "did you mean 'digits'?"),
    "sweep digits --objective frossl vicregg": (2, "did you mean 'vicreg'?"),
    "sweep digits --epochs 1 0": (2, "epochs: got 0"),
    "sweep digits --seed 1": (2, "give --seeds"),
    "sweep digits --choose optimizer.lr": (2, "needs at least two values"),
}

PROGRAM = f"""
import contextlib, io, json, sys
from fullrank.cli import main
answers = {{}}
for line in json.loads(sys.argv[1]):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        status = main(line.split())
    answers[line] = (status, out.getvalue(), sorted(set({HEAVY}) & set(sys.modules)))
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """All answers of one process: a module that one of them imports is seen from there on."""
    folder = tmp_path_factory.mktemp("empty")
    lines = json.dumps(list(ANSWERS))
    done = subprocess.run([sys.executable, "-c", PROGRAM, lines], capture_output=True, text=True, timeout=120, cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("line", ANSWERS)
def test_an_answer_imports_nothing_heavy(line, answers):
    status, text, heavy = answers[line]
    expected_status, expected_text = ANSWERS[line]
    assert (status, heavy) == (expected_status, []), text
    assert expected_text in text
