"""Sharing must not change a number: every check compares with the model's own forward, one prompt at a time."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from scipy import stats

from reprolib.inference import JudgeError, weights
from reprolib.inference.judge import Judge, load_judge
from reprolib.inference.torch_judge import TorchEngine, load_model

LABELS = ["1", "2", " better", " 12"]  # of one and of several tokens
CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


def one_by_one(model: Any, judge: Judge, prompts: list[Any], labels: list[str]) -> np.ndarray:
    """Log-probabilities by definition: the chain rule over a forward of the whole string, nothing shared or padded."""
    rows = []
    for prompt in prompts:
        rendered = judge.tokens.render(prompt, item="x")
        row = []
        for label in labels:
            ids = judge.tokens.label(rendered, label, item="x")
            whole = torch.tensor([rendered.ids + ids[:-1]], device=model.device)
            with torch.inference_mode():
                logits = model(whole).logits[0, :, : len(judge.tokens.tokenizer)]
            logits = logits if logits.dtype == torch.float64 else logits.float()
            steps = logits.log_softmax(-1)[len(rendered.ids) - 1 :]
            row.append(float(sum(step[token] for step, token in zip(steps, ids, strict=True))))
        rows.append(row)
    return np.array(rows)


def scores(judge: Judge, prompts: list[Any], labels: list[str]) -> np.ndarray:
    return judge.label_logprobs(prompts, labels, min_mass=0)[[f"logp_{label}" for label in labels]].to_numpy()


@pytest.mark.parametrize("size", [1, 7, 64])
@pytest.mark.parametrize("pack_tokens", [16, 300, 10_000])
def test_sharing_equals_one_by_one_whatever_the_batch_and_the_pack(
    make_judge: Any, make_model: Any, forest: list[str], size: int, pack_tokens: int
) -> None:
    judge = make_judge(pack_tokens=pack_tokens)
    prompts = forest[: 7 if size == 1 else 64]
    got = np.concatenate([scores(judge, prompts[i : i + size], LABELS) for i in range(0, len(prompts), size)])
    assert not judge.engine.plain
    np.testing.assert_allclose(got, one_by_one(make_model(), judge, prompts, LABELS), atol=1e-9, rtol=0)


def test_shuffling_the_prompts_shuffles_the_rows(make_judge: Any, forest: list[str]) -> None:
    order = random.Random(3).sample(range(64), 64)
    judge = make_judge()
    straight, shuffled = scores(judge, forest, LABELS), scores(judge, [forest[i] for i in order], LABELS)
    np.testing.assert_allclose(shuffled, straight[order], atol=1e-12, rtol=0)


def test_the_model_sees_each_distinct_prefix_once_and_the_head_each_row_read(
    make_judge: Any, forest: list[str]
) -> None:
    judge = make_judge(pack_tokens=50)
    rows = 0

    def count(_module: Any, inputs: Any) -> None:
        nonlocal rows
        rows += inputs[0].shape[1]

    judge.engine.model.get_output_embeddings().register_forward_pre_hook(count)
    run = judge.label_logprobs(forest, ["1", "2"], min_mass=0).attrs["run"]
    ids = {judge.tokens.render(prompt, item="x").ids for prompt in forest}
    assert run["tokens_computed"] == len({seq[: n + 1] for seq in ids for n in range(len(seq))})
    assert rows == len(ids)


FALLBACKS = {
    "window": (transformers.MistralForCausalLM, transformers.MistralConfig, {"sliding_window": 8}),
    "mixed layers": (
        transformers.Gemma3ForCausalLM,
        transformers.Gemma3TextConfig,
        {
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "head_dim": 8,
        },
    ),
    "hybrid": (
        transformers.Lfm2ForCausalLM,
        transformers.Lfm2Config,
        {"layer_types": ["conv", "full_attention", "conv"], "conv_L_cache": 3},
    ),
    "position embedding": (
        transformers.LlamaForCausalLM,
        transformers.LlamaConfig,
        {
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "factor": 8.0,
                "short_factor": [1.0] * 4,
                "long_factor": [4.0] * 4,
                "original_max_position_embeddings": 32,
            },
        },
    ),
}


@pytest.mark.parametrize("kind", FALLBACKS)
def test_a_model_that_cannot_share_computes_prompts_whole_and_says_why(
    make_judge: Any, make_model: Any, forest: list[str], kind: str
) -> None:
    cls, config, changes = FALLBACKS[kind]
    judge = make_judge(make_model(cls, config, **changes), pack_tokens=400)
    got = scores(judge, forest[:12], ["1", "2"])
    assert judge.engine.plain
    fresh = (make_model(cls, config, **changes) for _ in range(12))
    expected = np.concatenate([one_by_one(next(fresh), judge, [p], ["1", "2"]) for p in forest[:12]])
    np.testing.assert_allclose(got, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("cls", "config"),
    [
        (transformers.Qwen2ForCausalLM, transformers.Qwen2Config),
        (transformers.Qwen3ForCausalLM, transformers.Qwen3Config),
        (transformers.MistralForCausalLM, transformers.MistralConfig),
    ],
)
def test_other_full_attention_models_share(
    make_judge: Any, make_model: Any, forest: list[str], cls: Any, config: Any
) -> None:
    changes = {"sliding_window": None, "head_dim": 8}
    judge = make_judge(make_model(cls, config, **changes))
    got = scores(judge, forest[:20], LABELS)
    assert not judge.engine.plain
    np.testing.assert_allclose(
        got, one_by_one(make_model(cls, config, **changes), judge, forest[:20], LABELS), atol=1e-9
    )


def test_raw_logits_and_top_tokens_are_those_of_the_model(make_judge: Any, make_model: Any) -> None:
    judge, prompt = make_judge(), "Score from 1 to 5:"
    row = judge.label_logprobs([prompt], ["1", "2"], min_mass=0).iloc[0]
    ids = judge.tokens.render(prompt, item="x").ids
    with torch.inference_mode():
        logits = make_model()(torch.tensor([ids])).logits[0, -1, : len(judge.tokens.tokenizer)].numpy()
    assert row["logsumexp"] == pytest.approx(np.logaddexp.reduce(logits), abs=1e-9)
    assert row["top_ids"] == list(np.argsort(-logits)[:20])
    assert row["logit_1"] == pytest.approx(logits[judge.tokens.tokenizer.convert_tokens_to_ids("1")], abs=1e-9)


def test_memory_running_out_halves_the_forward_and_keeps_the_numbers(make_judge: Any, forest: list[str]) -> None:
    expected = scores(make_judge(), forest, LABELS)
    judge = make_judge(pack_tokens=2048)
    judge.engine.model.get_input_embeddings().register_forward_pre_hook(_refuse_over(200))
    np.testing.assert_allclose(scores(judge, forest, LABELS), expected, atol=1e-9)
    assert judge.engine.pack_tokens < 2048


def test_memory_running_out_at_the_smallest_size_is_an_error_with_a_way_out(make_judge: Any, forest: list[str]) -> None:
    judge = make_judge(pack_tokens=2048)
    judge.engine.model.get_input_embeddings().register_forward_pre_hook(_refuse_over(10))
    with pytest.raises(JudgeError, match=r"out of memory with 128 tokens.*smaller model"):
        scores(judge, forest, LABELS)


def _refuse_over(tokens: int) -> Callable[..., None]:
    def refuse(_module: Any, inputs: Any) -> None:
        if inputs[0].numel() > tokens:
            raise torch.OutOfMemoryError("CUDA out of memory")

    return refuse


def test_a_text_may_be_longer_than_its_prompt(make_judge: Any) -> None:
    judge = make_judge()
    judge.engine.stop = []
    assert judge.generate(["A"], max_new_tokens=12)["n_new"].tolist() == [12]


def test_greedy_text_is_that_of_transformers_one_prompt_at_a_time(
    make_judge: Any, make_model: Any, forest: list[str]
) -> None:
    judge, model = make_judge(), make_model()
    got = judge.generate(forest[:9], max_new_tokens=6)
    for prompt, text in zip(forest[:9], got["text"], strict=True):
        ids = torch.tensor([judge.tokens.render(prompt, item="x").ids])
        out = model.generate(
            ids, max_new_tokens=6, do_sample=False, suppress_tokens=list(range(len(judge.tokens.tokenizer), 420))
        )
        assert text == judge.tokens.tokenizer.decode(out[0, ids.shape[1] :].tolist(), skip_special_tokens=True)


def test_a_drawn_text_depends_on_seed_and_prompt_and_not_on_the_batch(make_judge: Any, forest: list[str]) -> None:
    judge = make_judge()
    together = judge.generate(forest[:8], max_new_tokens=5, temperature=1.0, seed=4)["text"].tolist()
    alone = [judge.generate([p], max_new_tokens=5, temperature=1.0, seed=4)["text"][0] for p in reversed(forest[:8])]
    assert together == alone[::-1]
    assert together != judge.generate(forest[:8], max_new_tokens=5, temperature=1.0, seed=5)["text"].tolist()


def test_draws_follow_the_softmax_at_the_temperature_asked_for(make_model: Any) -> None:
    engine, prompt, n = TorchEngine(make_model(), vocabulary=420), (5, 6, 7), 3000
    engine.pack_tokens = 4000
    out = engine.generate([prompt] * n, [(seed,) for seed in range(n)], max_new_tokens=1, temperature=1.5)
    drawn = np.bincount([ids[0] for _, ids in out], minlength=420)
    with torch.inference_mode():
        expected = (make_model()(torch.tensor([prompt])).logits[0, -1] / 1.5).softmax(-1).numpy() * n
    common = expected > 5
    observed = np.append(drawn[common], drawn[~common].sum())
    assert stats.chisquare(observed, np.append(expected[common], expected[~common].sum())).pvalue > 0.001


def test_a_shipped_repetition_penalty_acts_only_if_asked_for(
    make_judge: Any, make_model: Any, forest: list[str]
) -> None:
    model = make_model()
    model.generation_config.repetition_penalty = 5.0
    judge, plain = make_judge(model), make_judge()
    texts = judge.generate(forest[:4], max_new_tokens=8)
    assert texts["text"].tolist() == plain.generate(forest[:4], max_new_tokens=8)["text"].tolist()
    assert texts.attrs["run"]["shipped_generation"]["repetition_penalty"] == 5.0
    assert (
        texts["text"].tolist() != judge.generate(forest[:4], max_new_tokens=8, repetition_penalty=5.0)["text"].tolist()
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_not_there_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(JudgeError, match="no CUDA device here; give device='cpu'"):
        load_model(tmp_path, dtype="float32", device="cuda")


def test_the_model_written_by_save_pretrained_loads_and_scores(make_model: Any, toy_folder: Path) -> None:
    judge = load_judge(str(toy_folder))
    assert judge.weights.dtype == "float32"
    expected = one_by_one(make_model().float(), judge, ["A or B?"], ["1"])
    np.testing.assert_allclose(scores(judge, ["A or B?"], ["1"]), expected, atol=1e-5)


@CUDA
def test_sharing_equals_one_by_one_on_cuda(make_judge: Any, make_model: Any, forest: list[str]) -> None:
    for dtype, bound in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
        judge = make_judge(make_model().to("cuda", dtype), pack_tokens=300)
        expected = one_by_one(make_model().to("cuda", dtype), judge, forest, LABELS)
        np.testing.assert_allclose(scores(judge, forest, LABELS), expected, atol=bound, rtol=0)


def padded_scores(model: Any, judge: Judge, prompts: list[Any], labels: list[str]) -> np.ndarray:
    """The usual way: a right-padded batch, the row of each prompt's last token."""
    rows = [judge.tokens.render(prompt, item="x") for prompt in prompts]
    longest = max(len(row.ids) for row in rows)
    ids = torch.tensor([row.ids + (0,) * (longest - len(row.ids)) for row in rows])
    mask = torch.tensor([(1,) * len(row.ids) + (0,) * (longest - len(row.ids)) for row in rows])
    with torch.inference_mode():
        logits = model(ids, attention_mask=mask).logits
    last = torch.stack(
        [logits[i, len(row.ids) - 1, : len(judge.tokens.tokenizer)].float() for i, row in enumerate(rows)]
    )
    columns = [judge.tokens.label(rows[0], label, item="x")[0] for label in labels]
    return last.log_softmax(-1)[:, columns].double().numpy()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["smollm2-135m", "qwen2.5-coder-0.5b"])
