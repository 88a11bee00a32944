"""A judge: prompts and labels in, log-probabilities in a table out.

>>> judge = load_judge("smollm2-135m")  # doctest: +SKIP
>>> judge.label_logprobs(["2 + 2 =", "3 + 3 ="], [" 4", " 6"])[["logp_ 4", "logp_ 6"]]  # doctest: +SKIP
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from reprolib.inference import JudgeError
from reprolib.inference.plan import Query, padded, shared
from reprolib.inference.store import Store, row_key
from reprolib.inference.tokens import Prompt, Rendered, Tokens, check_labels, without_extensions
from reprolib.inference.weights import Weights, resolve

if TYPE_CHECKING:
    from reprolib.inference.torch_judge import Row, TorchEngine

_COMMIT = 16  # rows; so many are lost at most when the process is killed
_ENOUGH = 32  # rows; from so many on, a run whose labels catch too little probability stops early


@dataclass(frozen=True)
class Cost:
    """What a run will compute: tokens that the prompts hold, tokens that the model will see, floating-point operations.

    `plain` says why nothing is shared, or is empty.
    """

    prompts: int
    prompt_tokens: int
    tokens: int
    flops: float
    plain: str

    def __str__(self) -> str:
        how = f"computed whole: {self.plain}" if self.plain else "each shared prefix once"
        ratio = self.prompt_tokens / max(1, self.tokens)
        return (
            f"{self.prompts} prompts, {self.prompt_tokens:,} tokens; to compute: {self.tokens:,} ({how}; "
            f"{ratio:.1f} times fewer), {self.flops / 1e12:,.2f} TFLOP"
        )


def load_judge(name: str, *, device: str = "cpu", dtype: str = "") -> Judge:
    """The judge `name`: a name of models.toml, a path to GGUF or safetensors, or a hub id `owner/model@commit`.

    The model itself is loaded when something has to be computed.

    Args:
        device: "cpu", "cuda", "cuda:1" and so on.
        dtype: overrides the entry's data type; one of float32, bfloat16, float16, float64.

    Raises:
        JudgeError: see `weights.resolve`.
    """
    weights = resolve(name, dtype=dtype)
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(weights.folder, local_files_only=True, trust_remote_code=False)
    except (ValueError, OSError) as error:
        raise JudgeError(
            f"{weights.name} has no usable tokenizer: {error}", hint="it must lie with the weights"
        ) from error
    tokens = Tokens(tokenizer)

    def engine() -> TorchEngine:
        from reprolib.inference.torch_judge import TorchEngine, load_model

        model = load_model(weights.folder, dtype=weights.dtype, device=device)
        return TorchEngine(model, vocabulary=tokens.vocabulary)

    return Judge(weights, tokens, engine)


class Judge:
    """A model that scores labels and writes text; made by `load_judge`.

    Args:
        weights: what the model is; digest and dtype are part of every row's key.
        tokens: its tokenizer.
        load: makes the engine, called once and only if something has to be computed.
    """

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
        self,
        prompts: Sequence[Prompt],
        labels: Sequence[str],
        *,
        items: Sequence[str] | None = None,
        store: Store | None = None,
        truncate: bool = False,
        min_mass: float = 0.01,
        progress: bool = False,
    ) -> pd.DataFrame:
        """Log-probability of each label, as a whole string, right after each prompt.

        Args:
            prompts: strings (sent as they are) or lists of chat messages (rendered by the model's template).
            labels: the answers to compare, each of one or more tokens.
            items: a name for each prompt, used in errors; default "0", "1", ...
            store: where finished rows are kept and looked up.
            truncate: cut prompts that are too long on the left, and say so in column `cut`; else they are refused.
            min_mass: the least in-label probability, in the median over the run, below which the run stops.
            progress: show a bar.

        Returns:
            One row a prompt, in order: `item`, `n_tokens`, `cut` (tokens), `prompt_digest`, `logp_<label>` (natural
            logarithm), `in_label_mass` (0 to 1; a label that begins with another label is part of it), `logsumexp`,
            `top_ids` and `top_logits` (the 20 most likely next tokens), and `logit_<label>` if each label is one
            token. `attrs["run"]` holds tokens and rows computed, and the model.

        Raises:
            JudgeError: an empty prompt, an empty or repeated label, a prompt longer than the context, a label that
                merges with its prompt, too little in-label probability, or a device out of memory. All but the last
                two are found before anything is computed; finished rows are kept in the store.
        """
        check_labels(labels)
        names, rendered, answers = self._prepare(prompts, labels, items, truncate)
        keys = [
            row_key(kind="labels", ids=p.ids, labels=a, weights=self.weights.digest, dtype=self.weights.dtype)
            for p, a in zip(rendered, answers, strict=True)
        ]
        masses: dict[int, float] = {}

        def check(rows: Iterable[tuple[int, dict[str, Any]]], *, last: bool) -> None:
            masses.update({i: _mass(row["logp"], answers[i]) for i, row in rows})
            median = float(np.median(list(masses.values()))) if masses else 1.0
            if (last or len(masses) >= _ENOUGH) and median < min_mass:
                message = f"the labels catch {median:.2g} of the probability in the median prompt, less than {min_mass}"
                raise JudgeError(
                    message, hint="look at top_ids: labels may need a leading space, or the prompt a nudge"
                )

        values, run = self._complete(
            keys, lambda todo: self._score(todo, rendered, answers), store, progress=progress, check=check
        )
        columns: dict[str, Any] = {
            f"logp_{label}": [value["logp"][column] for value in values] for column, label in enumerate(labels)
        }
        columns["in_label_mass"] = [masses[index] for index in range(len(values))]
        columns |= {name: [value[name] for value in values] for name in ("logsumexp", "top_ids", "top_logits")}
        if all(len(ids) == 1 for answer in answers for ids in answer):
            for column, label in enumerate(labels):
                columns[f"logit_{label}"] = [value["logits"][column] for value in values]
        frame = self._frame(names, rendered, columns)
        frame.attrs["run"] = run
        return frame

    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        max_new_tokens: int,
        temperature: float = 0.0,
        top_p: float = 1.0,
        repetition_penalty: float = 1.0,
        seed: int = 0,
        items: Sequence[str] | None = None,
        store: Store | None = None,
        truncate: bool = False,
        progress: bool = False,
    ) -> pd.DataFrame:
        """Write a continuation of each prompt: greedily at temperature 0, else drawn with a seed.

        Each row has its own random stream, made of `seed` and the prompt, so that neither the order nor the batch
        changes a text. Settings that a model ships in its generation_config (Qwen2.5: repetition penalty 1.05) do not
        act unless they are given here; `attrs["run"]` lists what it ships.

        Returns:
            One row a prompt: `item`, `n_tokens` (of the prompt), `cut`, `prompt_digest`, `text`, `n_new` (tokens),
            `stopped` (False if max_new_tokens ended it).

        Raises:
            JudgeError: as `label_logprobs`, or a setting out of its range.
        """
        from reprolib.inference.torch_judge import Sampling

        sampling = Sampling(max_new_tokens, float(temperature), float(top_p), float(repetition_penalty))
        if max_new_tokens < 1 or temperature < 0 or not 0 < top_p <= 1 or repetition_penalty <= 0:
            allowed = "max_new_tokens >= 1, temperature >= 0, 0 < top_p <= 1, repetition_penalty > 0"
            raise JudgeError(f"a setting of {sampling} is out of range", hint=f"allowed: {allowed}")
        names, rendered, _ = self._prepare(prompts, (), items, truncate, reserve=max_new_tokens)
        fixed = {"kind": "text", "sampling": sampling._asdict(), "seed": seed}
        model = {"weights": self.weights.digest, "dtype": self.weights.dtype}
        keys = [row_key(ids=prompt.ids, **fixed, **model) for prompt in rendered]

        def write(todo: list[int]) -> Iterator[tuple[int, dict[str, Any]]]:
            seeds = [(seed, int(rendered[i].digest[:16], 16)) for i in todo]
            for position, ids in self.engine.generate([rendered[i].ids for i in todo], sampling, seeds):
                stopped = len(ids) < max_new_tokens or ids[-1] in self.engine.stop
                yield todo[position], {"text": self.tokens.decode(ids), "n_new": len(ids), "stopped": stopped}

        values, run = self._complete(keys, write, store, progress=progress)
        columns = {name: [value[name] for value in values] for name in ("text", "n_new", "stopped")}
        frame = self._frame(names, rendered, columns)
        frame.attrs["run"] = run | {"sampling": sampling._asdict(), "seed": seed}
        return frame

    def cost(self, prompts: Sequence[Prompt], labels: Sequence[str], *, items: Sequence[str] | None = None) -> Cost:
        """What `label_logprobs` will compute, without loading the weights."""
        from reprolib.inference.torch_judge import PACK, describe

        check_labels(labels)
        _, rendered, answers = self._prepare(prompts, labels, items, truncate=True)
        queries = [
            query for prompt, answer in zip(rendered, answers, strict=True) for query in _queries(prompt, answer)
        ]
        shape, plain = describe(self.weights.folder)
        plan = shared(queries, pack_tokens=PACK["cpu"])
        tokens = len(plan.tokens)
        if plain:
            lengths = [len(query.ids) for query in queries]
            batches = padded(lengths, pack_tokens=PACK["cpu"])
            tokens = sum(len(batch) * max(lengths[i] for i in batch) for batch in batches)
        whole = sum(len(prompt.ids) for prompt in rendered)
        flops = plan.flops(shape) if not plain else 2.0 * shape.linear * tokens
        return Cost(len(rendered), whole, tokens, flops, plain)

    def _prepare(
        self,
        prompts: Sequence[Prompt],
        labels: Sequence[str],
        items: Sequence[str] | None,
        truncate: bool,
        reserve: int = 0,
    ) -> tuple[list[str], list[Rendered], list[list[tuple[int, ...]]]]:
        """Names, rendered prompts that fit, and the ids of each prompt's labels; nothing is computed yet."""
        names = [str(name) for name in (range(len(prompts)) if items is None else items)]
        if len(names) != len(prompts):
            raise JudgeError(f"{len(names)} item names for {len(prompts)} prompts", hint="give one for each")
        rendered, answers = [], []
        for name, prompt in zip(names, prompts, strict=True):
            whole = self.tokens.render(prompt, item=name)
            answer = [self.tokens.label(whole, label, item=name) for label in labels]
            tail = max([reserve, *(len(ids) - 1 for ids in answer)])
            rendered.append(self.tokens.fit(whole, self.context - tail, item=name, truncate=truncate))
            answers.append(answer)
        return names, rendered, answers

    def _complete(
        self,
        keys: list[str],
        compute: Callable[[list[int]], Iterator[tuple[int, dict[str, Any]]]],
        store: Store | None,
        *,
        progress: bool,
        check: Callable[..., None] = lambda rows, *, last: None,
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """The value of every key: from the store, else computed once and committed in small groups."""
        values = store.get(keys) if store else {}
        first = {key: index for index, key in reversed(list(enumerate(keys)))}
        todo = sorted(index for key, index in first.items() if key not in values)
        check([(first[key], value) for key, value in values.items()], last=False)
        run: dict[str, Any] = {"rows": len(keys), "rows_computed": len(todo), "model": self.weights.name}
        run |= {"weights": self.weights.digest, "dtype": self.weights.dtype, "tokens_computed": 0}
        if todo:
            self._compute(keys, todo, compute, values, store, progress, check)
            run |= {"tokens_computed": self.engine.computed, "plain": self.engine.plain}
            run |= {"device": self.engine.device.type, "shipped_generation": self.engine.shipped_generation}
        check([(index, values[key]) for index, key in enumerate(keys)], last=True)
        return [values[key] for key in keys], run

    def _compute(
        self,
        keys: list[str],
        todo: list[int],
        compute: Callable[[list[int]], Iterator[tuple[int, dict[str, Any]]]],
        values: dict[str, dict[str, Any]],
        store: Store | None,
        progress: bool,
        check: Callable[..., None],
    ) -> None:
        from tqdm.auto import tqdm

        device = self.engine.device.type
        waiting: dict[int, dict[str, Any]] = {}
        self.engine.computed = 0

        def commit() -> None:
            if store and waiting:
                store.put({keys[index]: value for index, value in waiting.items()}, device=device)
            values.update({keys[index]: value for index, value in waiting.items()})
            waiting.clear()

        try:
            with tqdm(total=len(keys), initial=len(keys) - len(todo), unit="row", disable=not progress) as bar:
                for index, value in compute(todo):
                    waiting[index] = value
                    bar.update()
                    if len(waiting) >= _COMMIT:
                        fresh = list(waiting.items())
                        commit()
                        check(fresh, last=False)
        except JudgeError as error:
            commit()
            if store:
                store.fail([keys[i] for i in todo if keys[i] not in values], str(error), device=device)
            raise
        finally:  # an interrupt from the keyboard keeps what is done, too
            commit()

    def _score(
        self, todo: list[int], rendered: list[Rendered], answers: list[list[tuple[int, ...]]]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield prompts' values as their last row is read."""
        wanted = sorted({token for i in todo for ids in answers[i] for token in ids})
        column = {token: position for position, token in enumerate(wanted)}
        queries = [(i, query) for i in todo for query in _queries(rendered[i], answers[i])]
        open_rows: dict[int, dict[tuple[int, ...], list[Row]]] = {i: {} for i in todo}
        for position, rows in self.engine.read([query for _, query in queries], wanted):
            i, query = queries[position]
            open_rows[i][query.ids[len(rendered[i].ids) :]] = rows
            if len(open_rows[i]) == len(_queries(rendered[i], answers[i])):
                yield i, _value(answers[i], open_rows.pop(i), column)

    def _frame(self, names: list[str], rendered: list[Rendered], columns: dict[str, Any]) -> pd.DataFrame:
        about = {"item": names, "n_tokens": [len(prompt.ids) for prompt in rendered]}
        about |= {"cut": [prompt.cut for prompt in rendered], "prompt_digest": [prompt.digest for prompt in rendered]}
        return pd.DataFrame(about | columns)


def read_prompts(path: Path) -> pd.DataFrame:
    """A table of prompts from JSON Lines or Parquet: columns `id` (unique) and `prompt` (text or chat messages).

    Raises JudgeError if the file cannot be read or is no such table.
    """
    try:
        table = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_json(path, lines=True, dtype=False)
    except (ValueError, OSError) as error:
        raise JudgeError(
            f"{path} cannot be read: {error}", hint="give JSON Lines, or Parquet named *.parquet"
        ) from error
    if not {"id", "prompt"} <= set(table):
        raise JudgeError(f"{path} has columns {', '.join(table)}", hint="columns id and prompt are needed")
    table = table.assign(
        id=table["id"].astype(str), prompt=[p if isinstance(p, str) else list(p) for p in table["prompt"]]
    )
    if (twice := table["id"].duplicated()).any():
        raise JudgeError(f"{path}: id {table['id'][twice].iloc[0]!r} stands twice", hint="each prompt has its own id")
    return table


def judge_table(
    judge: Judge, table: pd.DataFrame, labels: Sequence[str], *, shard: tuple[int, int] = (1, 1), **settings: Any
) -> pd.DataFrame:
    """`label_logprobs` over shard i of n of a table of prompts (see `read_prompts`); `settings` are its own.

    Shards are neighbouring rows, because neighbours share prefixes. With one store for all, a last run without `shard`
    computes what is missing and returns the whole table.

    Raises JudgeError if there is no such shard, and as `label_logprobs`.
    """
    part, parts = shard
    if not 1 <= part <= parts:
        raise JudgeError(f"there is no shard {part}/{parts}", hint="give i/n with i from 1 to n")
    rows = table.iloc[len(table) * (part - 1) // parts : len(table) * part // parts]
    return judge.label_logprobs(rows["prompt"].tolist(), labels, items=rows["id"].tolist(), **settings)


def _queries(prompt: Rendered, answer: list[tuple[int, ...]]) -> list[Query]:
    """The prompt, and the prompt with all but the last token of each longer label: the leaves of its prefix tree."""
    stems = dict.fromkeys([(), *(ids[:-1] for ids in answer)])
    return [Query(prompt.ids + stem, len(stem) + 1) for stem in stems]


def _value(
    answer: list[tuple[int, ...]], rows: dict[tuple[int, ...], list[Row]], column: dict[int, int]
) -> dict[str, Any]:
    first = rows[()][0]
    logp = [
        sum(float(row.logits[column[token]]) - row.logsumexp for row, token in zip(rows[ids[:-1]], ids, strict=True))
        for ids in answer
    ]
    logits = [float(first.logits[column[ids[0]]]) for ids in answer]
    top = {"top_ids": list(first.top_ids), "top_logits": [float(x) for x in first.top_logits]}
    return {"logp": logp, "logits": logits, "logsumexp": first.logsumexp, **top}


def _mass(logp: list[float], answer: list[tuple[int, ...]]) -> float:
    return float(np.exp([logp[index] for index in without_extensions(answer)]).sum())
