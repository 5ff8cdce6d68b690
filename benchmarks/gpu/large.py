"""Large networks on synthetic images of 224 px: speed, memory and the largest batch; and the table of all objectives on
the device."""

import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.gpu.parts import Options, Part, Result, release_memory
from benchmarks.gpu.throughput import ROOT, run_script
from benchmarks.gpu.training import Training, on_device, random_images, tiny
from fullrank.methods import BackboneConfig, ProjectorConfig
from fullrank.recipes import RECIPES, Recipe

NETWORKS = {"ResNet-50": BackboneConfig(name="resnet50"), "ViT-S/16": BackboneConfig(name="vit_small_patch16_224")}
BATCH = 256  # the batch of the speed
FIRST_BATCH = 64  # the search for the largest batch doubles this one


def parts(options: Options) -> Iterator[Part]:
    """Yield the parts of this piece."""
    for name, backbone in NETWORKS.items():
        for variant in ("eager",) if options.smoke else ("eager", "compiled"):
            yield Part(
                f"{name}, {variant}", lambda backbone=backbone, variant=variant: speed(options, backbone, variant)
            )
    for name, backbone in NETWORKS.items():
        yield Part(f"{name}, largest batch", lambda backbone=backbone: largest_batch(options, backbone))
    yield Part("objectives, times", lambda: objectives(options, []))
    yield Part("objectives, memory", lambda: objectives(options, ["--memory"]))


def recipe_for(options: Options, backbone: BackboneConfig, batch: int) -> Recipe:
    """Return the recipe `imagenet` with another backbone; tiny in a smoke test."""
    recipe = replace(on_device(RECIPES["imagenet"], options.device), backbone=backbone, batch_size=batch)
    if not options.smoke:
        return recipe
    views = tuple(replace(view, size=32) for view in recipe.views)
    return replace(tiny(recipe), views=views, projector=ProjectorConfig(widths=(32, 16)), batch_size=batch)


def speed(options: Options, backbone: BackboneConfig, variant: str) -> Result:
    """Measure images per second and memory."""
    batch, side = (8, 40) if options.smoke else (BATCH, 256)
    training = Training(recipe_for(options, backbone, batch), random_images(2 * batch, side), variant)
    warmup, count = (1, 2) if options.smoke else (10, 30)
    return {"batch": batch, "precision": training.recipe.machine.precision} | training.time(warmup=warmup, count=count)


def largest_batch(options: Options, backbone: BackboneConfig) -> Result:
    """Double the batch until the memory is full; the result is the last batch that fitted, without micro-batches."""
    batch, side, limit = (8, 40, 16) if options.smoke else (FIRST_BATCH, 256, 4096)
    fitted, memory = 0, None
    while batch <= limit:
        try:
            training = Training(recipe_for(options, backbone, batch), random_images(batch, side))
            for _ in training.steps(2):
                pass
            fitted = batch
            memory = round(torch.cuda.max_memory_allocated() / 2**30, 2) if options.device.type == "cuda" else None
        except torch.OutOfMemoryError:
            break
        finally:
            training = None
            release_memory()
        batch *= 2
    return {"largest_batch": fitted, "peak_memory_gib": memory, "reached_limit": batch > limit}


def objectives(options: Options, arguments: list[str]) -> Result:
    """Run `losses.py`, the table of all objectives, on the device."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "losses.json"
        device = ["--device", options.device.type]
        few = ["--objectives", "frossl", "--sizes", "16x8", "--rounds", "3"] if options.smoke else []
        run_script([str(ROOT / "benchmarks" / "losses.py"), *arguments, *device, *few, "--out", str(out)])
        return {"losses": json.loads(out.read_text())}


def rows(results: dict[str, Result]) -> list[list[str]]:
    """Return the rows of the printed table."""
    table = []
    for name, result in results.items():
        if value := result.get("images_per_second"):
            memory = f", {result['peak_memory_gib']} GiB" if "peak_memory_gib" in result else ""
            table.append(
                [f"{name}, batch {result['batch']}", f"{value:,.0f} images/s", f"{result['teraflops']} TFLOP/s{memory}"]
            )
        elif "largest_batch" in result:
            table.append([name, str(result["largest_batch"]), f"{result['peak_memory_gib']} GiB"])
        elif "losses" in result:
            table.append(
                [
                    name,
                    f"{sum(len(section['rows']) for section in result['losses'].values())} cells",
                    "see the JSON file",
                ]
            )
        else:
            table.append([name, "FAILED", str(result.get("error"))[:160]])
    return table
