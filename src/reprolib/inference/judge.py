"""A judge: prompts and labels in, log-probabilities in a table out."""

from __future__ import annotations

import json
import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from reprolib.inference import JudgeError
from reprolib.inference.plan import Query, padded, shared
from reprolib.inference.store import Store, row_key, versions
from reprolib.inference.tokens import Prompt, Rendered, Tokens, check_labels, may_follow, without_extensions
from reprolib.inference.weights import Weights, resolve

if TYPE_CHECKING:
    from reprolib.inference.torch_judge import TorchEngine

Ids = tuple[int, ...]
Value = dict[str, Any]  # what the store keeps of one row
Computed = Iterator[tuple[int, Value | JudgeError]]  # by row; an error says why that row alone failed

_ENOUGH = 32  # rows; after each so many, a run whose labels catch too little probability stops


def load_judge(
    name: str, *, device: str = "cpu", dtype: str = "", shard: str = "", ray: str = "", **served: Any
) -> Judge:
    """The judge `name`: a name of models.toml, a path to GGUF or safetensors, or a hub id `owner/model@commit`.

    `openai:MODEL@BASE_URL` is a served judge; `served` are the settings of ApiJudge. Any other is loaded on `device`
    ("cpu", "cuda:1") when something has to be computed. `dtype` (float32, bfloat16, float16, float64) overrides the
    entry's. `shard` and `ray` (or $REPROLIB_RAY) spread the work, see `cluster`. Raises JudgeError as
    `weights.resolve`, or for want of a tokenizer.
    """
    if name.startswith("openai:"):
        from reprolib.inference.api_judge import ApiJudge

        return ApiJudge(name, **served)
    from transformers import AutoTokenizer

    weights = resolve(name, dtype=dtype)
    try:
        tokenizer = AutoTokenizer.from_pretrained(weights.folder, local_files_only=True, trust_remote_code=False)
    except (ValueError, OSError) as error:
        message = f"{weights.name} has no usable tokenizer: {error}"
        raise JudgeError(message, hint="it must lie with the weights") from error
    from reprolib.inference import cluster  # which imports this module

    if shard:
        return cluster.ShardJudge(weights, Tokens(tokenizer), device, shard)
    if (address := ray or os.environ.get("REPROLIB_RAY", "no")) != "no":
        return cluster.RayJudge(weights, Tokens(tokenizer), device, name, address)
    return Judge(weights, Tokens(tokenizer), device, **served)


