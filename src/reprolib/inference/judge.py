"""A judge: prompts and labels in, log-probabilities in a table out.

>>> judge = load_judge("smollm2-135m")  # doctest: +SKIP
>>> judge.label_logprobs(["2 + 2 =", "3 + 3 ="], [" 4", " 6"])[["logp_ 4", "logp_ 6"]]  # doctest: +SKIP
"""

from __future__ import annotations

import json
import platform
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from reprolib.inference import JudgeError
from reprolib.inference.plan import Query, padded, shared
from reprolib.inference.store import Store, row_key, versions
from reprolib.inference.tokens import Prompt, Rendered, Tokens, check_labels, without_extensions
from reprolib.inference.weights import Weights, resolve

if TYPE_CHECKING:
    from reprolib.inference.torch_judge import Row, TorchEngine

Ids = tuple[int, ...]
Value = dict[str, Any]  # what the store keeps of one row
Computed = Iterator[dict[int, Value | JudgeError]]  # by row; an error says why that row alone failed

_COMMIT = 16  # rows; so many are lost at most when the process is killed
_ENOUGH = 32  # rows; from so many on, a run whose labels catch too little probability stops early


class Cost(NamedTuple):
    """Tokens that the prompts hold, tokens and floating-point operations to compute; `plain`: why nothing is shared."""

    prompts: int
    prompt_tokens: int
    tokens: int
    flops: float
    plain: str

    def __str__(self) -> str:
        if not self.flops:
            told = f"{self.prompts:,} calls, about {self.prompt_tokens:,} prompt tokens (of 4 characters)"
            return f"{told}, at most {self.tokens:,} new tokens"
        how = f"computed whole: {self.plain}" if self.plain else "each shared prefix once"
        how += f"; {self.prompt_tokens / max(1, self.tokens):.1f} times fewer"
        held = f"{self.prompts} prompts, {self.prompt_tokens:,} tokens"
        return f"{held}; to compute: {self.tokens:,} ({how}), {self.flops / 1e12:,.2f} TFLOP"


def load_judge(name: str, *, device: str = "cpu", dtype: str = "", **served: Any) -> Judge:
    """The judge `name`: a name of models.toml, a path to GGUF or safetensors, or a hub id `owner/model@commit`.

    `openai:MODEL@BASE_URL` is a served judge; `served` are the settings of ApiJudge. Any other is loaded on `device`
    ("cpu", "cuda:1") when something has to be computed. `dtype` (float32, bfloat16, float16, float64) overrides the
    entry's. Raises JudgeError as `weights.resolve`, or for want of a tokenizer.
    """
    if name.startswith("openai:"):
        from reprolib.inference.api_judge import ApiJudge

        return ApiJudge(name, **served)
    if served:
        raise JudgeError(f"{name} has no setting {', '.join(served)}", hint="these are for openai:MODEL@BASE_URL")
    weights = resolve(name, dtype=dtype)
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(weights.folder, local_files_only=True, trust_remote_code=False)
    except (ValueError, OSError) as error:
        message = f"{weights.name} has no usable tokenizer: {error}"
        raise JudgeError(message, hint="it must lie with the weights") from error

    def engine() -> TorchEngine:
        from reprolib.inference.torch_judge import TorchEngine, load_model

        return TorchEngine(load_model(weights.folder, dtype=weights.dtype, device=device), vocabulary=len(tokenizer))

    return Judge(weights, Tokens(tokenizer), engine)


