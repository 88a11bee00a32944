"""One run in many processes: shards of a job array, or actors of a Ray cluster, that fill one store together.

A row is known by its key in the store, whoever computed it: shards and actors may be stopped, and started again, at any
time, and the process that reads the store at the end gives what a single process would have given.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from reprolib.inference import JudgeError
from reprolib.inference.judge import Computed, Judge, Value, load_judge
from reprolib.inference.store import Store
from reprolib.inference.tokens import Prompt

_BATCH = 64  # rows that an actor takes at once: neighbours, which share prefixes


def part_of(count: int, shard: str) -> range:
    """The rows of shard "i/n", 1 <= i <= n, else JudgeError: neighbours, because neighbours share prefixes.

    >>> part_of(5, "2/2")
    range(2, 5)
    """
    found = re.fullmatch(r"(\d+)/(\d+)", shard)
    part, parts = map(int, found.groups()) if found else (0, 0)
    if not 1 <= part <= parts:
        raise JudgeError(f"there is no shard {shard!r}", hint="give i/n with i from 1 to n, such as 2/4")
    return range(count * (part - 1) // parts, count * part // parts)


@dataclass(repr=False, eq=False)
class ShardJudge(Judge):
    """Computes only its part of each request, into the store; goes on when all other parts are there, too."""

    shard: str = "1/1"

    def _run(
        self, keys: list[str], compute: Callable[[list[int]], Computed], store: Store | None, progress: bool
    ) -> tuple[list[Value], dict[str, Any]]:
        if store is None:
            raise JudgeError("a shard needs a store", hint="without one, nobody would see what it computed")
        mine = part_of(len(keys), self.shard)

        def own(todo: list[int]) -> Computed:
            return ((index - mine.start, value) for index, value in compute([mine[at] for at in todo]))

        super()._run([keys[at] for at in mine], own, store, progress)
        if left := len(set(keys)) - len(store.get(keys)):
            hint = "run this shard again when the others are done, or everything once without --shard"
            raise JudgeError(f"shard {self.shard} is done; {left:,} rows of the others are not", hint=hint)
        return super()._run(keys, compute, store, progress)


@dataclass(repr=False, eq=False)
class RayJudge(Judge):
    """The judge `name`, run by a pool of actors on the cluster at `address`: "local" starts one on this machine.

    A CPU, or, with a device of kind cuda, a GPU for each actor. The store's folder must be one that all machines see.
    """

    name: str = ""
    address: str = "local"

    def label_logprobs(self, prompts: Sequence[Prompt], labels: Sequence[str], **how: Any) -> pd.DataFrame:
        """As `Judge.label_logprobs`."""
        return super().label_logprobs(prompts, labels, **self._fill("label_logprobs", prompts, how, labels=labels))

    def generate(self, prompts: Sequence[Prompt], **how: Any) -> pd.DataFrame:
        """As `Judge.generate`."""
        return super().generate(prompts, **self._fill("generate", prompts, how))

    def _fill(self, method: str, prompts: Sequence[Prompt], how: dict[str, Any], **given: Any) -> dict[str, Any]:
        """Let the actors compute every row into the store, and return `how` with that store."""
        try:
            import ray
        except ImportError:
            raise JudgeError("Ray is not installed", hint='pip install "reprolib[ray]"') from None
        cluster: Any = ray  # its functions are untyped
        store = how.get("store") or Store(tempfile.mkdtemp(prefix="reprolib-"))
        passed = {k: v for k, v in how.items() if k not in ("store", "items", "progress")} | given
        cluster.init(None if self.address == "local" else self.address, ignore_reinit_error=True, log_to_driver=False)
        ray.data.DataContext.get_current().enable_progress_bars = how.get("progress", False)
        kind = "gpu" if self.device.startswith("cuda") else "cpu"
        most = int(cluster.cluster_resources().get(kind.upper(), 1))
        about: dict[str, Any] = {"name": self.name, "device": kind.replace("gpu", "cuda"), "dtype": self.weights.dtype}
        about |= {"method": method, "how": passed, "folder": str(store.folder.resolve())}
        pool = ray.data.ActorPoolStrategy(min_size=1, max_size=max(1, most))
        rows = ray.data.from_items([{"prompt": json.dumps(prompt)} for prompt in prompts])
        each: dict[str, Any] = {"fn_constructor_kwargs": about, f"num_{kind}s": 1, "compute": pool}
        try:
            rows.map_batches(_Actor, batch_size=_BATCH, **each).materialize()
        except ray.exceptions.RayError as error:
            raise JudgeError(str(error).strip().splitlines()[-1], hint="finished rows are kept; run it again") from None
        return how | {"store": store}


class _Actor:
    """A judge in a process of its own, with a store file of its own."""

    def __init__(self, name: str, device: str, dtype: str, method: str, how: Mapping[str, Any], folder: str) -> None:
        self.judge, self.store = load_judge(name, device=device, dtype=dtype, ray="no"), Store(folder)
        self.method, self.how = method, how

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        prompts = [json.loads(prompt) for prompt in batch["prompt"]]
        getattr(self.judge, self.method)(prompts, store=self.store, **self.how)
        return {"rows": [len(prompts)]}
