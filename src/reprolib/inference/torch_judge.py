"""The executor: packs of a plan become forwards of a Hugging Face model, on CPU and on CUDA by the same code.

The model's own code runs unchanged, but for two hooks: an attention function that attends block by block (see `plan`)
and joins the parts of a query exactly, by log-sum-exp; and one that gives the head only the rows that somebody reads.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import transformers
from torch.nn.utils.rnn import pad_sequence
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from reprolib.inference import JudgeError
from reprolib.inference.plan import Pack, Query, Shape, padded, shared

Array = npt.NDArray[np.float64]
Ids = tuple[int, ...]
Tensor = torch.Tensor
_CAUSAL: Any = transformers.AutoModelForCausalLM
_SETTINGS: Any = transformers.GenerationConfig
_ATTENTION = "reprolib_blocks"
_TOP = 20  # most likely next tokens kept with each row
_LEAST_PACK = 128  # tokens; a forward that does not fit in memory at this size will not fit at a smaller one
PACK = {"cpu": 512, "cuda": 16384}  # CPU: measured, activations stay in the cache; GPU: enough to fill it
_BY_LENGTH = "its position embedding depends on the length of the whole prompt"
_MOST_ROWS = 64  # prompts generated together


class Row(NamedTuple):
    """What is read at one position: log-sum-exp of the next-token logits, logits of the ids wanted, the top tokens."""

    logsumexp: float
    logits: Array
    top_ids: tuple[int, ...]
    top_logits: Array


class Sampling(NamedTuple):
    """Every setting that shapes a generated text. `temperature` 0 is greedy; 1.0 switches the other two off."""

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    repetition_penalty: float = 1.0


def load_model(folder: Path, *, dtype: str, device: str) -> Any:
    """A causal language model from a folder of safetensors, with a head of float32; JudgeError if it cannot be."""
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise JudgeError(f"device is {device!r}, but torch sees no CUDA device here", hint="give device='cpu'")
    safe = {"use_safetensors": True, "trust_remote_code": False, "local_files_only": True}
    try:
        model = _CAUSAL.from_pretrained(folder, dtype=getattr(torch, dtype), **safe).to(device).eval()
    except (ValueError, KeyError, OSError, RuntimeError) as error:
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


def describe(folder: Path) -> tuple[Shape, str]:
    """A model's sizes and why it cannot share prefixes ("" if it can), from its configuration: no weight is read."""
    with torch.device("meta"):
        model = _CAUSAL.from_config(transformers.AutoConfig.from_pretrained(folder, local_files_only=True))
    return _shape(model), why_not_shared(model)


def why_not_shared(model: Any) -> str:
    """Why this model must compute each prompt whole; empty if it need not."""
    config = model.config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = {part.get("rope_type") for part in (rope, *rope.values()) if isinstance(part, dict)}
    if getattr(model, "_is_stateful", False) or set(getattr(config, "layer_types", None) or ()) - {"full_attention"}:
        return "it has layers without full attention"
    if getattr(config, "sliding_window", None) or getattr(config, "attention_chunk_size", None):
        return "its attention has a window"
    if kinds & {"dynamic", "longrope"}:
        return _BY_LENGTH
    if getattr(config, "attn_logit_softcapping", None) or not getattr(model, "_supports_attention_backend", False):
        return "its attention cannot be replaced"
    return ""