class Judge:
    """A model that scores labels and writes text; `load` makes its engine, once and only if something is computed."""

    def __init__(self, weights: Weights, tokens: Tokens, load: Callable[[], TorchEngine]) -> None:
        self.weights, self.tokens, self._load = weights, tokens, load

    @cached_property
    def engine(self) -> TorchEngine:
        """The loaded model."""
        return self._load()

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
        names, rendered, answers = self._prepare(prompts, labels, items, truncate)
        keys = [self._key(kind="labels", ids=p.ids, labels=a) for p, a in zip(rendered, answers, strict=True)]
        answer_of, masses = dict(zip(keys, answers, strict=True)), dict[str, float]()

        def check(values: dict[str, Value]) -> None:
            masses.update((key, _mass(value["logp"], answer_of[key])) for key, value in values.items())
            if len(masses) >= _ENOUGH:
                refuse_little(masses.values(), min_mass)

        values, run = self._complete(keys, lambda todo: self._score(todo, rendered, answers), store, progress, check)
        mass = [_mass(value["logp"], answer) for value, answer in zip(values, answers, strict=True)]
        refuse_little(mass, min_mass)
        columns = {f"logp_{label}": [value["logp"][at] for value in values] for at, label in enumerate(labels)}
        columns["in_label_mass"] = mass
        columns |= {name: [value[name] for value in values] for name in ("logsumexp", "top_ids", "top_logits")}
        if all(len(ids) == 1 for answer in answers for ids in answer):
            columns |= {f"logit_{label}": [value["logits"][at] for value in values] for at, label in enumerate(labels)}
        return _frame(names, rendered, columns, run)

    def generate(
        self, prompts: Sequence[Prompt], *, max_new_tokens: int, temperature: float = 0.0, top_p: float = 1.0,
        repetition_penalty: float = 1.0, seed: int = 0, items: Sequence[str] | None = None,
        store: Store | None = None, truncate: bool = False, progress: bool = False,
    ) -> pd.DataFrame:  # fmt: skip
        """Write a continuation of each prompt: greedily at temperature 0, else drawn with a seed.

        Each row's random stream is made of `seed` and the prompt, so neither order nor batch changes a text. Settings
        that a model ships (Qwen2.5: repetition penalty 1.05) act only if given here; `attrs["run"]` lists them. One row
        a prompt: `item`, `n_tokens` (of the prompt), `cut`, `prompt_digest`, `text`, `n_new` (tokens), `stopped` (False
        if max_new_tokens ended it). JudgeError as `label_logprobs`, or for a setting out of its range.
        """
        from reprolib.inference.torch_judge import Sampling

        sampling = Sampling(max_new_tokens, float(temperature), float(top_p), float(repetition_penalty))
        if max_new_tokens < 1 or temperature < 0 or not 0 < top_p <= 1 or repetition_penalty <= 0:
            allowed = "max_new_tokens >= 1, temperature >= 0, 0 < top_p <= 1, repetition_penalty > 0"
            raise JudgeError(f"a setting of {sampling} is out of range", hint=f"allowed: {allowed}")
        names, rendered, _ = self._prepare(prompts, (), items, truncate, reserve=max_new_tokens)
        fixed = {"sampling": sampling._asdict(), "seed": seed}
        keys = [self._key(kind="text", ids=prompt.ids, **fixed) for prompt in rendered]

        def write(todo: list[int]) -> Computed:
            seeds = [(seed, int(rendered[i].digest[:16], 16)) for i in todo]
            for position, ids in self.engine.generate([rendered[i].ids for i in todo], sampling, seeds):
                stopped = len(ids) < max_new_tokens or ids[-1] in self.engine.stop
                yield {todo[position]: {"text": self.tokens.decode(ids), "n_new": len(ids), "stopped": stopped}}

        values, run = self._complete(keys, write, store, progress)
        columns = {name: [value[name] for value in values] for name in ("text", "n_new", "stopped")}
        return _frame(names, rendered, columns, run | fixed)

    def cost(self, prompts: Sequence[Prompt], labels: Sequence[str], *, items: Sequence[str] | None = None) -> Cost:
        """What `label_logprobs` will compute, without loading the weights."""
        from reprolib.inference.torch_judge import PACK, describe

        check_labels(labels)
        _, rendered, answers = self._prepare(prompts, labels, items, cut=True)
        queries = [q for p, a in zip(rendered, answers, strict=True) for q in _queries(p, a).values()]
        shape, plain = describe(self.weights.folder)
        plan = shared(queries, pack_tokens=PACK["cpu"])
        tokens, flops = len(plan.tokens), plan.flops(shape)
        if plain:
            lengths = [len(query.ids) for query in queries]
            tokens = sum(len(at) * lengths[at[0]] for at in padded(lengths, pack_tokens=PACK["cpu"]))
            flops = 2.0 * shape.linear * tokens
        return Cost(len(rendered), sum(len(prompt.ids) for prompt in rendered), tokens, flops, plain)

    def made(self, run: Mapping[str, Any], *, started: float, command: str) -> dict[str, Any]:
        """What a record's manifest says about a `run` (`attrs["run"]`) that began at `started` (time.monotonic)."""
        about = {"origin": self.weights.origin, "weights": self.weights.digest, "dtype": self.weights.dtype}
        seconds, date = round(time.monotonic() - started, 1), datetime.now(UTC).date().isoformat()
        where = {"versions": versions(), "hardware": f"{run.get('device', 'cpu')}, {platform.machine()}"}
        return about | where | {"seconds": seconds, "timed": run["rows_computed"], "date": date, "command": command}

    def _key(self, **fields: Any) -> str:
        return row_key(**fields, weights=self.weights.digest, dtype=self.weights.dtype)

    def _prepare(
        self, prompts: Sequence[Prompt], labels: Sequence[str], items: Sequence[str] | None, cut: bool, reserve: int = 0
    ) -> tuple[list[str], list[Rendered], list[list[Ids]]]:
        """Names, rendered prompts that fit, and the ids of each prompt's labels; nothing is computed yet."""
        names = item_names(prompts, items)
        rendered, answers = [], []
        for name, prompt in zip(names, prompts, strict=True):
            whole = self.tokens.render(prompt, item=name)
            answers.append([self.tokens.label(whole, label, item=name) for label in labels])
            tail = max([reserve, *(len(ids) - 1 for ids in answers[-1])])
            rendered.append(self.tokens.fit(whole, self.context - tail, item=name, truncate=cut))
        return names, rendered, answers

    def _complete(
        self, keys: list[str], compute: Callable[[list[int]], Computed], store: Store | None,
        progress: bool, check: Callable[[dict[str, Value]], None] = lambda values: None, every: int = _COMMIT,
    ) -> tuple[list[Value], dict[str, Any]]:  # fmt: skip
        """The value of every key, and what the run did: from the store, else computed once and committed in groups.

        A row computed as a JudgeError has failed: the others go on, and a JudgeError at the end says how many did.
        """
        values = store.get(keys) if store else {}
        check(values)
        first = {key: index for index, key in reversed(list(enumerate(keys)))}
        todo = sorted(index for key, index in first.items() if key not in values)
        run: dict[str, Any] = {"rows": len(keys), "rows_computed": len(todo), "model": self.weights.name}
        run |= {"weights": self.weights.digest, "dtype": self.weights.dtype, "tokens_computed": 0}
        if not todo:
            return [values[key] for key in keys], run
        engine, fresh, failed = self.engine, dict[str, Value](), dict[str, str]()
        engine.computed = 0

        def commit() -> None:
            if store and fresh:
                store.put(fresh, device=engine.device.type)
            values.update(fresh)
            fresh.clear()

        from tqdm.auto import tqdm

        try:
            with tqdm(total=len(keys), initial=len(keys) - len(todo), unit="row", disable=not progress) as bar:
                for batch in compute(todo):
                    bar.update(len(batch))
                    failed |= {keys[i]: str(value) for i, value in batch.items() if isinstance(value, JudgeError)}
                    fresh |= {keys[i]: value for i, value in batch.items() if not isinstance(value, JudgeError)}
                    if len(fresh) >= every:
                        check(fresh)
                        commit()
        except JudgeError as error:
            commit()
            failed = {keys[i]: str(error) for i in todo if keys[i] not in values} | failed
            raise
        finally:  # an interrupt from the keyboard keeps what is done, too
            commit()
            if store and failed:
                for why in set(failed.values()):
                    store.fail([key for key in failed if failed[key] == why], why, device=engine.device.type)
        if failed:
            reasons = ", ".join(f"{why} ({times:,} times)" for why, times in Counter(failed.values()).most_common(3))
            hint = "the others are in the store; run the same again" if store else "give a store, and run again"
            raise JudgeError(f"{len(failed):,} of {len(todo):,} rows failed: {reasons}", hint=hint)
        run |= {"tokens_computed": engine.computed, "plain": engine.plain, "device": engine.device.type}
        return [values[key] for key in keys], run | {"shipped_generation": engine.shipped_generation}

    def _score(self, todo: list[int], rendered: list[Rendered], answers: list[list[Ids]]) -> Computed:
        """Yield prompts' values as their last row is read."""
        wanted = sorted({token for i in todo for ids in answers[i] for token in ids})
        column = {token: position for position, token in enumerate(wanted)}
        leaves = [(i, stem, query) for i in todo for stem, query in _queries(rendered[i], answers[i]).items()]
        missing = Counter(i for i, *_ in leaves)
        rows: dict[int, dict[Ids, list[Row]]] = {i: {} for i in todo}
        for position, read in self.engine.read([query for *_, query in leaves], wanted):
            i, stem, _ = leaves[position]
            rows[i][stem] = read
            if len(rows[i]) == missing[i]:
                yield {i: _value(answers[i], rows.pop(i), column)}


