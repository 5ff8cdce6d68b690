"""What `fullrank sweep` still uses, until it calls `read_flags` and `resolve`."""

from fullrank.cli.pretrain import read_flags
from fullrank.models.initial_weights import named_backbone, read_start
from fullrank.recipes import resolve


def read_arguments(arguments, console):
    source, options, overrides = read_flags(arguments, console.print)
    start = read_start(options.init, backbone=named_backbone(overrides)) if options.init else None
    short = {"data.source": options.data, "probe.labelled": options.labelled}
    overrides |= {name: value for name, value in short.items() if value is not None}
    return resolve(source, overrides, start=start, notify=console.print), options
