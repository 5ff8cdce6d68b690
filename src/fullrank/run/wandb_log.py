"""The log of a run at Weights & Biases: the rows of metrics.jsonl, the recipe as its configuration, and the alarms."""

import importlib
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fullrank.errors import UserError, pick
from fullrank.files import read_json, write_json

# Arguments of `wandb.init`: a selection of `ARGUMENTS`.
WandbOptions = dict[str, Any]
ARGUMENTS: dict[str, None] = dict.fromkeys(("project", "name", "entity", "group", "job_type", "tags", "notes", "mode"))


def check_wandb(options: WandbOptions | bool) -> Any:
    """Return the module wandb, None with False; True stands for the default options.

    Raises:
        UserError: wandb is not installed, or an option is unknown.
    """
    if options is False:
        return None
    for name in options if isinstance(options, dict) else ():
        pick(name, ARGUMENTS, "option of wandb")
    try:
        return importlib.import_module("wandb")
    except ImportError:
        missing = "--wandb needs the package wandb, which is not installed"
        raise UserError(f"{missing}; pip install 'fullrank[wandb]'") from None


class WandbLog:
    """One W&B run for each run directory; a resumed run continues it, in the same project and with the same name.

    Args:
        path: the run directory.
        options: arguments of `wandb.init`; True: the defaults, project "fullrank" and the name of the directory.
        config: the hyperparameters of the run, as JSON.
    """

    def __init__(self, path: Path, options: WandbOptions | bool, *, config: Mapping[str, Any]) -> None:
        file = path / "wandb" / "run.json"
        chosen = {"project": "fullrank", "name": path.resolve().name, "id": uuid.uuid4().hex[:8]}
        if file.exists():
            # Other entries of the file are ignored: a stranger's `settings` could name another server, which would
            # receive the user's key.
            chosen |= {name: value for name, value in read_json(file).items() if name in (*ARGUMENTS, "id")}
        chosen |= options if isinstance(options, dict) else {}
        file.parent.mkdir(exist_ok=True)
        write_json(file, chosen)
        self._run = check_wandb(options).init(**chosen, dir=str(path), resume="allow", config=dict(config))
        self.finish = self._run.finish

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        """Log the numbers of one row."""
        self._run.log(dict(values), step=step)

    def alert(self, title: str, text: str, *, step: int) -> None:
        """Send an alert, which W&B forwards by mail or Slack if the user asked for it, and log its text at this
        step.
        """
        self._run.log({"alarm": f"{title}: {text}"}, step=step)
        self._run.alert(title=title, text=text, level="WARN")