def item_names(prompts: Sequence[Prompt], items: Sequence[str] | None) -> list[str]:
    """What errors call the prompts: by default their numbers; JudgeError if there is not one name for each."""
    names = [str(name) for name in (range(len(prompts)) if items is None else items)]
    if len(names) != len(prompts):
        raise JudgeError(f"{len(names)} item names for {len(prompts)} prompts", hint="give one for each")
    return names


def read_prompts(path: Path) -> pd.DataFrame:
    """JSON Lines or Parquet with columns `id` (unique) and `prompt` (text or chat messages); else JudgeError."""
    try:
        table = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_json(path, lines=True, dtype=False)
    except (ValueError, OSError) as error:
        hint = "give JSON Lines, or Parquet named *.parquet"
        raise JudgeError(f"{path} cannot be read: {error}", hint=hint) from error
    if not {"id", "prompt"} <= set(table):
        raise JudgeError(f"{path} has columns {', '.join(table)}", hint="columns id and prompt are needed")
    texts = [prompt if isinstance(prompt, str) else list(prompt) for prompt in table["prompt"]]
    table = table.assign(id=table["id"].astype(str), prompt=texts)
    if (twice := table["id"].duplicated()).any():
        raise JudgeError(f"{path}: id {table['id'][twice].iloc[0]!r} stands twice", hint="each prompt has its own id")
    return table


