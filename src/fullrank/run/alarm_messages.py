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

NOT_FINITE = {
    "loss": "the loss is not finite at step {step}: term '{term}' is {value}",
    "weights": "weights '{tensor}' are not finite after step {step}",
    "embeddings": "the embeddings of {images} are not finite at step {step}",
}
"""Observation of an alarm "not finite", by the location of the alarm."""

HELD_OUT = "{samples} held-out images"
OBSERVATIONS = {
    "loss": ("{observed:.4g}", "at most {threshold:.4g} ({first_loss:.4g} at the first logged step)"),
    "relative_variance": (f"relative variance {{observed:.2g}} on {HELD_OUT}", "{threshold:g} or more"),
    "effective_rank": (
        f"effective rank {{observed:.3f}} of {{dimensions}} dimensions on {HELD_OUT}",
        "{threshold:g} or more",
    ),
    "share of the highest": (
        f"effective rank {{observed:.3f}} of {{dimensions}} dimensions on {HELD_OUT}",
        "{share:.0%} of its maximum {highest:.3f} or more",
    ),
    "collapsed_share": (
        f"{{observed:.1%}} of the {{resolved}} dimensions that {HELD_OUT} can measure are collapsed",
        "at most {threshold:.1%}",
    ),
    "batch_variance": (
        "all {images} have the same output (relative variance {observed:.1g})",
        "more than {threshold:g}",
    ),
    "image_deviation": (
        "all images give the same view (standard deviation {observed:.1g} over the images)",
        "{threshold:g} or more",
    ),
    "pixel_deviation": (
        "each view has a single colour (standard deviation {observed:.1g} over the pixels)",
        "{threshold:g} or more",
    ),
    "intraclass_correlation": ("views of one image share {positive:.1%} of the variance", "{threshold:.0%} or more"),
}
"""Metric → the observed and the expected value as texts."""

CAUSES = {
    "missing term": "the loss {terms_have} no weight (0 at the first logged step)",
    "dominant term": (
        "the loss term {quoted} was {ratio:,.0f} times as large as all other terms at the first logged step"
    ),
    "no projector": "there is no projector, so the objective acts directly on the backbone",
    "augmentation": "the augmentation is too strong, or the last feature map of the backbone is too small",
    "large steps": "{bfloat16}the steps are too large{or_teacher}{or_no_projector}",
    "objective or views": "of {precision}the objective or the views (no step was taken before)",
    "views": "the images have no contrast, or a transform removes it",
    "network": "the network gives all images the same output; no earlier output differed between images",
}

EXACT = "--machine.precision 32-true"
ADD_PROJECTOR = "add a projector (--projector.kind mlp, --projector.widths)"
CHECK_OBJECTIVE = "check the hyperparameters of the objective (--hyper) and of the views (--views)"
REMEDIES = {
    "no projector": ADD_PROJECTOR,
    "augmentation": "weaken the views (--views.0.crop.scale, noise, affine, jitter), or reduce the strides of the "
    "backbone (--backbone.arguments)",
    "views": "look at views.png; check the images, custom_transforms, and the settings of the views (--views)",
    "network": "look at views.png; check the network (--backbone, --projector) and its initial weights",
}
"""Cause → remedy, where it needs no value."""


def alarm_message(alarm: AlarmRow) -> str:
    """Return the kind, location, observation and probable cause of an alarm in one line."""
    observed, expected = describe_observation(alarm)
    what = observed if alarm.alarm == "not finite" else f"{alarm.alarm}, {alarm.where}: {observed}, expected {expected}"
    return f"{what}; probably {describe_cause(alarm)}"


def describe_observation(alarm: AlarmRow) -> tuple[str, str]:
    """Return the observed and the expected value as text."""
    details = alarm.details
    if alarm.alarm == "not finite":
        return NOT_FINITE[alarm.where].format(step=alarm.step, **details), "finite values"
    values: dict[str, Any] = {"observed": alarm.observed or 0.0, "threshold": alarm.threshold or 0.0, **details}
    values["positive"] = max(values["observed"], 0)
    values["resolved"] = min(details.get("dimensions", 0), details.get("samples", 0) // 2)
    observed, expected = OBSERVATIONS["share of the highest" if "share" in details else alarm.metric]
    return observed.format(**values), expected.format(**values)


def describe_cause(alarm: AlarmRow) -> str:
    """Return the probable cause as a clause that begins with "because"."""
    details, bfloat16 = alarm.details, uses_bfloat16(alarm)
    quoted = " and ".join(map(repr, details.get("terms", ())))
    return "because " + CAUSES[alarm.cause].format(
        quoted=quoted,
        terms_have=f"terms {quoted} have" if len(details.get("terms", ())) > 1 else f"term {quoted} has",
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
    exact = f"{EXACT}, " if uses_bfloat16(alarm) else ""
    if alarm.cause in REMEDIES:
        return REMEDIES[alarm.cause]
    if alarm.cause in ("missing term", "dominant term"):
        change = "raise" if alarm.cause == "missing term" else "lower"
        return change_weights(change, details["terms"], details["hyper"])
    if alarm.cause == "objective or views":
        return (f"start a new run with {exact}or " if exact else "") + CHECK_OBJECTIVE + fix
    if alarm.alarm == "not finite":
        lr, warmup = details["lr"], details["warmup"]
        return (
            f"start a new run with {exact}a lower --optimizer.lr (now {lr:g}) or a longer --schedule.warmup (now "
            f"{warmup:g} epochs){fix}"
        )
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
