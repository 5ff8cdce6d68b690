"""Images per second of training on random images in the memory of the device, in bfloat16.

FroSSL with ResNet-18 (small stem), 32 px and two views is the recipe `cifar10`; ResNet-50 and ViT-S/16 at 224 px are
the recipe `imagenet` with another backbone. The phases of a step are timed by waiting for the device between them, so
they add up to a little more than a step of the loop.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch

from benchmarks import losses
from benchmarks.gpu.parts import Options, Part, Result, Results, release_memory
from benchmarks.gpu.training import VARIANTS, Training, on_device, random_images, tiny
from fullrank.methods import BackboneConfig
from fullrank.recipes import RECIPES, Recipe
from fullrank.run import read_json
from fullrank_papers.figures.numerics import now

BATCHES = (256, 512, 1024)
NETWORKS = {"ResNet-50": "resnet50", "ViT-S/16": "vit_small_patch16_224"}
LARGE_BATCH, FIRST_BATCH, LAST_BATCH = 256, 64, 4096  # of the speed; the search for the largest batch doubles the first
PHASES = ("views", "network", "objective", "backward", "optimizer")


def parts(options: Options, results: Results) -> Iterator[Part]:
    """Yield the parts of this piece: ResNet-18 by variant and batch, its phases, large networks, all objectives."""
    batches, variants = ((8,), VARIANTS[:1]) if options.smoke else (BATCHES, VARIANTS)
    small = on_device(RECIPES["cifar10"], options.device)
    for variant in variants:  # compilation takes longest, so its parts come after the phases
        for batch in batches:
            recipe = replace(small, batch_size=batch)
            yield Part(f"{variant}, batch {batch}", lambda r=recipe, v=variant: speed(options, r, 32, v))
            if variant == "eager":
                yield Part(f"phases, batch {batch}", lambda r=recipe: phases(options, r))
    for name, backbone in NETWORKS.items():
        recipe = large(options, backbone)
        for variant in variants[:2]:
            yield Part(f"{name}, {variant}", lambda r=recipe, v=variant: speed(options, r, 256, v))
        yield Part(f"{name}, largest batch", lambda r=recipe: largest_batch(options, r))
    for name, flags in (("times", []), ("memory", ["--memory"])):
        yield Part(f"objectives, {name}", lambda flags=flags: objectives(options, flags))


def large(options: Options, backbone: str) -> Recipe:
    """Return the recipe `imagenet` with another backbone."""
    recipe = on_device(RECIPES["imagenet"], options.device)
    if options.smoke:
        recipe = replace(recipe, views=tuple(replace(view, size=32) for view in recipe.views))
    return replace(recipe, backbone=BackboneConfig(name=backbone), batch_size=8 if options.smoke else LARGE_BATCH)


def training(options: Options, recipe: Recipe, images: int, side: int, variant: str = "eager") -> Training:
    recipe, side = (replace(tiny(recipe), batch_size=recipe.batch_size), 40) if options.smoke else (recipe, side)
    return Training(recipe, random_images(images, side), variant)


def speed(options: Options, recipe: Recipe, side: int, variant: str) -> Result:
    """Measure images per second."""
    batch = recipe.batch_size
    images = 2 * batch if options.smoke or side > 32 else 50_000
    warmup, count = (2, 4) if options.smoke else (10, 30) if side > 32 else (30, max(40, 51_200 // batch))
    found = {"variant": variant, "batch": batch, "precision": recipe.machine.precision}
    return found | training(options, recipe, images, side, variant).time(warmup=warmup, count=count)


def phases(options: Options, recipe: Recipe) -> Result:
    """Return milliseconds of the views, the network, the objective, the backward pass and the optimizer."""
    run = training(options, recipe, recipe.batch_size, 32)
    method, optimizer = run.wrapped
    milliseconds: dict[str, float] = {}
    rounds, warmup = (2, 1) if options.smoke else (40, 10)
    for k in range(-warmup, rounds):
        clock = [now()]
        views = run.views(run.images.pixels, run.views.make_params(recipe.seed, k + warmup, recipe.batch_size))
        clock.append(now())
        embeddings = method(views)
        clock.append(now())
        loss = torch.stack(list(run.method.terms(embeddings).values())).sum()
        clock.append(now())
        run.fabric.backward(loss)
        clock.append(now())
        optimizer.step()
        optimizer.zero_grad()
        clock.append(now())
        for name, (a, b) in zip(PHASES, pairwise(clock), strict=True):
            milliseconds[name] = milliseconds.get(name, 0.0) + (k >= 0) * 1000 * (b - a) / rounds
    return {"batch": recipe.batch_size, "milliseconds": {name: round(ms, 3) for name, ms in milliseconds.items()}}


def largest_batch(options: Options, recipe: Recipe) -> Result:
    """Double the batch until the memory is full; the result is the last batch that fitted, without micro-batches."""
    batch, limit = (8, 16) if options.smoke else (FIRST_BATCH, LAST_BATCH)
    fitted, memory, run = 0, None, None
    while batch <= limit:
        try:
            run = training(options, replace(recipe, batch_size=batch), batch, 256)
            for _ in run.steps(2):
                pass
            fitted, memory = batch, run.peak(0.0).get("peak_memory_gib")
        except torch.OutOfMemoryError:
            break
        finally:
            run = None
            release_memory()
        batch *= 2
    return {"largest_batch": fitted, "peak_memory_gib": memory, "reached_limit": batch > limit}


def objectives(options: Options, flags: list[str]) -> Result:
    """Run `losses.py`, the table of all objectives, on the device."""
    few = ["--objectives", "frossl", "--sizes", "16x8", "--rounds", "3"] if options.smoke else []
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "losses.json"
        losses.main([*flags, *few, "--device", options.device.type, "--out", str(out)])
        return {"losses": read_json(out)}


def row(result: Result) -> str:
    """Return the text of a result."""
    if "images_per_second" in result:
        facts = ("milliseconds_per_step", "teraflops", "share_of_peak", "peak_memory_gib", "warm_up_seconds")
        text = ", ".join(f"{name} {result[name]}" for name in facts if result.get(name) is not None)
        return f"{result['images_per_second']:,.0f} images/s; {text}"
    if "losses" in result:
        return f"{sum(len(section['rows']) for section in result['losses'].values())} cells, see the JSON file"
    return ", ".join(f"{name} {value}" for name, value in result.get("milliseconds", result).items())
