"""The executor: packs of a plan become forwards of a Hugging Face model, on CPU and on CUDA by the same code.

The model's own code runs unchanged: a pack of the walk is one row, with a mask that shows each token its own path only,
and the path that is open between two packs stays in the model's key-value cache.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from torch.nn.utils.rnn import pad_sequence

from reprolib.inference import JudgeError
from reprolib.inference.plan import Query, padded, shared

Ids = tuple[int, ...]
Tensor = torch.Tensor
Done = Iterator[tuple[int, Any]]
_CAUSAL: Any = transformers.AutoModelForCausalLM
_SETTINGS: Any = transformers.GenerationConfig
_TOP = 20  # most likely next tokens kept with each row
_LEAST_PACK = 128  # tokens; a forward that does not fit in memory at this size will not fit at a smaller one
PACK = {"cpu": 512, "cuda": 4096}  # CPU: measured, activations stay in the cache; GPU: enough to fill it
_BY_LENGTH = "its position embedding depends on the length of the whole prompt"
MOST_ROWS = 64  # prompts of a batch in which nothing is shared


class Row(NamedTuple):
    """What is read at one position: log-sum-exp of the next-token logits, logits of the ids wanted, the top tokens."""

    logsumexp: float
    logits: dict[int, float]
    top_ids: list[int]
    top_logits: list[float]


def load_model(folder: Path, *, dtype: str, device: str) -> Any:
    """A causal language model from a folder of safetensors, with a head of float32; JudgeError if it cannot be."""
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise JudgeError(f"device is {device!r}, but torch sees no CUDA device here", hint="give device='cpu'")
    safe = {"use_safetensors": True, "trust_remote_code": False, "local_files_only": True}
    try:
        model = _CAUSAL.from_pretrained(folder, dtype=getattr(torch, dtype), **safe).to(device).eval()
    except (ValueError, KeyError, OSError) as error:
        raise JudgeError(f"{folder} cannot be loaded: {error}", hint="a decoder-only model is needed") from error
    if torch.finfo(model.dtype).bits == 16:  # of its own type, logits near 20 would come in steps of an eighth
        head = copy.deepcopy(model.get_output_embeddings()).float()
        head.register_forward_pre_hook(lambda _module, inputs: (inputs[0].float(),))
        model.set_output_embeddings(head)
    return model


def dequantise(gguf: Path, folder: Path, *, dtype: str) -> None:
    """Write a GGUF model and its tokenizer as one safetensors file, dequantised to `dtype`."""
    where: dict[str, Any] = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    plain = transformers.GgufConfig(gguf_file=gguf.name, dequantize=True)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
        model = _CAUSAL.from_pretrained(**where, dtype=torch.float32, quantization_config=plain)
    except (ValueError, KeyError, RuntimeError) as error:
        hint = "transformers must know its architecture"
        raise JudgeError(f"{gguf.name} cannot be read: {error}", hint=hint) from error
    tokenizer.save_pretrained(folder)
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size="1TB")


def describe(folder: Path) -> tuple[int, str]:
    """Weights of the linear layers without the head, and `why_not_shared`, from the configuration alone."""
    with torch.device("meta"):
        model = _CAUSAL.from_config(transformers.AutoConfig.from_pretrained(folder, local_files_only=True))
    linear = (part for part in model.modules() if isinstance(part, torch.nn.Linear))
    head = model.get_output_embeddings()
    return sum(part.weight.numel() for part in linear if part is not head), why_not_shared(model)


def why_not_shared(model: Any) -> str:
    """Why this model must compute each prompt whole; empty if it need not."""
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    maskable = getattr(model, "_supports_attention_backend", False) and config._attn_implementation == "sdpa"
    window = getattr(config, "sliding_window", None) or getattr(config, "attention_chunk_size", None)
    reasons = {
        _BY_LENGTH: "longrope" in str(getattr(config, "rope_parameters", "")),
        "it has layers without full attention": kinds or getattr(model, "_is_stateful", False),
        "its attention has a window": window,
        "its attention takes no mask of our own": not maskable,
    }
    return next((why for why, holds in reasons.items() if holds), "")


class TorchEngine:
    """Reads next-token logits and generates. `plain` says why prefixes are not shared, or is empty.

    `pack_tokens`: most tokens in one forward, halved when memory runs out; `computed`: tokens that the model has seen.
    """

    def __init__(self, model: Any, *, vocabulary: int, pack_tokens: int | None = None) -> None:
        self.model, self.vocabulary, self.computed = model, vocabulary, 0
        self.device = next(model.parameters()).device
        self.pack_tokens = pack_tokens or PACK.get(self.device.type, PACK["cpu"])
        self.plain = why_not_shared(model)
        # What a model ships in its generation_config stays visible here, and out of our sampling.
        self.shipped_generation: dict[str, Any] = model.generation_config.to_diff_dict()
        end = model.generation_config.eos_token_id
        self.stop: list[int] = end if isinstance(end, list) else [] if end is None else [end]
        model.generation_config = _SETTINGS()
        model.get_input_embeddings().register_forward_pre_hook(self._count)

    def read(self, queries: Sequence[Query], wanted: Sequence[int]) -> Iterator[tuple[int, list[Row]]]:
        """Yield each query's index and the rows it reads, as soon as the forward that completes it is done.

        Rows hold the logits of the ids `wanted`. JudgeError: no memory for the smallest forward, or counts that differ.
        """
        read = self._read_padded if self.plain else self._read_shared
        return self._until_done(len(queries), lambda left: read([queries[i] for i in left], list(wanted)))

    def generate(
        self, prompts: Sequence[Ids], seeds: Sequence[Sequence[int]], *, max_new_tokens: int, temperature: float = 0.0,
        top_p: float = 1.0, repetition_penalty: float = 1.0, allowed: Callable[[Ids], list[int]] | None = None,
    ) -> Iterator[tuple[int, Ids]]:  # fmt: skip
        """Yield each prompt's index and the ids after it, a stop token included; each row draws from its own seed.

        `allowed` maps the ids written so far to those that may come next (default: all).
        """
        pad, width = (self.stop or [0])[0], self.model.get_output_embeddings().weight.shape[0]
        # Greedy for transformers: drawing is our last logits processor, which leaves only one possible choice.
        fixed: dict[str, Any] = {"do_sample": False, "eos_token_id": self.stop or None, "pad_token_id": pad}
        fixed |= {"max_new_tokens": max_new_tokens, "repetition_penalty": repetition_penalty}
        fixed |= {"suppress_tokens": list(range(self.vocabulary, width)) or None}
        warpers: list[Any] = [transformers.TemperatureLogitsWarper(temperature)] if temperature else []
        warpers += [transformers.TopPLogitsWarper(top_p)] if temperature and top_p < 1 else []
        most = MOST_ROWS if repetition_penalty == 1 else 1  # it would punish padding, too

        def write(left: list[int]) -> Iterator[tuple[int, Ids]]:
            # A step of generation computes one token a row, so many more rows fit than in a forward of whole prompts.
            lengths = [len(prompts[i]) + max_new_tokens for i in left]
            for batch in padded(lengths, pack_tokens=40 * self.pack_tokens, most=most):
                rows = [left[at] for at in batch]
                ids, mask = self._pad([prompts[i] for i in rows], "left", pad)
                draw = [_seeded_draw([seeds[i] for i in rows])] if temperature else []
                how: dict[str, Any] = {"generation_config": _SETTINGS(**fixed), "logits_processor": [*warpers, *draw]}
                if allowed:
                    start = ids.shape[1]
                    how["prefix_allowed_tokens_fn"] = lambda _, sent, n=start: allowed(tuple(sent[n:].tolist()))
                out = self.model.generate(ids, attention_mask=mask, **how)
                for at, row in zip(batch, out[:, ids.shape[1] :].tolist(), strict=True):
                    end = next((n for n, token in enumerate(row) if token in self.stop), len(row))
                    yield at, tuple(row[: end + 1])

        return self._until_done(len(prompts), write)

    def _until_done(self, count: int, run: Callable[[list[int]], Done]) -> Done:
        """Yield what `run` yields for the indices that are left; go on with smaller forwards when memory runs out."""
        left = list(range(count))
        while left:
            done: set[int] = set()
            try:
                for at, value in run(left):
                    done.add(at)
                    yield left[at], value
            except RuntimeError as error:
                if not (isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)):
                    raise
                if self.pack_tokens // 2 < _LEAST_PACK:
                    hint = "finished rows are kept; use a smaller model, a shorter prompt or a device with more memory"
                    raise JudgeError(f"out of memory with {self.pack_tokens} tokens in a forward", hint=hint) from error
                self.pack_tokens //= 2
                torch.cuda.empty_cache()
            left = [index for at, index in enumerate(left) if at not in done]

    def _read_shared(self, queries: list[Query], wanted: list[int]) -> Iterator[tuple[int, list[Row]]]:
        plan = shared(queries)
        tokens, depths, ends = (torch.tensor(column, device=self.device) for column in plan[:3])
        waiting = sorted(range(len(queries)), key=lambda at: -plan.reads[at][-1])  # for the last place they read
        places, rows = {place for reads in plan.reads for place in reads}, dict[int, Row]()
        cache: Any = transformers.DynamicCache()
        keys = tokens[:0]  # places in the cache, in its order
        for start in range(0, len(plan.tokens), self.pack_tokens):
            own = torch.arange(start, min(start + self.pack_tokens, len(plan.tokens)), device=self.device)
            still = ends[keys] > start
            for layer in cache.layers:
                layer.keys, layer.values = layer.keys[:, :, still], layer.values[:, :, still]
            keys = torch.cat([keys[still], own])
            mask = (keys <= own[:, None]) & (own[:, None] < ends[keys])
            here = [place for place in own.tolist() if place in places]
            inputs = {"position_ids": depths[None, own], "attention_mask": mask[None, None], "cache": cache}
            read = self._forward(tokens[None, own], [(0, place - start) for place in here], wanted, **inputs)
            rows.update(zip(here, read, strict=True))
            while waiting and plan.reads[waiting[-1]][-1] in rows:
                at = waiting.pop()
                yield at, [rows[place] for place in plan.reads[at]]

    def _read_padded(self, queries: list[Query], wanted: list[int]) -> Iterator[tuple[int, list[Row]]]:
        """Right padding: what stands after a row cannot touch it in a causal model of any kind."""
        lengths = [len(query.ids) for query in queries]
        most = 1 if self.plain == _BY_LENGTH else MOST_ROWS
        for batch in padded(lengths, pack_tokens=self.pack_tokens, most=most):
            ids, mask = self._pad([queries[at].ids for at in batch], "right", 0)
            cells = [(row, p) for row, at in enumerate(batch) for p in range(lengths[at])[-queries[at].read :]]
            rows = iter(self._forward(ids, cells, wanted, attention_mask=mask, use_cache=False))
            for at in batch:
                yield at, [next(rows) for _ in range(queries[at].read)]

    def _pad(self, rows: list[Ids], side: str, value: int) -> tuple[Tensor, Tensor]:
        """Ids and mask, (rows, longest)."""
        how: Any = {"batch_first": True, "padding_side": side}
        ids = pad_sequence([torch.tensor(row) for row in rows], padding_value=value, **how)
        return ids.to(self.device), pad_sequence([torch.ones(len(row)).long() for row in rows], **how).to(self.device)

    @torch.inference_mode()
    def _forward(self, ids: Tensor, cells: list[tuple[int, int]], wanted: list[int], **inputs: Any) -> list[Row]:
        """Rows at `cells`, (batch row, position); the head sees these positions only."""
        planned = self.computed + ids.numel()
        positions, column = np.unique([position for _, position in cells], return_inverse=True)
        keep = torch.tensor(positions, dtype=torch.long, device=self.device)
        logits = self.model(input_ids=ids, logits_to_keep=keep, **inputs).logits
        if self.computed != planned:
            raise JudgeError(f"planned {planned} tokens but the model saw {self.computed}", hint="report this as a bug")
        # Rows of the head beyond the tokenizer's vocabulary mean nothing: two models of a family pad differently.
        logits = logits[[row for row, _ in cells], column.tolist(), : self.vocabulary]
        logits = logits if logits.dtype == torch.float64 else logits.float()
        top = logits.topk(min(_TOP, logits.shape[1]))
        columns = (logits.logsumexp(-1), logits[:, wanted], top.indices, top.values)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return [Row(total, dict(zip(wanted, labels, strict=True)), *best) for total, labels, *best in rows]

    def _count(self, _module: Any, inputs: tuple[Tensor, ...]) -> None:
        self.computed += inputs[0].numel()


def _seeded_draw(seeds: Sequence[Sequence[int]]) -> Callable[[Tensor, Tensor], Tensor]:
    """Draws each row's next token with that row's own generator: all other tokens get probability 0."""
    generators = [np.random.default_rng(seed) for seed in seeds]

    def draw(_ids: Tensor, scores: Tensor) -> Tensor:
        mass = scores.double().softmax(-1).cumsum(-1)
        draws = torch.tensor([[g.random()] for g in generators], dtype=mass.dtype, device=mass.device)
        chosen = torch.searchsorted(mass, draws * mass[:, -1:], right=True)
        return torch.full_like(scores, -torch.inf).scatter_(1, chosen, 0.0)

    return draw
