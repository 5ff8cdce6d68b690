"""Messages of alarms: the observation, the probable cause and the remedy. Only this module names flags of the command
line.

>>> alarm = AlarmRow(step=55, epoch=5.0, alarm="divergence", where="loss", metric="loss", observed=1e6, threshold=250.0,
...                  cause="large steps", details={"first_loss": 25.0, "lr": 0.5})
>>> alarm_message(alarm)
'divergence, loss: 1e+06, expected at most 250 (25 at the first logged step); probably because the steps are too large'
>>> alarm_remedy(alarm)
'lower --optimizer.lr (now 0.5), or lengthen --schedule.warmup'
"""

from fullrank.run.rows import AlarmRow

NOT_FINITE = {
    "loss": "the loss is not finite at step {step}: term '{term}' is {value}",
    "weights": "weights '{tensor}' are not finite after step {step}",
    "embeddings": "the embeddings of {images} are not finite at step {step}",
}
"""Observation of an alarm "not finite", by the location of the alarm."""

CAUSES = {
    "missing term": "because the loss {terms_have} no weight (0 at the first logged step)",
    "dominant term": "because the loss term {terms} was {ratio:,.0f} times as large as all other terms at the first logged step",
    "no projector": "because there is no projector, so the objective acts directly on the backbone",
    "augmentation": "because the augmentation is too strong, or the last feature map of the backbone is too small",
    "large steps": "because {bfloat16}the steps are too large{or_teacher}{or_no_projector}",
    "objective or views": "because of {precision}the objective or the views (no step was taken before)",
    "views": "because the images have no contrast, or a transform removes it",
    "network": "because the network gives all images the same output; no earlier output differed between images",
}

EXACT = "--machine.precision 32-true"
ADD_PROJECTOR = "add a projector (--projector.kind mlp, --projector.widths)"
WEAKEN_VIEWS = "weaken the views (--views.0.crop.scale, noise, affine, jitter), or reduce the strides of the backbone (--backbone.arguments)"
CHECK_VIEWS = "look at views.png; check the images, custom_transforms, and the settings of the views (--views)"
CHECK_NETWORK = "look at views.png; check the network (--backbone, --projector) and its initial weights"
CHECK_OBJECTIVE = "check the hyperparameters of the objective (--hyper) and of the views (--views)"


def alarm_message(alarm: AlarmRow) -> str:
    """Return the kind, location, observation and probable cause of an alarm in one line."""
    observed, expected = describe_observation(alarm)
    what = observed if alarm.alarm == "not finite" else f"{alarm.alarm}, {alarm.where}: {observed}, expected {expected}"
    return f"{what}; probably {describe_cause(alarm)}"