class TorchEngine:
    """Reads next-token logits and generates. `plain` says why prefixes are not shared, or is empty.

    `pack_tokens`: most tokens in one forward, halved when memory runs out; `computed`: tokens that the model has seen.
    """

    def __init__(self, model: Any, *, vocabulary: int, pack_tokens: int | None = None) -> None:
        self.model, self.vocabulary = model, vocabulary
        self.device = next(model.parameters()).device
        self.pack_tokens = pack_tokens or PACK.get(self.device.type, PACK["cpu"])
        self.plain = why_not_shared(model)
        self.shape = _shape(model)
        self.computed = 0
        # What a model ships in its generation_config stays visible here, and out of our sampling.
        self.shipped_generation: dict[str, Any] = model.generation_config.to_diff_dict()
        end = model.generation_config.eos_token_id
        self.stop: list[int] = end if isinstance(end, list) else [] if end is None else [end]
        model.generation_config = _SETTINGS()
        self._rows: tuple[list[int], list[int]] | None = None
        model.get_output_embeddings().register_forward_pre_hook(self._only_rows)
        model.get_input_embeddings().register_forward_pre_hook(self._count)
        if not self.plain:
            model.set_attn_implementation(_ATTENTION)

    def read(self, queries: Sequence[Query], wanted: Sequence[int]) -> Iterator[tuple[int, list[Row]]]:
        """Yield each query's index and the rows it reads, as soon as the forward that completes it is done.

        Rows hold the logits of the ids `wanted`. JudgeError: no memory for the smallest forward, or counts that differ.
        """
        ids = torch.tensor(list(wanted), dtype=torch.long, device=self.device)
        read = self._read_padded if self.plain else self._read_shared
        return self._until_done(len(queries), lambda left: read([queries[i] for i in left], ids))

    def generate(
        self, prompts: Sequence[Ids], sampling: Sampling, seeds: Sequence[Sequence[int]]
    ) -> Iterator[tuple[int, Ids]]:
        """Yield each prompt's index and the ids after it, a stop token included; each row draws from its own seed."""

        def write(left: list[int]) -> Iterator[tuple[int, Ids]]:
            # A step of generation computes one token a row, so many more rows fit than in a forward of whole prompts.
            lengths, room = [len(prompts[i]) + sampling.max_new_tokens for i in left], 16 * self.pack_tokens
            equal = sampling.repetition_penalty != 1  # it would punish padding, too
            for batch in padded(lengths, pack_tokens=room, most=_MOST_ROWS, equal=equal):
                rows = [left[at] for at in batch]
                texts = self._generate([prompts[i] for i in rows], sampling, [seeds[i] for i in rows])
                yield from zip(batch, texts, strict=True)

        return self._until_done(len(prompts), write)

    def _until_done(
        self, count: int, run: Callable[[list[int]], Iterator[tuple[int, Any]]]
    ) -> Iterator[tuple[int, Any]]:
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
                if self.device.type == "cuda":
                    torch.cuda.empty_cache()
            left = [index for at, index in enumerate(left) if at not in done]

    def _read_shared(self, queries: list[Query], wanted: Tensor) -> Iterator[tuple[int, list[Row]]]:
        plan = shared(queries, pack_tokens=self.pack_tokens)
        readers = defaultdict[int, list[int]](list)  # a query is complete with the last place it reads
        for at, reads in enumerate(plan.reads):
            readers[reads[-1]].append(at)
        places = {place for reads in plan.reads for place in reads}
        rows: dict[int, Row] = {}
        walk = torch.tensor([plan.tokens, plan.depths])[:, None]
        attention = _BlockAttention(self.shape.layers, self.device)
        # Never looked at: a mask of four dimensions is what keeps transformers from making one of its own.
        mask = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=self.device)
        for pack in plan.packs:
            here = [place for place in range(pack.start, pack.stop) if place in places]
            cells = [(0, place - pack.start) for place in here]
            ids, depths = walk[:, :, pack.start : pack.stop].to(self.device)
            with attention.over(pack):
                read = self._forward(ids, cells, wanted, position_ids=depths, attention_mask=mask, blocks=attention)
            rows.update(zip(here, read, strict=True))
            for at in (at for place in here for at in readers[place]):
                yield at, [rows[place] for place in plan.reads[at]]

    def _read_padded(self, queries: list[Query], wanted: Tensor) -> Iterator[tuple[int, list[Row]]]:
        """Right padding: what stands after a row cannot touch it in a causal model of any kind."""
        lengths, equal = [len(query.ids) for query in queries], self.plain == _BY_LENGTH
        for batch in padded(lengths, pack_tokens=self.pack_tokens, equal=equal):
            self._forget_lengths()
            rows = [torch.tensor(queries[at].ids) for at in batch]
            ids = pad_sequence(rows, batch_first=True).to(self.device)
            mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True).to(self.device)
            cells = [(row, p) for row, at in enumerate(batch) for p in range(lengths[at])[-queries[at].read :]]
            read = iter(self._forward(ids, cells, wanted, attention_mask=mask))
            for at in batch:
                yield at, list(islice(read, queries[at].read))

    def _forget_lengths(self) -> None:
        """Dynamic RoPE remembers the longest input it saw, and would treat shorter ones by it."""
        for module in self.model.modules():
            if hasattr(module, "original_inv_freq"):
                module.inv_freq, module.max_seq_len_cached = module.original_inv_freq, module.original_max_seq_len

    @torch.inference_mode()
    def _forward(self, ids: Tensor, cells: list[tuple[int, int]], wanted: Tensor, **inputs: Any) -> list[Row]:
        """Rows at `cells`, (batch row, position); the head is not run if there are none to read."""
        before, self._rows = self.computed, ([row for row, _ in cells], [position for _, position in cells])
        try:
            logits = self.model(input_ids=ids, use_cache=False, **inputs).logits[0]
        finally:
            self._rows = None
        if self.computed - before != ids.numel():
            message = f"planned {ids.numel()} tokens but the model saw {self.computed - before}"
            raise JudgeError(message, hint="report this as a bug of the executor")
        # Rows of the head beyond the tokenizer's vocabulary mean nothing: two models of a family pad differently.
        logits = logits[:, : self.vocabulary]
        logits = logits if logits.dtype == torch.float64 else logits.float()
        top = logits.topk(min(_TOP, logits.shape[1]))
        columns = (logits.logsumexp(-1), logits[:, wanted], top.indices, top.values)
        sums, labels, top_ids, top_logits = (column.cpu().double().numpy() for column in columns)
        return [Row(float(s), labels[i], tuple(int(t) for t in top_ids[i]), top_logits[i]) for i, s in enumerate(sums)]

    @torch.inference_mode()
    def _generate(self, prompts: list[Ids], sampling: Sampling, seeds: list[Sequence[int]]) -> list[Ids]:
        pad = self.stop[0] if self.stop else 0
        longest = max(len(prompt) for prompt in prompts)
        ids = torch.tensor([(pad,) * (longest - len(prompt)) + prompt for prompt in prompts], device=self.device)
        mask = torch.tensor([(0,) * (longest - len(prompt)) + (1,) * len(prompt) for prompt in prompts])
        steps = transformers.LogitsProcessorList()
        if sampling.temperature > 0:
            steps.append(transformers.TemperatureLogitsWarper(sampling.temperature))
            if sampling.top_p < 1:
                steps.append(transformers.TopPLogitsWarper(sampling.top_p))
            steps.append(_seeded_draw(seeds))
        # Greedy for transformers: drawing is our last logits processor, which leaves only one possible choice.
        fixed = {"do_sample": False, "eos_token_id": self.stop or None, "pad_token_id": pad}
        fixed["suppress_tokens"] = list(range(self.vocabulary, self.shape.vocabulary)) or None
        chosen = {"max_new_tokens": sampling.max_new_tokens, "repetition_penalty": sampling.repetition_penalty}
        settings = _SETTINGS(**fixed, **chosen)
        inputs = {"attention_mask": mask.to(self.device), "generation_config": settings, "logits_processor": steps}
        out = self.model.generate(ids, **inputs)[:, longest:].tolist()
        ends = [next((at for at, token in enumerate(row) if token in self.stop), len(row)) for row in out]
        return [tuple(row[: end + 1]) for row, end in zip(out, ends, strict=True)]

    def _only_rows(self, _module: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        return (inputs[0][self._rows][None], *inputs[1:]) if self._rows else None

    def _count(self, _module: Any, inputs: tuple[Tensor, ...]) -> None:
        self.computed += inputs[0].numel()


class _BlockAttention:
    """Attention of one run: block by block within a pack, with the keys of the open path carried between packs."""

    def __init__(self, layers: int, device: torch.device) -> None:
        self._layers, self._device = layers, device
        self._path: dict[int, tuple[Tensor, ...]] = {}

    @contextmanager
    def over(self, pack: Pack) -> Iterator[None]:
        """Within the context, every layer of one forward calls this attention once."""
        self._pack, self._next = pack, dict[int, tuple[Tensor, ...]]()
        self._take = torch.tensor(pack.take, dtype=torch.long, device=self._device)
        yield
        if len(self._next) != self._layers:
            message = f"{len(self._next)} of {self._layers} layers used the shared attention"
            raise JudgeError(message, hint="this architecture is not supported; report it")
        self._path = self._next

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Query (1, heads, n, width), key and value (1, key heads, n, width) -> (1, n, heads, width)."""
        own, kept = (key, value), self._path.get(layer, (key[:, :, :0], value[:, :, :0]))
        exact = torch.float64 if query.dtype == torch.float64 else torch.float32
        out = torch.empty(query.shape, dtype=exact, device=query.device)
        lse = torch.empty(query.shape[:3], dtype=exact, device=query.device)
        for q0, q1, k0, k1, causal in self._pack.blocks:
            source, shift = (kept, 0) if k1 <= self._pack.kept else (own, self._pack.kept)
            keys, values = (tensor[:, :, k0 - shift : k1 - shift] for tensor in source)
            part, part_lse = _attend(query[:, :, q0:q1], keys, values, scale, causal=causal)
            here, here_lse = out[:, :, q0:q1], lse[:, :, q0:q1]
            if causal:  # comes first for every query, and covers each once
                here.copy_(part)
                here_lse.copy_(part_lse)
            else:
                here.lerp_(part.to(exact), torch.sigmoid(part_lse - here_lse)[..., None])
                here_lse.copy_(torch.logaddexp(here_lse, part_lse))
        parts = ((old[:, :, : self._pack.keep], new[:, :, self._take]) for old, new in zip(kept, own, strict=True))
        self._next[layer] = tuple(torch.cat(part, dim=2) for part in parts)
        return out.to(query.dtype).transpose(1, 2)


def _attend(query: Tensor, key: Tensor, value: Tensor, scale: float, *, causal: bool) -> tuple[Tensor, Tensor]:
    """Attention of one block, as scaled_dot_product_attention, and its scores' log-sum-exp, shape (1, heads, n)."""
    shape, groups = query.shape, query.shape[1] // key.shape[1]
    if not causal:  # heads that share a key head become further queries of it: larger products, nothing repeated
        query = query.reshape(1, key.shape[1], groups * shape[2], shape[3])
    elif query.device.type != "cpu":  # the CPU's operator groups heads itself
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    ops = torch.ops.aten
    if query.device.type == "cpu":
        out, lse = ops._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, causal, scale=scale)
    elif query.device.type == "cuda" and query.dtype != torch.float64:
        kernel = ops._scaled_dot_product_efficient_attention
        out, lse, *_ = kernel(query, key, value, None, True, 0.0, causal, scale=scale)
        lse = lse[:, :, : query.shape[2]]  # the kernel rounds the length up
    else:
        scores = query @ key.transpose(2, 3) * scale
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1), -torch.inf)
        lse = scores.logsumexp(-1)
        out = (scores - lse[..., None]).exp() @ value
    return out.reshape(shape), lse.reshape(shape[:3])


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    blocks: _BlockAttention | None = options.pop("blocks", None)
    if blocks is None:  # generation
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    if unknown := [name for name in ("softcap", "s_aux", "position_bias", "sliding_window") if options.get(name)]:
        raise JudgeError(f"the model's attention asks for {', '.join(unknown)}", hint="it must not share prefixes")
    return blocks(module.layer_idx, query, key, value, options["scaling"]), None


transformers.AttentionInterface.register(_ATTENTION, _attention)
transformers.AttentionMaskInterface.register(_ATTENTION, sdpa_mask)


def _seeded_draw(seeds: Sequence[Sequence[int]]) -> Callable[[Tensor, Tensor], Tensor]:
    """Draws each row's next token with that row's own generator: all other tokens get probability 0."""
    generators = [np.random.default_rng(seed) for seed in seeds]

    def draw(_ids: Tensor, scores: Tensor) -> Tensor:
        mass = scores.double().softmax(-1).cumsum(-1)
        draws = torch.tensor([[g.random()] for g in generators], dtype=mass.dtype, device=mass.device)
        chosen = torch.searchsorted(mass, draws * mass[:, -1:], right=True)
        return torch.full_like(scores, -torch.inf).scatter_(1, chosen, 0.0)

    return draw


def _shape(model: Any) -> Shape:
    config, head = model.config.get_text_config(), model.get_output_embeddings()
    heads, modules = config.num_attention_heads, (m for m in model.modules() if isinstance(m, torch.nn.Linear))
    linear = sum(module.weight.numel() for module in modules if module is not head)
    width = heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
    return Shape(linear, config.num_hidden_layers, width, config.hidden_size, head.weight.shape[0])