@dataclass(repr=False, eq=False)
class Judge:
    """A model that scores labels and writes text."""

    weights: Weights
    tokens: Tokens
    device: str = "cpu"

    @cached_property
    def engine(self) -> TorchEngine:
        """The model, loaded once and only if something is computed."""
        from reprolib.inference.torch_judge import TorchEngine, load_model

        model = load_model(self.weights.folder, dtype=self.weights.dtype, device=self.device)
        return TorchEngine(model, vocabulary=len(self.tokens.tokenizer))

    @cached_property
    def context(self) -> int:
        """The most tokens that the model was made for."""
        config = json.loads((self.weights.folder / "config.json").read_text())
        return int(config.get("text_config", config).get("max_position_embeddings", 2**31))

    def label_logprobs(
        self, prompts: Sequence[Prompt], labels: Sequence[str], *, items: Sequence[str] | None = None,
        store: Store | None = None, truncate: bool = False, min_mass: float = 0.01, progress: bool = False,
    ) -> pd.DataFrame:  # fmt: skip
        """Log-probability of each label, as a whole string of one or more tokens, right after each prompt.

        A prompt is text (sent as it is) or chat messages (rendered by the model's template); `items` name them in
        errors. `store` keeps finished rows, `truncate` cuts long prompts on the left. One row a prompt, in order:
        `item`, `n_tokens`, `cut` (tokens), `prompt_digest`, `logp_<label>` (natural logarithm), `in_label_mass` (0 to
        1; a label that begins with another is part of it), `logsumexp`, `top_ids` and `top_logits` (20 likeliest next
        tokens), `logit_<label>` if each label is one token. `attrs["run"]`: tokens and rows computed, and the model.
        Raises JudgeError, before anything is computed, for an empty or too long prompt, an empty or repeated label, or
        one that merges with its prompt; later, finished rows being stored, for an in-label mass below `min_mass` in the
        median prompt or a device out of memory.
        """
        check_labels(labels)
        frame, rendered, answers = self._prepare(prompts, labels, items, truncate)
        keys = [self._key(kind="labels", ids=p.ids, labels=a) for p, a in zip(rendered, answers, strict=True)]

        def score(todo: list[int]) -> Computed:
            wanted, masses = sorted({token for i in todo for ids in answers[i] for token in ids}), list[float]()
            leaves, rows = [(i, stem) for i in todo for stem in _stems(answers[i])], {i: dict[Ids, Any]() for i in todo}
            queries = [Query(rendered[i].ids + stem, len(stem) + 1) for i, stem in leaves]
            for at, read in self.engine.read(queries, wanted):
                i, stem = leaves[at]
                rows[i][stem] = read
                if len(rows[i]) == len(_stems(answers[i])):
                    value = _value(answers[i], rows.pop(i))
                    masses.append(_mass(value, answers[i]))
                    yield i, value
                    if len(masses) % _ENOUGH == 0:
                        refuse_little(masses, min_mass)

        values, run = self._run(keys, score, store, progress)
        mass = [_mass(value, answer) for value, answer in zip(values, answers, strict=True)]
        refuse_little(mass, min_mass)
        logp = pd.DataFrame([value["logp"] for value in values], columns=[f"logp_{label}" for label in labels])
        rest = pd.DataFrame(values, columns=["logsumexp", "top_ids", "top_logits"])
        parts = [frame, logp.assign(in_label_mass=mass), rest]
        if all(len(ids) == 1 for answer in answers for ids in answer):
            parts.append(pd.DataFrame([value["logits"] for value in values], columns=[f"logit_{n}" for n in labels]))
        frame = pd.concat(parts, axis=1)
        frame.attrs["run"] = run
        return frame

    def generate(
        self, prompts: Sequence[Prompt], *, max_new_tokens: int, temperature: float = 0.0, top_p: float = 1.0,
        repetition_penalty: float = 1.0, seed: int = 0, options: Sequence[str] = (), count: int = 0,
        items: Sequence[str] | None = None, store: Store | None = None, truncate: bool = False, progress: bool = False,
    ) -> pd.DataFrame:  # fmt: skip
        """Write a continuation of each prompt: greedily at temperature 0, else drawn with a seed.

        Each row's random stream is made of `seed` and the prompt, so neither order nor batch changes a text. Settings
        that a model ships (Qwen2.5: repetition penalty 1.05) act only if given here; `attrs["run"]` lists them. With
        `options`, only `count` different ones of them, with commas between, can come out. One row
        a prompt: `item`, `n_tokens` (of the prompt), `cut`, `prompt_digest`, `text`, `n_new` (tokens), `stopped` (False
        if max_new_tokens ended it). JudgeError as `label_logprobs`, or for a setting out of its range.
        """
        sampling: dict[str, Any] = {"max_new_tokens": max_new_tokens, "temperature": float(temperature)}
        sampling |= {"top_p": float(top_p), "repetition_penalty": float(repetition_penalty)}
        spelt = {self.tokens.ids(option): option for option in options}
        if len(without_extensions([*spelt])) < len(options) or count > len(options):
            hint = f"give at least count={count} options, none the beginning of another, such as 001, 002, ..."
            raise JudgeError("these options cannot be written as a list", hint=hint)
        if max_new_tokens < 1 or temperature < 0 or not 0 < top_p <= 1 or repetition_penalty <= 0:
            allowed = "max_new_tokens >= 1, temperature >= 0, 0 < top_p <= 1, repetition_penalty > 0"
            raise JudgeError(f"a setting of {sampling} is out of range", hint=f"allowed: {allowed}")
        frame, rendered, _ = self._prepare(prompts, (), items, truncate, reserve=max_new_tokens)
        asked = {"kind": "text", "sampling": sampling, "seed": seed}
        asked |= {"options": list(options), "count": count} if options else {}
        keys = [self._key(ids=prompt.ids, **asked) for prompt in rendered]

        def write(todo: list[int]) -> Computed:
            seeds = [(seed, int(rendered[i].digest[:16], 16)) for i in todo]
            stop = (self.engine.stop or [0])[0]
            allowed = partial(may_follow, [*spelt], self.tokens.ids(","), count, stop) if options else None
            for at, ids in self.engine.generate([rendered[i].ids for i in todo], seeds, allowed=allowed, **sampling):
                stopped = len(ids) < max_new_tokens or ids[-1] in self.engine.stop
                text = self.tokens.tokenizer.decode(list(ids), skip_special_tokens=True)
                yield todo[at], {"text": text, "n_new": len(ids), "stopped": stopped}

        values, run = self._run(keys, write, store, progress)
        frame.attrs["run"] = run | {"sampling": sampling, "seed": seed}
        return frame.assign(**{name: [value[name] for value in values] for name in ("text", "n_new", "stopped")})

    def cost(self, prompts: Sequence[Prompt], labels: Sequence[str], *, items: Sequence[str] | None = None) -> str:
        """What `label_logprobs` will compute, without loading the weights."""
        from reprolib.inference.torch_judge import MOST_ROWS, PACK, describe

        check_labels(labels)
        frame, rendered, answers = self._prepare(prompts, labels, items, cut=True)
        pairs = zip(rendered, answers, strict=True)
        queries = [Query(prompt.ids + stem, len(stem) + 1) for prompt, answer in pairs for stem in _stems(answer)]
        weights, plain = describe(self.weights.folder)
        lengths = [len(query.ids) for query in queries]
        batches = padded(lengths, pack_tokens=PACK["cpu"], most=MOST_ROWS) if plain else []
        tokens = sum(len(at) * lengths[at[0]] for at in batches) or len(shared(queries).tokens)
        held, how = int(frame["n_tokens"].sum()), f"computed whole: {plain}" if plain else "each shared prefix once"
        work = f"{tokens:,} ({how}; {held / max(1, tokens):.1f} times fewer), {2 * weights * tokens / 1e12:,.2f} TFLOP"
        return f"{len(frame)} prompts, {held:,} tokens; to compute: {work} in linear layers"

    def made(self, run: Mapping[str, Any], *, started: float, command: str) -> dict[str, Any]:
        """What a record's manifest says about a `run` (`attrs["run"]`) that began at `started` (time.monotonic)."""
        about = {"origin": self.weights.origin, "weights": self.weights.digest, "dtype": self.weights.dtype}
        seconds, date = round(time.monotonic() - started, 1), datetime.now(UTC).date().isoformat()
        where = {"versions": versions(), "hardware": f"{self.device.split(':')[0]}, {platform.machine()}"}
        return about | where | {"seconds": seconds, "timed": run["rows_computed"], "date": date, "command": command}

    def _key(self, **fields: Any) -> str:
        return row_key(**fields, weights=self.weights.digest, dtype=self.weights.dtype)

    def _prepare(
        self, prompts: Sequence[Prompt], labels: Sequence[str], items: Sequence[str] | None, cut: bool, reserve: int = 0
    ) -> tuple[pd.DataFrame, list[Rendered], list[list[Ids]]]:
        """The table's first columns, prompts that fit, and the ids of each prompt's labels; nothing is computed yet."""
        names = [str(name) for name in items or range(len(prompts))]
        rendered, answers = [], []
        for name, prompt in zip(names, prompts, strict=True):
            whole = self.tokens.render(prompt, item=name)
            answers.append([self.tokens.label(whole, label, item=name) for label in labels])
            tail = max([reserve, *(len(ids) - 1 for ids in answers[-1])])
            rendered.append(self.tokens.fit(whole, self.context - tail, item=name, truncate=cut))
        about = [(name, len(p.ids), p.cut, p.digest) for name, p in zip(names, rendered, strict=True)]
        return pd.DataFrame(about, columns=["item", "n_tokens", "cut", "prompt_digest"]), rendered, answers

    def _run(
        self, keys: list[str], compute: Callable[[list[int]], Computed], store: Store | None, progress: bool
    ) -> tuple[list[Value], dict[str, Any]]:
        """As `complete`, with what the run did."""
        before = self.engine.computed if "engine" in vars(self) else 0
        values, run = complete(keys, compute, store, device=self.device.split(":")[0], progress=progress)
        run |= {"model": self.weights.name, "weights": self.weights.digest, "dtype": self.weights.dtype}
        if run["rows_computed"]:
            run |= {"shipped_generation": self.engine.shipped_generation}
        return values, run | {"tokens_computed": self.engine.computed - before if run["rows_computed"] else 0}


