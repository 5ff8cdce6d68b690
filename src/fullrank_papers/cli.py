"""`fullrank reproduce`: compute and draw figures of the papers, and check the papers' claims."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fullrank.cli.flags import call
from fullrank.cli.heavy import heavy_imports
from fullrank.errors import Interrupted, ProcessFailed, UserError, pick
from fullrank.files import atomic_write
from fullrank.run.terminal import stderr
from fullrank_papers.figures import FIGURES, Campaign, Claim, Result, load_committed, load_figure, summarize_claims
from fullrank_papers.figures import reproduce as compute
from fullrank_papers.figures.figure import LABELS
from fullrank_papers.figures.result import result_path, save_drawing

COLORS = {"✓": "green", "✗": "red", "?": "yellow"}


def reproduce(
    name: tyro.conf.Positional[str | None] = None,
    /,
    *,
    size: str = "small",
    data: str | None = None,
    seed: int = 0,
    seeds: int | None = None,
    only: tuple[str, ...] = (),
    transfer: tuple[str, ...] = (),
    parallel: int = 0,
    runs: Path | None = None,
    cell: str | None = None,
    list: bool = False,
    out: Path = Path("reproduced"),
    overwrite: bool = False,
    redraw: bool = False,
) -> None:
    """Compute and draw one figure, or all figures of a paper, and check the paper's claims.

    Without a name, the command lists all figures with their claims and with the results that come with the library.
    With the name of a paper, existing figures are only drawn again, so an interrupted command can be repeated.

    Some tables and figures are campaigns: lists of runs, each a run directory in RUNS/SIZE. The same command takes what
    is done and goes on where it was stopped; the result is drawn from the runs that are done, also if some are missing.

    Args:
        name: PAPER/FIGURE, or PAPER for all of its figures.
        size: smoke takes seconds, small takes minutes (a campaign: hours), gpu is for one GPU (campaigns), paper uses
            the settings of the paper as far as the paper states them.
        data: source URI of the images, for figures that use images; by default the source of the size's recipe, or the
            embedded digits.
        seed: seed of all random numbers of a figure that is no campaign.
        seeds: number of seeds of a campaign.
        only: methods of a campaign.
        transfer: sources of other labelled images, on which a campaign scores the same probes: path/to/mnist.
        parallel: runs of a campaign at the same time; 0: one for each GPU, or one on a CPU, where several share the
            cores.
        runs: folder of a campaign's runs; by default runs/PAPER.
        cell: run one cell of a campaign: its number, counted from 0, or its name; for a cluster.
        list: print the cells of a campaign, each with the command that runs it.
        out: folder; a figure is written to OUT/PAPER/FIGURE-SIZE.json, .svg and .png.
        overwrite: replace existing files. Without it, a campaign replaces its result by one of the same images with at
            least as many runs.
        redraw: draw from the existing .json file, or from the runs of a campaign that are done, without computing.
    """
    if name is None:
        list_figures(Console())
        return
    names = [figure for figure in FIGURES if figure.startswith(f"{name}/")] or [name]
    options = CampaignOptions(
        size=size,
        data=data,
        seeds=seeds,
        only=only,
        transfer=transfer,
        parallel=parallel,
        runs=runs,
        out=out,
        overwrite=overwrite,
    )
    campaigns = [figure for figure in names if isinstance(load_figure(figure), Campaign)]
    given = {
        "--seeds": seeds,
        "--only": only,
        "--transfer": transfer,
        "--parallel": parallel,
        "--runs": runs,
        "--cell": cell,
        "--list": list,
    }
    if not campaigns and (wrong := [flag for flag, value in given.items() if value]):
        raise UserError(f"{name} is computed without run directories, so it has no {wrong[0]}; remove it")
    if name in campaigns:
        if seed:
            raise UserError(f"{name} is a campaign of several seeds, but --seed is {seed}; give --seeds, their number")
        if list or cell is not None:
            list_or_run_cell(name, options, cell)
            return
    elif cell is not None or list:
        raise UserError(
            f"--{'list' if list else 'cell'} needs one campaign, such as {(campaigns or ['frossl/table2'])[0]}, got {name}"
        )
    for figure in names:
        pick(size, load_figure(figure).sizes, f"size of {figure}")
    images = {figure: load_figure(figure).images for figure in names}
    paths = {figure: (out / result_path(figure, size)).with_suffix(".json") for figure in names}
    if data is not None and not any(images.values()):
        raise UserError(f"{name} uses no images, but --data is {data}; remove --data")
    if name in paths and name not in campaigns and paths[name].exists() and not (overwrite or redraw):
        raise UserError(
            f"{paths[name]} exists already; choose another --out, draw the figure again with --redraw, or give --overwrite"
        )
    for figure in () if redraw else campaigns:
        check_stored_images(figure, options)
    failed = []  # the failure of some runs does not end the other campaigns
    for figure, path in paths.items():
        if figure in campaigns:
            try:
                reproduce_campaign(figure, options, redraw=redraw)
            except ProcessFailed as error:
                failed.append(error)
        elif redraw or (path.exists() and not overwrite):
            result = Result.read(path)
            stderr().print(f"{figure}: drawn from {path}, computed with seed {result.seed}")
            show(result, save_drawing(result, out))
        else:
            if images[figure] and data is None:
                stderr().print(
                    f"{figure}: no --data given, so it uses the default images of this size; --data can be {images[figure]}"
                )
            with (
                atomic_write(
                    path, overwrite=overwrite
                ) as draft,  # raises before the computation if OUT cannot be written
                stderr().status(f"computing {figure}"),
            ):
                result = compute(figure, size=size, data=data if images[figure] else None, seed=seed)
                result.write(draft)
            show(result, [path, *save_drawing(result, out)])
    for error in failed[1:]:
        failed[0].add_note("\n".join((str(error), *getattr(error, "__notes__", ()))))
    if failed:
        raise failed[0]


def show(result: Result, files: Sequence[Path]) -> None:
    """Print the claims of a result and the files that were written."""
    print_claims(result.claims, result.name, Console())
    what = " of training" if isinstance(load_figure(result.name), Campaign) else ""
    stderr().print(f"{result.seconds:g} s{what}; written: {', '.join(map(str, files))}")


@dataclass(frozen=True, kw_only=True)
class CampaignOptions:
    """The options of `fullrank reproduce` for a campaign."""

    size: str
    data: str | None
    seeds: int | None
    only: tuple[str, ...]
    transfer: tuple[str, ...]
    parallel: int
    runs: Path | None
    out: Path
    overwrite: bool

    def result_path(self, name: str) -> Path:
        """Return the path of a campaign's result."""
        return (self.out / result_path(name, self.size)).with_suffix(".json")

    @property
    def plan(self) -> dict[str, Any]:
        """The arguments of the functions of `fullrank_papers.figures.campaign`."""
        return {"size": self.size, "data": self.data, "seeds": self.seeds, "only": self.only, "transfer": self.transfer}


