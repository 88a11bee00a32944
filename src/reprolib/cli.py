"""The command `reprolib`: run chapters, build the book, look at the ledger, bring data, judge, write exercises."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from reprolib.errors import ParameterError, ReprolibError, pick
from reprolib.project import root, write_text

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
Names = Annotated[list[str] | None, Argument(help="default: all")]
Given = Annotated[list[str] | None, Option("-p", metavar="NAME=VALUE", help="set a parameter; repeatable")]
Profile = Annotated[str, Option(help="parameters for a purpose: notebooks/profiles.toml")]
Workers = Annotated[int, Option(min=1, help="chapters executed at once")]
Shard = Annotated[str, Option(metavar="I/N", help="only this part of the rows")]
Device = Annotated[str, Option(help="cpu, cuda, cuda:1, ...")]
Ray = Annotated[str, Option(metavar="ADDRESS", help="spread the work over a Ray cluster; local starts one here")]
Limit = Annotated[float, Option(help="seconds that one cell may take")]


@app.command()
def run(
    chapters: Names = None, p: Given = None, profile: Profile = "default", workers: Workers = 2,
    time_limit: Limit = 600, ray: Ray = "", plan: Annotated[bool, Option(help="show what would run, and stop")] = False,
    tflops: Annotated[float, Option(min=1e-3, help="TFLOP/s to plan gpu and paper with; two cores: 0.1")] = 400,
) -> None:  # fmt: skip
    """Execute chapters, those that changed."""
    from reprolib.report import run

    os.environ |= {"REPROLIB_RAY": ray} if ray else {}  # the chapters' kernels inherit it
    if plan and profile in run.PLANNED and not p:
        print(run.show_costs(run.costs(chapters or [], profile=profile, tflops=tflops), tflops=tflops))
        return
    jobs = run.plan(chapters or [], profile=profile, overrides=_values(p))
    if plan:
        print(run.show_plan(jobs))
        return
    ran = run.run(jobs, workers=workers, time_limit=time_limit)
    print(f"{len(ran)} executed, {len(jobs) - len(ran)} unchanged; notebooks in book/chapters")


@app.command()
def build(p: Given = None, profile: Profile = "default", workers: Workers = 2, time_limit: Limit = 600) -> None:
    """Execute what changed, then build the book."""
    from reprolib.report import site

    run(None, p, profile, workers, time_limit)
    print(f"Open {site.build().relative_to(root())}\n{site.summary()}")


@app.command()
def ledger(notebook: Annotated[Path | None, Argument(exists=True, help="an executed notebook")] = None) -> None:
    """Print the verdict of every claim, or of the claims in one executed notebook."""
    from reprolib.report import notebooks, site
    from reprolib.report.claims import MARKS
    from reprolib.report.ledger import collect

    results = collect(notebooks.read(notebook)) if notebook else []
    found = [(f"{r.claim_id} {r.tier} {r.judge}", r.verdict) for r in results] if notebook else site.verdicts().items()
    for claim, verdict in found:
        print(f"{MARKS[verdict]} {verdict:13} {claim}")
    if notebook is None:
        print(site.summary())


@app.command()
def fetch(names: Names = None) -> None:
    """Bring the data that others released into the download cache."""
    from reprolib.evidence import download

    for name in names or download.sources():
        print(f"{name}: {download.fetch([name])[name]}")


@app.command()
def recompute(studies: Names = None, write: Annotated[bool, Option(help="replace the committed")] = False) -> None:
    """Recompute results from released data and compare them with the committed ones."""
    from reprolib.evidence import public

    for study in studies or public.studies():
        public.result(study, fetch=True, write=write)
        print(f"{study}: {'written' if write else 'recomputed, equal to the committed result'}")


@app.command()
def exercises(chapters: Names = None) -> None:
    """Write the student notebooks from the chapters' solutions."""
    from reprolib.report import notebooks
    from reprolib.report.chapters import CHAPTERS

    for chapter in chapters or CHAPTERS:
        pick("chapter", chapter, CHAPTERS)
        source, target = (root() / "notebooks" / folder / f"{chapter}.ipynb" for folder in ("", "exercises"))
        write_text(target, notebooks.dump(notebooks.student_copy(notebooks.read(source))))