def complete(
    keys: list[str], compute: Callable[[list[int]], Computed], store: Store | None, *, device: str, progress: bool,
    every: int = 16,
) -> tuple[list[Value], dict[str, Any]]:  # fmt: skip
    """The value of every key: from the store, else computed once and committed, `every` so many rows; and the counts.

    A row computed as a JudgeError has failed: the others go on, and a JudgeError at the end says how many did.
    """
    from tqdm.auto import tqdm

    values, fresh, failed = store.get(keys) if store else {}, dict[str, Value](), dict[str, str]()
    todo = pd.Series(keys).drop_duplicates().loc[lambda key: ~key.isin(list(values))].index.tolist()

    def commit(rows: dict[str, Any], status: str = "done") -> None:
        if store and rows:
            store.put(rows, device=device, status=status)

    try:
        rows = compute(todo) if todo else ()
        for index, value in tqdm(rows, total=len(todo), unit="row", disable=not progress):
            if isinstance(value, JudgeError):
                failed[keys[index]] = str(value)
            else:
                values[keys[index]] = fresh[keys[index]] = value
            if len(fresh) >= every:
                commit(fresh)
                fresh.clear()
    except JudgeError as error:
        failed |= {keys[index]: str(error) for index in todo if keys[index] not in values}
        raise
    finally:  # an interrupt from the keyboard keeps what is done, too
        commit(fresh)
        commit(failed, "failed")
    if failed:
        reasons = ", ".join(f"{why} ({times:,} times)" for why, times in Counter(failed.values()).most_common(3))
        hint = "the others are in the store; run the same again" if store else "give a store, and run again"
        raise JudgeError(f"{len(failed):,} of {len(todo):,} rows failed: {reasons}", hint=hint)
    return [values[key] for key in keys], {"rows": len(keys), "rows_computed": len(todo)}


