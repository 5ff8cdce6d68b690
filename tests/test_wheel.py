"""The wheel."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fullrank_papers.figures import load_committed

ROOT = Path(__file__).parents[1]


def run(*words, **options):
    return subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=300, **options)


def files(folder, *packages):
    found = (path for package in packages for path in (folder / package).rglob("*") if path.is_file())
    return {str(path.relative_to(folder)) for path in found if "__pycache__" not in path.parts}


def test_the_installed_wheel_is_complete_and_works_outside_the_repository(tmp_path):
    target, pip = tmp_path / "installed", (sys.executable, "-m", "pip", "--quiet")
    built = run(*pip, "wheel", "--no-deps", "--wheel-dir", tmp_path, ROOT)
    if "No matching distribution found for hatchling" in built.stderr:
        pytest.skip("hatchling, which builds the wheel, cannot be fetched")
    assert built.returncode == 0, built.stderr
    assert run(*pip, "install", "--no-deps", "--target", target, *tmp_path.glob("*.whl")).returncode == 0
    packages = ("fullrank", "fullrank_papers")
    results = {f"fullrank_papers/{name}" for name in files(ROOT, "results") if name.endswith(".json")}
    assert files(target, *packages) >= files(ROOT / "src", *packages) | results

    def fullrank(*words):
        done = run(target / "bin" / "fullrank", *words, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(target)})
        assert done.returncode == 0, done.stderr
        return done.stdout

    committed = load_committed("frossl/fig2")
    assert committed
    assert f"{committed.seconds:.0f} s" in fullrank("reproduce")
    network = ("--backbone.arguments", '{"channels": [8, 8, 8, 8], "layers": [1, 1, 1, 1]}')
    fullrank("pretrain", "digits", "--out", "run", "--epochs", "1", "--projector.widths", "16", "8", *network)
    assert (tmp_path / "run" / "report.html").read_text().endswith("</html>")
