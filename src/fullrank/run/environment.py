"""The environment of a run: versions, hardware, command. User name and host name are not stored; `~` replaces the home
folder.
"""

import hashlib
import os
import platform
import shlex
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from fullrank.distributed import world_size
from fullrank.recipes import Recipe, code_names

PACKAGES = ("fullrank", "torch", "torchvision", "lightning", "timm", "datasets", "numpy")


def describe_environment(recipe: Recipe) -> dict[str, Any]:
    """Return the content of environment.json at the start of a run.

    >>> sorted(describe_environment(Recipe()))[:4]
    ['code', 'command', 'commit', 'datasets']
    """
    return {
        **platform_info(),
        "code": {name: commit(file) for name, file in source_files(recipe).items()},
        "processes": world_size(),
        "seed": recipe.seed,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def platform_info() -> dict[str, Any]:
    """Return versions, hardware, command and commit."""
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    with suppress(RuntimeError):  # the user has no home folder, as in some containers
        command = command.replace(f"{Path.home()}/", "~/")
    return {
        **{name: installed_version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "hardware": hardware(),
        "command": command,
        "commit": commit(Path(__file__)),
    }


def installed_version(package: str) -> str | None:
    """Return the version of a package, None if it is not installed.

    >>> installed_version("torch") == version("torch"), installed_version("no-such-package")
    (True, None)
    """
    with suppress(PackageNotFoundError):  # a checkout on the import path, or a package that the run does not need
        return version(package)


def rounding(recipe: Recipe) -> dict[str, Any]:
    """Return what decides the last bits of the weights: a run continues bit for bit if nothing of it has changed.

    >>> sorted(rounding(Recipe()))
    ['accelerator', 'channels_last', 'compile', 'cores', 'cpu', 'gpus', 'micro_batch', 'processes', 'threads', 'torch']
    """
    names = ("accelerator", "micro_batch", "compile", "channels_last")
    settings = {name: getattr(recipe.machine, name) for name in names}
    return {"torch": version("torch"), "processes": world_size()} | settings | hardware()


def hardware() -> dict[str, Any]:
    """Return the processor (or its architecture, if the system does not name it), its cores, the threads in use, and
    the GPUs.
    """
    cpu = platform.processor() or platform.machine()
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {"cpu": cpu, "cores": os.cpu_count(), "threads": torch.get_num_threads(), "gpus": gpus}


def source_files(recipe: Recipe) -> dict[str, Path]:
    """Return the functions of the user that a recipe names, package.module:function → source file, if imported."""
    files = {name: getattr(sys.modules.get(name.partition(":")[0]), "__file__", None) for name in code_names(recipe)}
    return {name: Path(file) for name, file in files.items() if file}


def source_digests(recipe: Recipe) -> dict[str, str]:
    """Return name → first digits of the SHA-256 of the source file, for the functions of the user that a recipe names.

    >>> source_digests(Recipe())
    {}
    """
    files = source_files(recipe).items()
    return {name: hashlib.sha256(file.read_bytes()).hexdigest()[:12] for name, file in files}


def commit(file: Path) -> str | None:
    """Return the commit of the checkout that holds a file, with "+changes" if its folder was modified; None without a
    checkout.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(file.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", file.name)
        return git("rev-parse", "--short=12", "HEAD") + ("+changes" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