def _stems(answer: list[Ids]) -> list[Ids]:
    """What follows a prompt in the leaves of its prefix tree: nothing, and all but the last token of a longer label."""
    return list(dict.fromkeys([(), *(ids[:-1] for ids in answer)]))


def _value(answer: list[Ids], rows: dict[Ids, Any]) -> Value:
    first = rows[()][0]
    steps = [zip(rows[ids[:-1]], ids, strict=True) for ids in answer]
    return {
        "logp": [sum(row.logits[token] - row.logsumexp for row, token in step) for step in steps],
        "logits": [first.logits[ids[0]] for ids in answer],
        "logsumexp": first.logsumexp,
        "top_ids": first.top_ids,
        "top_logits": first.top_logits,
    }


def _mass(value: Value, answer: list[Ids]) -> float:
    return float(np.exp([value["logp"][index] for index in without_extensions(answer)]).sum())


def refuse_little(masses: Iterable[float], least: float) -> None:
    """Stop a run whose labels catch less than `least` of the probability in the median prompt."""
    if (median := float(np.median([*masses] or [1.0]))) < least:
        message = f"the labels catch {median:.2g} of the probability in the median prompt, less than {least}"
        raise JudgeError(message, hint="look at top_ids: labels may need a leading space, or the prompt a nudge")