def take_shard(table: pd.DataFrame, shard: str) -> pd.DataFrame:
    """Shard "i/n" of a table, 1 <= i <= n, else JudgeError: neighbouring rows, because neighbours share prefixes.

    When all shards used one store, a last run over the whole table computes only what is missing.

    >>> take_shard(pd.DataFrame({"id": list("abcde")}), "2/2")["id"].tolist()
    ['c', 'd', 'e']
    """
    found = re.fullmatch(r"(\d+)/(\d+)", shard)
    part, parts = map(int, found.groups()) if found else (0, 0)
    if not 1 <= part <= parts:
        raise JudgeError(f"there is no shard {shard!r}", hint="give i/n with i from 1 to n, such as 2/4")
    return table.iloc[len(table) * (part - 1) // parts : len(table) * part // parts]


def _queries(prompt: Rendered, answer: list[Ids]) -> dict[Ids, Query]:
    """The leaves of a prompt's prefix tree: it alone, and followed by all but the last token of each longer label."""
    return {stem: Query(prompt.ids + stem, len(stem) + 1) for stem in [(), *(ids[:-1] for ids in answer)]}


def _value(answer: list[Ids], rows: dict[Ids, list[Row]], column: dict[int, int]) -> Value:
    def logp(row: Row, token: int) -> float:
        return float(row.logits[column[token]]) - row.logsumexp

    first = rows[()][0]
    return {
        "logp": [sum(logp(row, token) for row, token in zip(rows[ids[:-1]], ids, strict=True)) for ids in answer],
        "logits": [float(first.logits[column[ids[0]]]) for ids in answer],
        "logsumexp": first.logsumexp,
        "top_ids": list(first.top_ids),
        "top_logits": [float(logit) for logit in first.top_logits],
    }


def _mass(logp: list[float], answer: list[Ids]) -> float:
    return float(np.exp([logp[index] for index in without_extensions(answer)]).sum())


def refuse_little(masses: Iterable[float], least: float) -> None:
    """Stop a run whose labels catch less than `least` of the probability in the median prompt."""
    if (median := float(np.median([*masses] or [1.0]))) < least:
        message = f"the labels catch {median:.2g} of the probability in the median prompt, less than {least}"
        raise JudgeError(message, hint="look at top_ids: labels may need a leading space, or the prompt a nudge")


def _frame(names: list[str], rendered: list[Rendered], columns: dict[str, Any], run: dict[str, Any]) -> pd.DataFrame:
    numbers = {"n_tokens": [len(prompt.ids) for prompt in rendered], "cut": [prompt.cut for prompt in rendered]}
    frame = pd.DataFrame({"item": names} | numbers | {"prompt_digest": [p.digest for p in rendered]} | columns)
    frame.attrs["run"] = run
    return frame
