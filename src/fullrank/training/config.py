"""The configuration of the optimizer and of the learning-rate schedule."""

from typing import Annotated, Literal

from pydantic import Field

from fullrank.config import Share, config

Epochs = Annotated[float, Field(ge=0, le=1_000_000)]
Decay = Annotated[float, Field(ge=0, le=1000)]


@config
class OptimizerConfig:
    """Optimizer and its hyperparameters.

    Attributes:
        name: 'lars' adapts the step of each weight (You et al. 2017), with the clip of LARC, as in the public recipes.
            'adam' adds the weight decay to the gradient (Kingma and Ba 2015); 'adamw' shrinks the weights instead
            (Loshchilov and Hutter 2019).
        lr: Peak learning rate; it is not scaled with the batch size.
        weight_decay: Weight decay of the weights; biases and norms have no weight decay unless `decay_all`.
        last_weight_decay: Weight decay at the end of the run, which it reaches along half a cosine, as in DINO's
            training of vision transformers (0.04 to 0.4). None: the weight decay stays the same.
        decay_all: Weight decay of biases and norms too, as in many public recipes with SGD. LARS then adapts their
            steps too.
        momentum: Momentum of LARS and SGD; the first beta of Adam and AdamW. 0.9 is usual.
        beta2: Adam and AdamW: decay rate of the mean square of the gradient.
        trust_coefficient: LARS: the adapted step of a weight, as a fraction of its norm; most public recipes use 0.02
            with the clip, 0.001 without it.
        trust_clip: LARS: limit the adapted learning rate to `lr`, as in LARC; without the clip, `lr` multiplies the
            adapted step.
        clip_norm: Largest norm of the gradient of all parameters together; a longer gradient is scaled down to it. 0:
            no clipping.
        layer_decay: Factor of the learning rate from each layer of the backbone to the layer before it, for timm
            models; the projector and the head of the method have the full rate. 1: the same rate for all layers.
        frozen: Parts of the backbone that keep their initial weights, by their names in timm: patch_embed, as MoCo v3
            trains vision transformers, or conv1, layer1 with `init`. BatchNorm in a frozen part still normalises by the
            batch and updates its statistics.
        constant_predictor: Keep the learning rate of the predictor at `lr`, without warm-up and decay, as SimSiam does.
    """

    name: Literal["lars", "sgd", "adam", "adamw"] = "lars"
    lr: Annotated[float, Field(ge=0, le=1_000_000)] = 0.3
    weight_decay: Decay = 1e-4
    last_weight_decay: Decay | None = None
    decay_all: bool = False
    momentum: Annotated[float, Field(ge=0, le=0.99999)] = 0.9
    beta2: Annotated[float, Field(ge=0, le=0.9999999)] = 0.999
    trust_coefficient: Decay = 0.02
    trust_clip: bool = True
    clip_norm: Annotated[float, Field(ge=0, le=1_000_000)] = 0.0
    layer_decay: Annotated[float, Field(ge=0.01, le=1)] = 1.0
    frozen: tuple[str, ...] = ()
    constant_predictor: bool = False


@config
class ScheduleConfig:
    """Learning-rate schedule; lengths are in epochs.

    Attributes:
        name: After the warm-up: one cosine to `min_lr_ratio`; a cosine that restarts every `period`; a drop at each of
            `milestones`; or constant.
        warmup: Epochs of linear warm-up; a shorter run warms up until its end.
        warmup_start: Learning rate from which the warm-up starts, as a fraction of the peak; the first step is one
            increment above it.
        min_lr_ratio: Final value of each cosine, as a fraction of the peak.
        period: Epochs between warm restarts.
        milestones: Epochs, counted from the start of the run, at which 'steps' multiplies the learning rate by `decay`.
        decay: Factor at each milestone.
    """

    name: Literal["cosine", "restarts", "steps", "constant"] = "cosine"
    warmup: Epochs = 10.0
    warmup_start: Share = 0.0
    min_lr_ratio: Share = 0.0
    period: Epochs = 15.0
    milestones: tuple[Epochs, ...] = (60.0, 80.0)
    decay: Share = 0.1