def describe_observation(alarm: AlarmRow) -> tuple[str, str]:
    """Return the observed and the expected value as text."""
    observed, threshold, details = alarm.observed or 0.0, alarm.threshold or 0.0, alarm.details
    images = f"{details.get('samples')} held-out images"
    if alarm.alarm == "not finite":
        return NOT_FINITE[alarm.where].format(step=alarm.step, **details), "finite values"
    match alarm.metric:
        case "loss":
            return f"{observed:.4g}", f"at most {threshold:.4g} ({details['first_loss']:.4g} at the first logged step)"
        case "relative_variance":
            return f"relative variance {observed:.2g} on {images}", f"{threshold:g} or more"
        case "effective_rank":
            of_maximum = "share" in details
            expected = (
                f"{details['share']:.0%} of its maximum {details['highest']:.3f}" if of_maximum else f"{threshold:g}"
            )
            return (
                f"effective rank {observed:.3f} of {details['dimensions']} dimensions on {images}",
                f"{expected} or more",
            )
        case "collapsed_share":
            resolved = min(details["dimensions"], details["samples"] // 2)
            return (
                f"{observed:.1%} of the {resolved} dimensions that {images} can measure are collapsed",
                f"at most {threshold:.1%}",
            )
        case "batch_variance":
            return (
                f"all {details['images']} have the same output (relative variance {observed:.1g})",
                f"more than {threshold:g}",
            )
        case "image_deviation":
            return (
                f"all images give the same view (standard deviation {observed:.1g} over the images)",
                f"{threshold:g} or more",
            )
        case "pixel_deviation":
            return (
                f"each view has a single colour (standard deviation {observed:.1g} over the pixels)",
                f"{threshold:g} or more",
            )
        case _:
            return f"views of one image share {max(observed, 0):.1%} of the variance", f"{threshold:.0%} or more"


def describe_cause(alarm: AlarmRow) -> str:
    """Return the probable cause as a clause that begins with "because"."""
    details, bfloat16 = alarm.details, uses_bfloat16(alarm)
    terms = " and ".join(map(repr, details.get("terms", ())))
    return CAUSES[alarm.cause].format(
        terms=terms,
        terms_have=f"terms {terms} have" if len(details.get("terms", ())) > 1 else f"term {terms} has",
        ratio=details.get("ratio", 0.0),
        bfloat16="of the precision bfloat16, or because " if bfloat16 else "",
        precision="the precision bfloat16, " if bfloat16 else "",
        or_teacher=", or the EMA momentum of the teacher is too low" if details.get("momentum") else "",
        or_no_projector=", or there is no projector" if details.get("no_projector") else "",
    )


def uses_bfloat16(alarm: AlarmRow) -> bool:
    """Return whether numbers that are not finite come from a run in bfloat16; its backward pass can overflow where
    float32 does not.
    """
    return alarm.alarm == "not finite" and alarm.details.get("precision", "").startswith("bf16")


def alarm_remedy(alarm: AlarmRow) -> str:
    """Return the remedy, with the flags to change and their current values."""
    details = alarm.details
    fix = (
        f", or fix the objective (fullrank check {details['objective']})" if ":" in details.get("objective", "") else ""
    )
    match alarm.cause:
        case "missing term" | "dominant term":
            return change_weights(
                "raise" if alarm.cause == "missing term" else "lower", details["terms"], details["hyper"]
            )
        case "no projector":
            return ADD_PROJECTOR
        case "augmentation":
            return WEAKEN_VIEWS
        case "views":
            return CHECK_VIEWS
        case "network":
            return CHECK_NETWORK
        case "objective or views":
            return (f"start a new run with {EXACT}, or " if uses_bfloat16(alarm) else "") + CHECK_OBJECTIVE + fix
        case _ if alarm.alarm == "not finite":
            lr, warmup = (
                f"--optimizer.lr (now {details['lr']:g})",
                f"--schedule.warmup (now {details['warmup']:g} epochs)",
            )
            exact = f"{EXACT}, " if uses_bfloat16(alarm) else ""
            return f"start a new run with {exact}a lower {lr} or a longer {warmup}{fix}"
        case _:
            changes = [
                "lower --optimizer.lr" + (f" (now {details['lr']:g})" if "lr" in details else ""),
                "lengthen --schedule.warmup",
            ]
            if momentum := details.get("momentum"):
                changes.append(f"raise --method.momentum (now {' '.join(f'{value:g}' for value in momentum)})")
            if details.get("no_projector"):
                changes.append(ADD_PROJECTOR)
            return f"{', '.join(changes[:-1])}, or {changes[-1]}"


def change_weights(change: str, terms: list[str], hyper: dict[str, object]) -> str:
    """Return the flags that change the weights of terms; in most objectives a term and its weight have the same
    name.
    """
    if flags := [f"--hyper.{name}" for name in terms if name in hyper]:
        return f"{change} {' and '.join(flags)}"
    if hyper.get("log") is False:
        return "turn on FroSSL's logarithm (--hyper.log)"
    return "change the weights of the terms" + (f" ({', '.join(f'--hyper.{name}' for name in hyper)})" if hyper else "")
