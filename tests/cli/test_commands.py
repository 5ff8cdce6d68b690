"""The commands that print what a function returns, and write it."""

from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("words", "printed", "written"),
    [
        ("neighbours RUN --data digits --out out", "near-duplicates", "out/images.parquet"),
        ("choose RUN timm-untrained:test_resnet --data digits --images 64 --out out.json", "test_resnet", "out.json"),
        ("finetune RUN --epochs 1 --seeds 1 --out out", "random", "out/model.safetensors"),
        ("evaluate RUN --probes knn --no-baselines --out out.json", "kNN", "out.json"),
    ],
)
def test_a_command_prints_its_result_and_writes_it(words, printed, written, copy, fullrank, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, err = fullrank(*words.replace("RUN", str(copy)).split())
    assert (status, printed in out, Path(written).exists()) == (0, True, True), err
    assert "backbone: features" not in err  # a step of the work is shown on a terminal alone
