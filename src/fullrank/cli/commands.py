"""The commands whose flags are the parameters of a function: each calls the function of the library, and prints what it
returns.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.text import Text

import fullrank
from fullrank.cli.flags import Model
from fullrank.errors import UserError, pick, printable
from fullrank.evaluation import choice
from fullrank.evaluation.neighbours import TABLES
from fullrank.evaluation.protocol import FinetuneProtocol, Scoring
from fullrank.evaluation.score import write_evaluations
from fullrank.evaluation.spectrum import SUFFIXES
from fullrank.files import check_new
from fullrank.images.reading import USUAL, Device, Reading
from fullrank.images.source_uri import open_once
from fullrank.methods import BackboneConfig
from fullrank.models import Model as LoadedModel
from fullrank.models.model_images import choose_splits
from fullrank.recipes import RECIPES, to_dict
from fullrank.recipes.catalog import list_recipes
from fullrank.report import write_report
from fullrank.report.neighbour_rows import update_neighbours
from fullrank.run.terminal import stderr

# How the images are read; what is not given is as in the run, or as usual.
ReadingFlags = Annotated[Reading, tyro.conf.arg(name="data")]
# Where the network runs, and how images come to it.
DeviceFlags = Annotated[Device, tyro.conf.arg(name="")]
REPORT = Path("report.html")
ANYWHERE = Device()

# The network of weights that say by themselves what they belong to.
UNKNOWN = BackboneConfig(name="unknown")


@dataclass(frozen=True)
class Network:
    """The network of a file that another library wrote, and its preprocessing.

    Attributes:
        backbone: The network of a file:PATH that `fullrank export` did not write, such as weights of torchvision,
            solo-learn or lightly. Its name is a timm model.
        channels: Channels of the images of such a network; 3 by default.
        size: Side of its images in pixels; by default the size that timm gives for the network.
        mean: Mean of each channel, for pixels in [0, 1]; by default timm's.
        std: Standard deviation of each channel; by default timm's.
    """

    backbone: BackboneConfig = UNKNOWN
    channels: int | None = None
    size: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


# The fields of `Network` as flags without a prefix.
NetworkFlags = Annotated[Network, tyro.conf.arg(name="")]
NO_NETWORK = Network()


@open_once()
def evaluate(
    model: Model,
    others: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[MODEL ...]")] = (),
    /,
    *,
    data: str | None = None,
    labelled: str | None = None,
    transfer: tuple[str, ...] = (),
    out: Path | None = None,
    overwrite: bool = False,
    scoring: Annotated[Scoring, tyro.conf.arg(name="")] = Scoring(),  # noqa: B008  frozen
    reading: ReadingFlags = USUAL,
    device: DeviceFlags = ANYWHERE,
    network: NetworkFlags = NO_NETWORK,
) -> None:
    """Score a frozen backbone by linear probes and kNN, and compare it with raw pixels and the untrained backbone.

    For a run directory, this adds the scores to RUN/evaluation.json and updates the report of the run. Scores of other
    data sets, probes, protocols and checkpoints stay; a score of the same images, checkpoint, probe and protocol is
    replaced.

    Args:
        model: a run directory, RUN@STEP, timm:NAME, timm-untrained:NAME, hf-hub:OWNER/NAME or file:PATH.
        others: further models, which are scored on the same images and compared with the first one.
        data: source of the labelled images; by default that of the run. Without a test split, a fifth of the images is
            held out. A run with data.validation is scored on its validation images, unless --data or --data.test is
            given.
        labelled: source of labelled images from another place than the images of pretraining: as --data, but test
            images that are also images of pretraining are counted, and few-shot has 1, 2, 5 and 10 labels per class.
        transfer: sources of further data sets, each with its own scores, beside the images of the run or of --data.
        out: file for the scores, instead of RUN/evaluation.json.
        overwrite: replace the file of --out if it exists.
        scoring: what is scored, and how.
        reading: how the images are read, with the names of their splits.
        device: where the networks run.
        network: the network of a file that another library wrote.
    """
    if labelled is not None and (data is not None or transfer):
        raise UserError("--labelled names the labelled images; leave out --data and --transfer")
    check_new(out, overwrite=overwrite)
    loaded, against, console = load_model(model, network), [fullrank.load(other) for other in others], stderr()
    anywhere = Reading(
        follow_links=reading.follow_links, max_pixels=reading.max_pixels, max_expansion=reading.max_expansion
    )  # names of splits and columns describe the images of the run or of --data
    own = [(data, reading)] if data is not None or loaded.recipe is not None or not transfer else []
    sets = own + [(source, anywhere) for source in transfer]
    if labelled is None:
        for source, how in sets[1:]:  # a source that does not exist is found before the first one is scored
            choose_splits(loaded, source, how)
    evaluations = []
    for source, how in sets:
        options = {"against": against, "reading": how, "device": device, "store": out is None, **vars(scoring)}
        with console.status("") as status:
            options |= {"notify": console.print, "progress": lambda line, of=status: of.update(Text(printable(line)))}
            evaluations.append(fullrank.evaluate(loaded, source, labelled=labelled, **options))
        Console().print(evaluations[-1])
    if out:
        write_evaluations(out, evaluations, overwrite=overwrite)
        console.print(f"scores: {out}")
    elif loaded.path and scoring.dimensions == ":":
        source, how = sets[0]
        splits = {"reading": how, "train_subset": scoring.train_subset}
        update_neighbours(loaded, labelled or source, splits, device=device, notify=console.print)
        update_report(loaded.path)


def finetune(
    model: Model,
    /,
    *,
    labelled: str | None = None,
    out: Path | None = None,
    overwrite: bool = False,
    seeds: int = 3,
    seed: int = 0,
    protocol: Annotated[FinetuneProtocol, tyro.conf.arg(name="")] = FinetuneProtocol(),  # noqa: B008  frozen
    reading: ReadingFlags = USUAL,
    accelerator: str = "auto",
    workers: int = 0,
    max_error_fraction: float = 0.1,
    network: NetworkFlags = NO_NETWORK,
) -> None:
    """Train all weights with labels, beside the same network from random weights: same recipe, several seeds, paired
    intervals.

    The recipe is that of timm where timm has a default (crops, flips, label smoothing) and that of DeiT elsewhere. No
    number is chosen on the labelled images. For a run directory, this adds the scores to RUN/evaluation.json and
    updates the report of the run.

    Args:
        model: a run directory, RUN@STEP, timm:NAME, timm-untrained:NAME, hf-hub:OWNER/NAME or file:PATH.
        labelled: source of the labelled images; by default the source of the run.
        out: write the fine-tuned network of the first seed to this folder: model.safetensors, config.json, README.md
            and classifier.safetensors.
        overwrite: replace existing files of --out.
        seeds: number of trainings from each start.
        seed: the first seed.
        protocol: the numbers of the training.
        reading: how the images are read, with the names of their splits.
        accelerator: auto, cpu, cuda or mps.
        workers: number of processes that decode images.
        max_error_fraction: largest share of unreadable images; more of them stop the work.
        network: the network of a file that another library wrote.
    """
    loaded = load_model(model, network)
    device = Device(accelerator=accelerator, workers=workers, max_error_fraction=max_error_fraction)
    options = {"out": out, "overwrite": overwrite, "reading": reading, "device": device, "notify": stderr().print}
    Console().print(fullrank.finetune(loaded, labelled, seeds=seeds, seed=seed, **options, **vars(protocol)))
    if loaded.path:
        update_report(loaded.path)


def choose(
    models: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MODEL MODEL [MODEL ...]")],
    /,
    *,
    data: str | None = None,
    labelled: str | None = None,
    images: int = 1000,
    split: str | None = None,
    out: tuple[Path, ...] = (),
    overwrite: bool = False,
    seed: int = 0,
    reading: ReadingFlags = USUAL,
    device: DeviceFlags = ANYWHERE,
) -> None:
    """Rank models on your images without labels: measures with 95 % intervals, and a choice only where the intervals
    allow one.

    Args:
        models: run directories, RUN@STEP, timm:NAME, timm-untrained:NAME, hf-hub:OWNER/NAME or file:PATH; two or more.
        data: source of the images; by default that of the first run, or the labelled images.
        labelled: source of labelled images, by which the order is checked; --data.label-column describes it.
        images: number of images to measure, chosen at random.
        split: name of the split to choose from; by default all splits.
        out: write all numbers to FILE.json, a table to FILE.csv; one or several files.
        overwrite: replace existing files.
        seed: seed of the sample, of the views and of the intervals.
        reading: how the images are read.
        device: where the networks run.
    """
    check_new(*out, overwrite=overwrite, suffixes=choice.SUFFIXES)
    options = {"images": images, "split": split, "seed": seed, "reading": reading, "device": device}
    chosen = fullrank.choose(models, data, labelled=labelled, notify=stderr().print, **options)
    Console().print(chosen)
    for path in out:
        chosen.save(path, overwrite=overwrite)


def spectrum(
    model: Model,
    /,
    *,
    data: str | None = None,
    against: str | None = None,
    split: str | None = None,
    out: Path | None = None,
    overwrite: bool = False,
    reading: ReadingFlags = USUAL,
    device: DeviceFlags = ANYWHERE,
    network: NetworkFlags = NO_NETWORK,
) -> None:
    """Measure the spectra of a model: eigenvalues of the centred covariance of its backbone and, for a run, of its
    projector.

    For a single run directory, the command also shows the spectra over training.

    Args:
        model: a run directory, RUN@STEP, timm:NAME, timm-untrained:NAME, hf-hub:OWNER/NAME or file:PATH.
        data: source of the images; by default that of the run.
        against: a second MODEL, measured on the same images and shown next to the first.
        split: name of the split; by default the held-out images.
        out: write eigenvalues to FILE.npz, metrics to FILE.json, or a figure to FILE.png.
        overwrite: replace the file.
        reading: how the images are read.
        device: where the networks run.
        network: the network of a file that another library wrote.
    """
    check_new(out, overwrite=overwrite, suffixes=SUFFIXES)
    loaded = load_model(model, network)
    spectra = fullrank.measure_spectrum(loaded, data, against=against, split=split, reading=reading, device=device)
    history = fullrank.Run(loaded.path).spectra if loaded.path and against is None else None
    spectra.history = history and history.comparable()
    Console().print(spectra)
    if out is not None:
        spectra.save(out, overwrite=overwrite)
        stderr().print(f"written: {out}")


def embed(
    model: Model,
    /,
    *,
    out: Path,
    data: str | None = None,
    split: str | None = None,
    reading: ReadingFlags = USUAL,
    device: DeviceFlags = ANYWHERE,
    network: NetworkFlags = NO_NETWORK,
    overwrite: bool = False,
) -> None:
    """Write the name, the label, the class and the embedding of every image; a missing label is null.

    Args:
        model: a run directory, RUN@STEP, timm:NAME, timm-untrained:NAME, hf-hub:OWNER/NAME or file:PATH.
        out: the file to write; its suffix determines the format: .parquet, .csv, .npz (arrays embeddings, labels,
            names, classes) or .npy.
        data: source of the images, such as digits, a path or hf:NAME; by default that of the run.
        split: name of the split; required if the source has several splits.
        reading: how images are read.
        device: where the backbone runs.
        overwrite: replace the file if it exists.
        network: the network of a file that another library wrote.
    """
    options = {"reading": reading, "device": device, "overwrite": overwrite}
    fullrank.embed(load_model(model, network), data, out, split=split, notify=stderr().print, **options)


def neighbours(
    model: Model,
    /,
    *,
    data: str | None = None,
    out: Path | None = None,
    overwrite: bool = False,
    query: tuple[Path, ...] = (),
    split: str | None = None,
    k: Annotated[int, tyro.conf.arg(aliases=["-k"])] = 10,
    duplicates: float = 0.95,
    reading: ReadingFlags = USUAL,
    device: DeviceFlags = ANYWHERE,
    network: NetworkFlags = NO_NETWORK,
) -> None:
    """Find nearest neighbours, near-duplicates (also across train and test), outliers and likely label errors of a set
    of images.

    All splits of the source are searched together. The terminal shows the first of each kind.

    Args:
        model: a run directory, RUN@STEP, timm:NAME, timm-untrained:NAME, hf-hub:OWNER/NAME or file:PATH.
        data: source of the images; by default that of the run.
        out: write a folder: images.parquet, duplicates.parquet and, with --query, queries.parquet.
        overwrite: replace existing files.
        query: image files whose neighbours are asked for.
        split: name of the split to search; by default all splits.
        k: number of neighbours of each image.
        duplicates: least correlation of the pixels of near-duplicates, on thumbnails of 16x16 pixels.
        reading: how the images are read.
        device: where the network runs.
        network: the network of a file that another library wrote.
    """
    check_new(*(out and out / f"{name}.parquet" for name in TABLES), overwrite=overwrite)
    numbers = {"k": k, "duplicates": duplicates, "notify": stderr().print}
    images = {"query": list(query) or None, "split": split, "reading": reading, "device": device}
    found = fullrank.neighbours(load_model(model, network), data, **images, **numbers)
    Console().print(found)
    if out is not None:
        found.save(out, overwrite=overwrite)
        stderr().print(f"written: {', '.join(str(out / f'{name}.parquet') for name in found.tables())}")


def export(
    model: Model,
    /,
    *,
    out: Path,
    push_to_hub: str | None = None,
    network: NetworkFlags = NO_NETWORK,
    overwrite: bool = False,
) -> None:
    """Write the backbone to FILE.safetensors or FILE.onnx, with its preprocessing and class names as metadata, or to a
    folder for the hub.

    `fullrank.load("file:FILE.safetensors")` loads the file; timm alone can load the weights of a backbone with a
    standard stem. A folder has model.safetensors, config.json and a model card with recipe, scores and spectrum:
    `timm.create_model("local-dir:FOLDER", pretrained=True)`.

    Args:
        model: a run directory, RUN@STEP, timm:NAME, timm-untrained:NAME, hf-hub:OWNER/NAME or file:PATH.
        out: a file that ends in .safetensors or .onnx, or a folder.
        push_to_hub: upload the folder to this repository, OWNER/NAME; a new repository is private.
        overwrite: replace the file if it exists.
        network: the network of a file that another library wrote.
    """
    loaded = load_model(model, network)
    fullrank.export(loaded, out, push_to_hub=push_to_hub, overwrite=overwrite, notify=stderr().print)


def report(
    runs: tyro.conf.Positional[tuple[Path, ...]], /, *, out: Path = REPORT, images: bool = True, overwrite: bool = False
) -> None:
    """Write one HTML page that opens offline.

    Args:
        runs: run directories; several runs are compared.
        out: the page to write.
        images: show images and their views; use --no-images if you may not publish them.
        overwrite: replace an existing page.
    """
    print(write_report(runs, out, images=images, overwrite=overwrite))


def recipes(name: tyro.conf.Positional[str | None] = None, /) -> None:
    """List the recipes with their published accuracy and their origin, or print one recipe as JSON.

    A recipe equals its publication as long as no flag changes it. With other epochs, batch size, view size, backbone or
    optimizer, the fields that depend on them follow, and the command says which. `fullrank pretrain FILE.json` accepts
    an edited copy of the JSON.

    Args:
        name: name of a recipe.
    """
    print("\n".join(list_recipes()) if name is None else json.dumps(to_dict(pick(name, RECIPES, "recipe")), indent=2))


def load_model(model: str, network: Network) -> LoadedModel:
    """Load a MODEL, and print what is known about the weights of another library."""
    backbone = None if network.backbone == UNKNOWN else network.backbone
    values: dict[str, Any] = vars(network) | {"backbone": backbone}
    loaded = fullrank.load(model, **values)
    if loaded.note:
        stderr().print(loaded.note)
    return loaded


def update_report(path: Path) -> None:
    """Write the report of a run again, and print where it is."""
    stderr().print(f"scores: {path / 'evaluation.json'}")
    stderr().print(f"report: {write_report([path], path / REPORT)}")