def reproduce_campaign(name: str, options: CampaignOptions, *, redraw: bool) -> None:
    """Run what is missing of a campaign, and draw what is done, also after an interruption.

    Raises:
        Interrupted: SIGINT, SIGTERM or SIGHUP; the runs have written checkpoints.
        ProcessFailed: some runs have failed; the others are drawn.
    """
    with heavy_imports():
        from fullrank.sweep import require_success
        from fullrank_papers.figures.campaign import collect_campaign, run_campaign
    path = options.result_path(name)
    if redraw:
        collected = collect_campaign(name, **options.plan, runs=options.runs)
        result = collected if collected.rows["rows"] else Result.read(path)
        save_campaign(result, path, options)
        return
    try:
        result, rows = run_campaign(
            name, **options.plan, parallel=options.parallel, runs=options.runs, console=stderr()
        )
    except Interrupted:
        try:
            result = collect_campaign(name, **options.plan, runs=options.runs)
            if result.rows["rows"]:
                save_campaign(result, path, options)
        except UserError as error:  # the command ends with the interruption, which says how to go on
            stderr().print(f"{name}: the runs that are done were not drawn: {error}")
        raise
    if result.rows["rows"]:
        save_campaign(result, path, options)
    require_success(rows, campaign_command(name, options))


def save_campaign(result: Result, path: Path, options: CampaignOptions) -> None:
    """Print table and claims of a campaign, and write rows, table and drawing; a stored result with more runs is kept.

    Raises:
        UserError: the stored result is of other images, or the files cannot be written.
    """
    from fullrank_papers.figures.campaign import count_runs

    campaign, done = load_figure(result.name), len(result.rows["rows"])
    table = campaign.markdown(result.rows) if isinstance(campaign, Campaign) and campaign.markdown is not None else None
    stored = len(read_stored_rows(path, options))
    if stored <= done:
        require_stored_images(path, options, {row["images"]: row["data"] for row in result.rows["rows"]})
        with atomic_write(path, overwrite=True) as draft:
            result.write(draft)
        files = [path, *save_drawing(result, options.out)]
        if table is not None:
            files.append(path.with_suffix(".md"))
            with atomic_write(files[-1], overwrite=True) as draft:
                draft.write_text(f"{campaign.title}: {count_runs(result.rows)}\n\n{table}\n", encoding="utf-8")
    if table is not None:
        print(table)
    stderr().print(f"{result.name}: {count_runs(result.rows)}")
    if stored <= done:
        show(result, files)
    else:
        print_claims(result.claims, result.name, Console())
        stderr().print(
            f"{path} has {stored} runs, more than these {done}, and was kept: give --seeds, --only as when it was made, or --overwrite"
        )


