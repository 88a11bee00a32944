"""The command `reprolib`: run chapters, build the book, look at the ledger, bring data, write exercises."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

from reprolib.errors import ChapterError, ParameterError, ReprolibError


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, do, and turn any user-caused error into one line and exit status 1."""
    options = _parser().parse_args(arguments)
    try:
        options.do(options)
    except ReprolibError as error:
        print(f"reprolib: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("reprolib: stopped; finished chapters are kept", file=sys.stderr)
        return 130
    return 0


def _run(options: argparse.Namespace) -> None:
    from reprolib.report import run

    jobs = run.plan(options.chapters, profile=options.profile, overrides=_given(options.p))
    if options.plan:
        print(run.show_plan(jobs))
        return
    ran = run.run(jobs, workers=options.workers, time_limit=options.time_limit)
    print(f"{len(ran)} executed, {len(jobs) - len(ran)} unchanged; notebooks in book/chapters")


def _build(options: argparse.Namespace) -> None:
    from reprolib.project import root
    from reprolib.report import run, site

    start = time.monotonic()
    jobs = run.plan([], profile=options.profile, overrides=_given(options.p))
    ran = run.run(jobs, workers=options.workers, time_limit=options.time_limit)
    page = site.build()
    print(f"{len(ran)} chapters executed, {len(jobs) - len(ran)} unchanged")
    print(site.summary())
    print(f"{time.monotonic() - start:.0f} s. Open {page.relative_to(root())}")


def _ledger(options: argparse.Namespace) -> None:
    from reprolib.report import notebooks, site
    from reprolib.report.claims import MARKS, load_claims
    from reprolib.report.ledger import collect

    if options.notebook:
        claims = load_claims()
        for r in collect(notebooks.read(options.notebook)):
            print(f"{MARKS[r.verdict]} {r.verdict:13} {r.claim_id}: paper {claims[r.claim_id].printed}, here {r.shown}")
        return
    for claim_id, verdict in site.verdicts().items():
        if options.verdict in (None, verdict):
            print(f"{MARKS[verdict]} {verdict:13} {claim_id}")
    print(site.summary())


def _fetch(options: argparse.Namespace) -> None:
    from reprolib.evidence import download

    for name in options.names or download.sources():
        print(f"{name}: {download.fetch([name])[name]}")


def _recompute(options: argparse.Namespace) -> None:
    from reprolib.evidence import public

    for study in options.studies or public.studies():
        print(public.recompute(study, write=options.write))


def _exercises(options: argparse.Namespace) -> None:
    from reprolib.project import root, write_text
    from reprolib.report import notebooks
    from reprolib.report.chapters import CHAPTERS

    for chapter in options.chapters or CHAPTERS:
        source = root() / "notebooks" / f"{chapter}.ipynb"
        if not source.is_file():
            raise ParameterError(f"no chapter {chapter!r}", hint=f"allowed: {', '.join(CHAPTERS)}")
        text = notebooks.dump(notebooks.student_copy(notebooks.read(source)))
        target = root() / "notebooks" / "exercises" / f"{chapter}.ipynb"
        if not options.check:
            write_text(target, text)
            print(f"{target.relative_to(root())}: written")
        elif not target.is_file() or target.read_text() != text:
            raise ChapterError(f"{target.name} is not what its chapter gives", hint="run: reprolib exercises")


def _given(pairs: Sequence[str]) -> dict[str, Any]:
    for pair in pairs:
        if "=" not in pair:
            raise ParameterError(f"-p {pair}", hint="write -p name=value")
    return dict(pair.split("=", 1) for pair in pairs)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="reprolib", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, do: Any, about: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=about, description=about)
        sub.set_defaults(do=do)
        return sub

    executing = argparse.ArgumentParser(add_help=False)
    executing.add_argument("--profile", default="default", help="parameters for a purpose: notebooks/profiles.toml")
    executing.add_argument("-p", action="append", default=[], metavar="NAME=VALUE", help="set a parameter")
    executing.add_argument("--workers", type=int, default=2, help="chapters at once (default 2)")
    executing.add_argument("--time-limit", type=float, default=600, help="seconds a chapter may take (default 600)")

    sub = commands.add_parser("run", parents=[executing], help="execute chapters, those that changed")
    sub.set_defaults(do=_run)
    sub.add_argument("chapters", nargs="*", metavar="CHAPTER", help="default: all")
    sub.add_argument("--plan", action="store_true", help="show what would run, with every parameter, and stop")
    sub = commands.add_parser("build", parents=[executing], help="execute what changed, then build the book")
    sub.set_defaults(do=_build)
    sub = command("ledger", _ledger, "print the verdict of every claim, or of the claims in one executed notebook")
    sub.add_argument("notebook", nargs="?", help="an executed notebook, such as out.ipynb")
    sub.add_argument("--verdict", help="only this verdict")
    sub = command("fetch", _fetch, "bring the data that others released into the download cache")
    sub.add_argument("names", nargs="*", help="default: all of evidence/public/sources.toml")
    sub = command("recompute", _recompute, "recompute results from released data and compare with the committed ones")
    sub.add_argument("studies", nargs="*", help="default: all")
    sub.add_argument("--write", action="store_true", help="replace the committed results")
    sub = command("exercises", _exercises, "write the student notebooks from the chapters' solutions")
    sub.add_argument("chapters", nargs="*", metavar="CHAPTER", help="default: all")
    sub.add_argument("--check", action="store_true", help="fail if a student notebook is not current")
    return parser


if __name__ == "__main__":
    sys.exit(main())