@app.command()
def judge(
    prompts: Annotated[Path, Argument(help="JSON Lines or Parquet with columns id and prompt")],
    out: Annotated[Path, Argument(help="Parquet to write; its .store folder beside it makes a run resumable")],
    judge: Annotated[str, Option(help="name, path, owner/model@commit, openai:MODEL@BASE_URL")] = "smollm2-135m",
    labels: Annotated[str, Option(help="comma-separated answers to score")] = "",
    max_new_tokens: Annotated[int, Option(help="write text instead of scoring labels")] = 0,
    temperature: Annotated[float, Option(help="of written text; 0 is greedy")] = 0.0,
    seed: Annotated[int, Option(help="of written text")] = 0,
    shard: Shard = "1/1",
    device: Device = "cpu",
    ray: Ray = "",
    truncate: Annotated[bool, Option(help="cut prompts longer than the context, and say so")] = False,
    concurrency: Annotated[int, Option(min=1, help="requests at once to a served judge")] = 8,
    price: Annotated[tuple[float, float], Option(help="of a million prompt and new tokens")] = (0.0, 0.0),
    plan: Annotated[bool, Option(help="print what scoring labels will cost, and stop")] = False,
) -> None:
    """Score labels, or write text, for every prompt of a table: with progress, resumable, in shards."""
    from reprolib.inference.cluster import part_of
    from reprolib.inference.judge import load_judge
    from reprolib.inference.store import Store
    from reprolib.inference.tokens import read_prompts

    if bool(labels) == bool(max_new_tokens) or (plan and not labels):
        hint = "give either --labels, which --plan can price, or --max-new-tokens"
        raise ParameterError("nothing to do, or two things", hint=hint)
    table = read_prompts(prompts)
    rows = table.iloc[part_of(len(table), shard)]
    asked, items, answers = rows["prompt"].tolist(), rows["id"].tolist(), labels.split(",")
    served: dict[str, Any] = {"concurrency": concurrency, "price": price} if judge.startswith("openai:") else {}
    model = load_judge(judge, device=device, ray=ray, **served)
    if plan:
        print(model.cost(asked, answers, items=items))
        return
    store = Store(out.with_suffix(".store"))
    common: dict[str, Any] = {"items": items, "store": store, "truncate": truncate, "progress": True}
    if labels:
        result = model.label_logprobs(asked, answers, **common)
    else:
        result = model.generate(asked, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed, **common)
    result.to_parquet(out, index=False)
    run = result.attrs["run"]
    used = ", {prompt_tokens:,} prompt and {new_tokens:,} new tokens, cost {cost:.2f}".format(**run) if served else ""
    print(f"{out}: {len(result)} rows, {run['rows_computed']} computed now{used}")


@app.command()
def weights(names: Names = None) -> None:
    """Bring judges' weights into the local cache: by default the one that the report checks itself with."""
    from reprolib.inference.weights import resolve

    for name in names or ["smollm2-135m"]:
        print(f"{name}: {resolve(name).folder}")


@app.command()
def record(study: Annotated[str, Argument(help="a recipe that makes records, such as evidence_check")],
           judge: Annotated[str, Argument(help="a registry name")], p: Given = None, device: Device = "cpu",
           shard: Shard = "", ray: Ray = "") -> None:  # fmt: skip
    """Judge what a study asks and write evidence/recorded/STUDY; stopped, it goes on where it was."""
    from reprolib.evidence import recipe
    from reprolib.inference.judge import load_judge

    if not hasattr(recipe(study), "record"):
        raise ParameterError(f"the recipe {study!r} makes no record", hint="it computes: try reprolib recompute")
    if judge.startswith("openai:"):
        raise ParameterError("a served judge makes no record", hint="no digest pins its weights; try reprolib judge")
    command = " ".join(["reprolib record", study, judge, *(f"-p {text}" for text in p or [])])
    model = load_judge(judge, device=device, shard=shard, ray=ray)
    about = recipe(study).record(model, command=command, **_values(p)).manifest
    print(f"{study}/{about.judge}: {about.rows} rows, {about.timed} judged in {about.seconds} s")


def main(arguments: list[str] | None = None) -> int:
    """Parse and do; the exit status. An error that a user caused is one line, and status 1."""
    try:
        return int(app(arguments) or 0)
    except ReprolibError as error:
        print(f"reprolib: {error}", file=sys.stderr)
        return 1
    except SystemExit as done:  # how typer ends: wrong usage is 2, a stop by the keyboard 130
        return int(done.code or 0)


def _values(pairs: list[str] | None) -> dict[str, Any]:
    if bad := [pair for pair in pairs or [] if "=" not in pair]:
        raise ParameterError(f"-p {bad[0]}", hint="write -p name=value")
    return dict(pair.split("=", 1) for pair in pairs or [])
