"""Training steps as a run takes them, without files: the library's own recipe, views, method, optimizer and loop."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks.timing import wait
from fullrank.distributed import convert_sync_batchnorm
from fullrank.evaluation import OnlineProbe
from fullrank.images import MemoryImages, Steps, dataloader
from fullrank.methods import BackboneConfig, ProjectorConfig, TrainingLength
from fullrank.methods.backbones import feature_dim
from fullrank.recipes import Recipe, assemble
from fullrank.run.data import SeededBatches
from fullrank.run.processes import launch_fabric
from fullrank.training import Step, build_optimizer, fit

LOG_EVERY = 10
PEAK = {"H100": 989.0, "H200": 989.0, "A100": 312.0, "L40S": 362.0, "L4": 121.0, "4090": 165.0, "B200": 2250.0}
"""Name of a GPU → dense bfloat16 TFLOP/s of its data sheet."""
VARIANTS = ("eager", "compiled", "compiled, CUDA graphs")


@dataclass
class Training:
    """A run in memory: its recipe, its networks and its loop."""

    recipe: Recipe
    images: MemoryImages
    variant: str = "eager"

    def __post_init__(self) -> None:
        machine = replace(self.recipe.machine, compile=self.variant != "eager")
        self.recipe = for_random_images(replace(self.recipe, machine=machine))
        self.fabric = launch_fabric(self.recipe)
        self.device = self.fabric.device
        self.images, assembly = self.images.to(self.device), assemble(self.recipe)
        self.method, self.views = assembly.method, assembly.views
        convert_sync_batchnorm(self.method)
        self.method.to(self.device)
        if machine.channels_last:
            self.method.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        self.optimizer = build_optimizer(self.recipe.optimizer, self.method)
        self.probe = OnlineProbe(feature_dim(self.method.backbone), 10, lr=self.recipe.probe.lr).to(self.device)
        self.method.training_length = TrainingLength(len(self.images) // self.recipe.batch_size, 0)
        if self.variant == "compiled":
            self.method.compile()
        elif self.variant == "compiled, CUDA graphs":
            self.method.compile(mode="reduce-overhead")
        self.wrapped: Any = self.fabric.setup(self.method, self.optimizer)
        self.done = 0

    def steps(self, count: int) -> Iterator[Step]:
        """Take `count` steps; the online probe takes its steps, and the terms are read every `LOG_EVERY` steps, as in a
        run."""
        recipe, unread, stop = self.recipe, [], self.done + count
        order = {"seed": recipe.seed, "batch_size": recipe.batch_size, "start": self.done, "stop": stop}
        batches = dataloader(self.images, self.views, Steps(**order), device=self.device)
        seeded = SeededBatches(batches, seed=recipe.seed, start=self.done)
        method, optimizer = self.wrapped
        for step in fit(self.fabric, method, optimizer, seeded, lambda step: recipe.optimizer.lr, start=self.done):
            self.probe.step(step.R.flatten(0, 1), step.labels.repeat(len(step.R)))
            unread.append(torch.stack(list(step.terms.values())))
            if step.step % LOG_EVERY == 0:
                torch.stack(unread).tolist()
                unread.clear()
            self.done = step.step
            yield step

    def time(self, *, warmup: int, count: int) -> dict[str, Any]:
        """Return images per second of `count` steps after a warm-up, whose seconds include all compilation."""
        started = time.perf_counter()
        for _ in self.steps(warmup):
            pass
        wait()
        warm = time.perf_counter()
        for _ in self.steps(count):
            pass
        wait()
        seconds = time.perf_counter() - warm
        speed = count * self.recipe.batch_size / seconds
        found = {"images_per_second": round(speed, 1), "milliseconds_per_step": round(1000 * seconds / count, 3)}
        return found | {"warm_up_seconds": round(warm - started, 2), "steps": count} | self.peak(speed)

    def peak(self, images_per_second: float) -> dict[str, Any]:
        """Return the operations per image, the share of the GPU's peak, and the peak of memory."""
        counted = assemble(replace(self.recipe, machine=replace(self.recipe.machine, compile=False))).method
        channels, batch = self.recipe.data.channels, self.recipe.batch_size
        flops = 3 * sum(view.count * forward_flops(counted, channels, view.size, batch) for view in self.recipe.views)
        teraflops = images_per_second * flops / 1e12
        found: dict[str, Any] = {"gigaflop_per_image": round(flops / 1e9, 3), "teraflops": round(teraflops, 2)}
        if self.device.type != "cuda":
            return found
        name = torch.cuda.get_device_name(self.device)
        peak = next((value for key, value in PEAK.items() if key in name), None)
        memory = torch.cuda.max_memory_allocated(self.device) / 2**30
        return found | {"share_of_peak": peak and round(teraflops / peak, 4), "peak_memory_gib": round(memory, 2)}


def forward_flops(method, channels: int, side: int, batch_size: int) -> float:
    """Return the operations per image of a forward pass through backbone and projector, counted without data."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), FlopCounterMode(display=False) as counter:
        method.eval()  # in training mode BatchNorm would count batches
        method.projector(method.backbone(torch.empty(batch_size, channels, side, side)))
    method.train()
    return counter.get_total_flops() / batch_size


def random_images(count: int, side: int, *, channels: int = 3, classes: int = 10) -> MemoryImages:
    """Return random images with random labels."""
    g = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (count, channels, side, side), dtype=torch.uint8, generator=g)
    labels = torch.randint(classes, (count,), generator=g)
    return MemoryImages(pixels, labels, ("",) * count, tuple(map(str, range(classes))))


def on_device(recipe: Recipe, device: torch.device, **machine: Any) -> Recipe:
    """Return the recipe for a device, on a GPU in bfloat16."""
    precision = "bf16-mixed" if device.type == "cuda" else "32-true"
    settings: dict[str, Any] = {"accelerator": device.type, "precision": precision, "devices": 1} | machine
    return replace(recipe, machine=replace(recipe.machine, **settings))


def for_random_images(recipe: Recipe) -> Recipe:
    """Return the recipe with the normalisation of random images."""
    mean, std = ((value,) * recipe.data.channels for value in (0.5, 0.25))
    return replace(recipe, data=replace(recipe.data, mean=mean, std=std))


def tiny(recipe: Recipe) -> Recipe:
    """Return the recipe with a network for a smoke test."""
    few = {"channels": [8, 8, 8, 16], "layers": [1, 1, 1, 1]}
    backbone = BackboneConfig(name="resnet18", arguments=few, stem="small")
    return replace(recipe, backbone=backbone, projector=ProjectorConfig(widths=(24, 16)), batch_size=32)
