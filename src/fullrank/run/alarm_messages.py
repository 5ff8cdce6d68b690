"""Messages of alarms: the observation, the probable cause and the remedy. Only this module names flags of the command
line.

>>> alarm = AlarmRow(step=55, epoch=5.0, alarm="divergence", where="loss", metric="loss", observed=1e6, threshold=250.0,
...                  cause="large steps", details={"first_loss": 25.0, "lr": 0.5})
>>> alarm_message(alarm)
'divergence, loss: 1e+06, expected at most 250 (25 at the first logged step); probably because the steps are too large'
>>> alarm_remedy(alarm)
'lower --optimizer.lr (now 0.5), or lengthen --schedule.warmup'
"""

from typing import Any

from fullrank.run.rows import AlarmRow

# Metric, or the location of numbers that are not finite → the observation.
OBSERVATIONS = {
    "not finite loss": "the loss is not finite at step {step}: term '{term}' is {value}",
    "not finite weights": "weights '{tensor}' are not finite after step {step}",
    "not finite embeddings": "the embeddings of {images} are not finite at step {step}",
    "loss": "{observed:.4g}",
    "relative_variance": "relative variance {observed:.2g} on {samples} held-out images",
    "effective_rank": "effective rank {observed:.3f} of {dimensions} dimensions on {samples} held-out images",
    "collapsed_share": "{observed:.1%} of the {resolved} dimensions that {samples} images can measure are collapsed",
    "batch_variance": "all {images} have the same output (relative variance {observed:.1g})",
    "image_deviation": "all images give the same view (standard deviation {observed:.1g} over the images)",
    "pixel_deviation": "each view has a single colour (standard deviation {observed:.1g} over the pixels)",
    "intraclass_correlation": "views of one image share {positive:.1%} of the variance",
}
# Metric → what is expected, where it is not "{threshold:g} or more".
EXPECTED = {
    "loss": "at most {threshold:.4g} ({first_loss:.4g} at the first logged step)",
    "share of the highest": "{share:.0%} of its maximum {highest:.3f} or more",
    "collapsed_share": "at most {threshold:.1%}",
    "batch_variance": "more than {threshold:g}",
    "intraclass_correlation": "{threshold:.0%} or more",
}
CAUSES = {
    "missing term": "the loss {terms_have} no weight (0 at the first logged step)",
    "dominant term": "the loss term {quoted} was {ratio:,.0f} times as large as all others at the first logged step",
    "no projector": "there is no projector, so the objective acts directly on the backbone",
    "augmentation": "the augmentation is too strong, or the last feature map of the backbone is too small",
    "large steps": "{bfloat16}the steps are too large{or_teacher}{or_no_projector}",
    "objective or views": "of {precision}the objective or the views (no step was taken before)",
    "views": "the images have no contrast, or a transform removes it",
    "network": "the network gives all images the same output; no earlier output differed between images",
}
ADD_PROJECTOR = "add a projector (--projector.kind mlp, --projector.widths)"
# Cause → remedy, where it needs no value.
REMEDIES = {
    "no projector": ADD_PROJECTOR,
    "augmentation": "weaken the views (--views.0.crop.scale, noise, affine, jitter), or reduce the strides of the "
    "backbone (--backbone.arguments)",
    "views": "look at views.png; check the images, custom_transforms, and the settings of the views (--views)",
    "network": "look at views.png; check the network (--backbone, --projector) and its initial weights",
}


def alarm_message(alarm: AlarmRow) -> str:
    """Return the kind, location, observation and probable cause of an alarm in one line."""
    details: dict[str, Any] = {"observed": alarm.observed or 0.0, "threshold": alarm.threshold or 0.0} | alarm.details
    details["positive"] = max(details["observed"], 0)
    details["resolved"] = min(details.get("dimensions", 0), details.get("samples", 0) // 2)
    if alarm.alarm == "not finite":
        observation = OBSERVATIONS[f"not finite {alarm.where}"].format(step=alarm.step, **details)
    else:
        expected = EXPECTED.get("share of the highest" if "share" in details else alarm.metric, "{threshold:g} or more")
        observation = f"{alarm.alarm}, {alarm.where}: {OBSERVATIONS[alarm.metric]}, expected {expected}"
        observation = observation.format(**details)
    terms, bfloat16 = details.get("terms", ()), uses_bfloat16(alarm)
    quoted = " and ".join(map(repr, terms))
    cause = CAUSES[alarm.cause].format(
        quoted=quoted,
        terms_have=f"terms {quoted} have" if len(terms) > 1 else f"term {quoted} has",
        ratio=details.get("ratio", 0.0),
        bfloat16="of the precision bfloat16, or because " * bfloat16,
        precision="the precision bfloat16, " * bfloat16,
        or_teacher=", or the EMA momentum of the teacher is too low" * bool(details.get("momentum")),
        or_no_projector=", or there is no projector" * bool(details.get("no_projector")),
    )
    return f"{observation}; probably because {cause}"


def uses_bfloat16(alarm: AlarmRow) -> bool:
    """Return whether numbers that are not finite come from a run in bfloat16; its backward pass can overflow where
    float32 does not.
    """
    return alarm.alarm == "not finite" and alarm.details.get("precision", "").startswith("bf16")


def alarm_remedy(alarm: AlarmRow) -> str:
    """Return the remedy, with the flags to change and their current values."""
    if alarm.cause in REMEDIES:
        return REMEDIES[alarm.cause]
    details, objective = alarm.details, alarm.details.get("objective", "")
    exact = "start a new run with --machine.precision 32-true, " * uses_bfloat16(alarm)
    own = f", or fix the objective (fullrank check {objective})" * (":" in objective)
    if alarm.cause == "objective or views":
        check = "check the hyperparameters of the objective (--hyper) and of the views (--views)"
        return f"{exact}{'or ' * bool(exact)}{check}{own}"
    if alarm.cause in ("missing term", "dominant term"):
        return change_weights("raise" if alarm.cause == "missing term" else "lower", details["terms"], details["hyper"])
    if alarm.alarm == "not finite":
        lr, warmup = f"a lower --optimizer.lr (now {details['lr']:g})", f"(now {details['warmup']:g} epochs)"
        return f"{exact or 'start a new run with '}{lr} or a longer --schedule.warmup {warmup}{own}"
    changes = [f"lower --optimizer.lr (now {details['lr']:g})" if "lr" in details else "lower --optimizer.lr"]
    changes.append("lengthen --schedule.warmup")
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
