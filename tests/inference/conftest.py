"""A judge that needs no weights: a random model of a few thousand parameters and a tokenizer trained on one page."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from reprolib.inference.judge import Judge
from reprolib.inference.tokens import Tokens
from reprolib.inference.torch_judge import TorchEngine
from reprolib.inference.weights import Weights

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
PAGE = """Which of the two answers is better, A or B? The bus leaves at ten, and the train at eleven or twelve.
Give a score from 1 to 5 or from 2 to 6. The summary of the article is short, and the article is long."""


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE of some 400 tokens, a chat template that writes BOS, and a raw text that gets one."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    special = ["<bos>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        [PAGE] * 3, trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet)
    )
    return PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<bos>", eos_token="<|end|>", chat_template=TEMPLATE)


@pytest.fixture(scope="session")
def make_model() -> Callable[..., Any]:
    """Makes a random causal model in float64; by default a small Llama with grouped key heads."""

    def make(kind: Any = LlamaForCausalLM, config: Any = LlamaConfig, **changes: Any) -> Any:
        torch.manual_seed(0)
        sizes = {"vocab_size": 420, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
        tokens = {"eos_token_id": 1, "bos_token_id": 0, "pad_token_id": 1, "initializer_range": 0.3}
        return kind(config(**sizes | heads | tokens | changes)).double().eval()

    return make


@pytest.fixture
def make_judge(
    tokenizer: PreTrainedTokenizerFast, make_model: Callable[..., Any], tmp_path: Path
) -> Callable[..., Judge]:
    """Makes a judge of a toy model; each one counts as the same weights."""

    def make(model: Any = None, *, digest: str = "toy", dtype: str = "float64", pack_tokens: int = 64) -> Judge:
        model = model or make_model()
        (tmp_path / "config.json").write_text(model.config.to_json_string())
        tokens = Tokens(tokenizer)
        weights = Weights("toy", tmp_path, digest, dtype, "random")

        class Toy(Judge):
            @cached_property
            def engine(self) -> TorchEngine:
                return TorchEngine(model, vocabulary=len(tokens.tokenizer), pack_tokens=pack_tokens)

        return Toy(weights, tokens)

    return make


@pytest.fixture(scope="session")
def toy_folder(
    tokenizer: PreTrainedTokenizerFast, make_model: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder as save_pretrained writes it: the toy model in float32 and its tokenizer."""
    folder = tmp_path_factory.mktemp("toy")
    make_model().float().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def forest() -> list[str]:
    """64 prompts of 3 articles, some 5 summaries and 2 ranges, in random order: prefixes of every length are shared."""
    rng = random.Random(7)
    words = PAGE.split()
    articles = [" ".join(rng.choices(words, k=rng.randrange(10, 25))) for _ in range(3)]
    out = []
    for article in articles:
        for _ in range(11):
            summary = " ".join(rng.choices(words, k=rng.randrange(1, 9)))
            out += [f"Judge. {article}\nSummary: {summary}\nScore from {a} to {a + 4}:" for a in (1, 2)]
    rng.shuffle(out)
    return out[:64]