def test_on_a_real_fp32_model_sharing_is_within_1e_4_and_no_further_from_exact_than_padding(
    name: str, forest: list[str]
) -> None:
    if not weights.at_hand(name):
        pytest.skip(f"weights of {name} are not in {weights.cache_folder()}")
    judge = load_judge(name, dtype="float32")
    prompts = [[{"role": "user", "content": f"{prompt} Answer with one number."}] for prompt in sorted(forest)[:16]]
    labels = ["1", "2", "3"]
    got = {size: _in_slices(judge, prompts, labels, size) for size in (1, 7, 16)}
    model = judge.engine.model
    model.set_attn_implementation("sdpa")  # the same weights by transformers' own path
    alone, batch = one_by_one(model, judge, prompts, labels), padded_scores(model, judge, prompts, labels)
    exact = one_by_one(model.double(), judge, prompts, labels)
    padding = np.abs(batch - exact).max()
    for size, logp in got.items():
        apart, error = np.abs(logp - alone).max(), np.abs(logp - exact).max()
        print(
            f"{name}, slices of {size}: from one-by-one {apart:.1e}, from float64 {error:.1e} (padding {padding:.1e})"
        )
        assert apart <= 1e-4
        assert error <= 2 * padding


def _in_slices(judge: Judge, prompts: list[Any], labels: list[str], size: int) -> np.ndarray:
    return np.concatenate([scores(judge, prompts[i : i + size], labels) for i in range(0, len(prompts), size)])