def read_stored_rows(path: Path, options: CampaignOptions) -> Sequence[Any]:
    """Return the rows of the stored result that must not be lost: none if there is no result, or with --overwrite."""
    return () if options.overwrite or not path.exists() else Result.read(path).rows.get("rows", ())


def check_stored_images(name: str, options: CampaignOptions) -> None:
    """Check before the first run that the result will not replace one of other images.

    Raises:
        UserError: it would.
    """
    path = options.result_path(name)
    if not read_stored_rows(path, options):
        return
    with heavy_imports():
        from fullrank.sweep import identify
        from fullrank_papers.figures.campaign import campaign_plan
    found = (identify(cell.recipe.data) for cell in campaign_plan(name, **options.plan)([]))
    require_stored_images(path, options, {images: data for data, images in found})


def require_stored_images(path: Path, options: CampaignOptions, images: Mapping[str, str]) -> None:
    """Check that the stored result is of the images of a new one: their digest → their name.

    Raises:
        UserError: it has other images.
    """
    stored = {row["images"]: row["data"] for row in read_stored_rows(path, options) if row.get("images")}
    if not set(stored) <= set(images):
        old, new = (", ".join(f"{name} {digest}" for digest, name in each.items()) for each in (stored, images))
        raise UserError(
            f"{path} has runs of other images ({old}) than those of this call ({new}); give --overwrite, or another --out"
        )


def list_or_run_cell(name: str, options: CampaignOptions, cell: str | None) -> None:
    """Print the cells of a campaign, or run one of them in this process."""
    with heavy_imports():
        from fullrank.sweep import Jobs, list_cells, run_sweep
        from fullrank_papers.figures.campaign import campaign_plan, runs_folder
    plan, folder = campaign_plan(name, **options.plan), runs_folder(name, options.size, options.runs)
    if cell is not None:
        run_sweep(plan, folder, Jobs(cluster="debug"), only=cell, console=stderr())
        return
    list_cells(plan, folder, campaign_command(name, options))


def campaign_command(name: str, options: CampaignOptions) -> str:
    """Return the command that runs the same cells."""
    flags = [("--size", options.size), ("--data", options.data), ("--seeds", options.seeds), ("--runs", options.runs)]
    command = [
        "fullrank",
        "reproduce",
        name,
        *(str(part) for flag, value in flags if value is not None for part in (flag, value)),
    ]
    several = [("--only", options.only), ("--transfer", options.transfer)]
    return shlex.join([*command, *(word for flag, values in several if values for word in (flag, *values))])


def print_claims(claims: Sequence[Claim], name: str, console: Console) -> None:
    """Print the claims of one figure with verdict, expected and measured values."""
    console.print(Text(f"{name}: {summarize_claims(claims)}", "bold"), soft_wrap=True)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("", "verdict", "claim", "expected", "measured"):
        table.add_column(column)
    for claim in claims:
        kind = Text(claim.verdict if claim.kind == "claim" else f"{LABELS[claim.kind]}: {claim.verdict}", style="dim")
        table.add_row(
            Text(claim.mark, COLORS[claim.mark]),
            kind,
            Text(claim.statement),
            Text(claim.expected),
            Text(claim.measured),
        )
    console.print(table)


def list_figures(console: Console) -> None:
    """Print every figure with its claim and the verdicts of the committed result."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("figure", no_wrap=True)
    table.add_column("the paper's main claim")
    table.add_column("verdicts at size small")
    table.add_column("time", justify="right", no_wrap=True)
    for name in FIGURES:
        result = load_committed(name)
        summary, seconds = (
            (summarize_claims(result.claims), f"{result.seconds:.0f} s") if result else ("not computed yet", "")
        )
        table.add_row(Text(name), Text(load_figure(name).claim), Text(summary), seconds)
    console.print(table)
    console.print(
        "claims are statements of the paper (recalled claims: its text was not at hand); checks of the corrections are about our own "
        "statements, from derivations or control experiments (docs/derivations); our comparisons are about our runs, whatever the size of "
        "the paper's"
    )
    console.print("to compute one figure: fullrank reproduce frossl/fig2 --size smoke")


run = partial(call, reproduce, command="reproduce")
