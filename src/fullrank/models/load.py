"""`load`: the MODEL that the user names, as a frozen backbone with its preprocessing."""

from collections.abc import Sequence
from pathlib import Path

from fullrank.arguments import MODELS, parse_model
from fullrank.errors import UserError
from fullrank.methods import BackboneConfig
from fullrank.models.hub import load_hub
from fullrank.models.model import Model, ModelLike
from fullrank.models.runs import load_run
from fullrank.models.timm_models import load_timm, load_timm_untrained
from fullrank.models.weight_files import load_file


def load(
    model: ModelLike,
    *,
    backbone: BackboneConfig | str | None = None,
    channels: int | None = None,
    size: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Model:
    """Load a MODEL.

    | MODEL | meaning |
    |---|---|
    | `RUN` | the newest checkpoint of a run directory |
    | `RUN@STEP` | the checkpoint of step STEP |
    | `timm:NAME` | a timm model with its pretrained weights |
    | `timm-untrained:NAME` | a timm model with random weights |
    | `hf-hub:OWNER/NAME` | a timm model of the Hugging Face hub; `@REVISION` chooses a commit |
    | `file:PATH` | a file of `fullrank export`, or the weights of another library, with `backbone` |

    Args:
        model: a MODEL, a `Run`, or a loaded model, which is returned unchanged.
        backbone: the network of a file of another library (torchvision, solo-learn, lightly, a plain state dict): a
            timm name, or a `BackboneConfig` for another stem or arguments.
        channels: channels of the images of such a network; by default those of its first convolution.
        size: side of its images in pixels; by default that of its position embeddings, or else the size that timm gives
            for the network.
        mean: mean of each channel, for pixels in [0, 1]; by default timm's, or their average for other than three
            channels.
        std: standard deviation of each channel; by default timm's.

    Raises:
        UserError: the model does not exist, a file is damaged or does not match the network, or weights are not finite.

    >>> load("no/such/run")
    Traceback (most recent call last):
    fullrank.errors.UserError: model 'no/such/run' is no run directory; expected RUN, RUN@STEP, timm:NAME, timm-untrained:NAME, \
hf-hub:OWNER/NAME or file:PATH
    """
    network = {"backbone": backbone, "channels": channels, "size": size, "mean": mean, "std": std}
    network = {name: value for name, value in network.items() if value is not None}
    if isinstance(model, Model):
        return model
    text = str(getattr(model, "path", model))
    if not (isinstance(model, str | Path) or hasattr(model, "path")) or not text or "\0" in text:
        raise UserError(f"model is {model!r:.60} ({type(model).__name__}), expected {MODELS}")
    kind, name, step = parse_model(text)
    if kind == "file":
        return load_file(Path(name), **network)
    if network:
        raise UserError(
            f"{', '.join(network)} describe the network of a file:PATH, but the model is '{text}'; leave them out"
        )
    if kind == "run":
        return load_run(Path(name), step, name=text)
    return {"timm": load_timm, "timm-untrained": load_timm_untrained, "hf-hub": load_hub}[kind](name)
