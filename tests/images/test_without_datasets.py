"""Parquet files need neither `datasets` nor `tyro`."""

import subprocess
import sys

PROGRAM = """
import sys
sys.modules.update(dict.fromkeys(("datasets", "tyro", "plotly")))
import json
from fullrank import evaluate, pretrain
from fullrank.methods import BackboneConfig, ProjectorConfig
from fullrank.recipes import DataConfig, Recipe
from fullrank.views import ViewConfig
from rich.console import Console

recipe = Recipe(
    data=DataConfig(source=sys.argv[1], mean=(0.5,) * 3, std=(0.25,) * 3),
    views=(ViewConfig(size=8),),
    backbone=BackboneConfig(name="test_resnet"),
    projector=ProjectorConfig(widths=(8,)),
    epochs=1,
    batch_size=12,
    checkpoints=1,
)
run = pretrain(recipe, out=sys.argv[2], console=Console(quiet=True))
scores = evaluate(run, probes=["knn"], baselines=False)
print(json.dumps([run.checkpoint().step, scores.test_images, run.metrics[-1].probe_images]))
"""


def test_a_run_on_parquet_files_needs_neither_datasets_nor_tyro(parquet, tmp_path):
    parquet("train-00000-of-00001.parquet", n=24)
    folder = parquet("test-00000-of-00001.parquet", n=12).parent
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, folder, tmp_path / "run"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[2, 12, 12]\n"
