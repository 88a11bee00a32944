"""Tokens computed and time of the judge, beside the usual ways to do the same work: see README.md.

Times are CPU-seconds of one thread: they depend little on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MODEL = "qwen2.5-coder-0.5b"
DATA = "neulab/BARTScore/248f511cb34ae3753fc81f7d7a945de5bfe33458/SUM/SummEval/data.pkl"
LABELS = [str(n) for n in range(1, 7)]
RANGES = ((1, 5), (2, 6))
BEFORE = """You will read a news article and then one summary of it. Your task is to judge a single property of the
summary: its coherence.

A coherent summary is well organised. Its sentences belong to one another: each one builds on what stands before it,
things that are referred to have been introduced, the order of events can be followed, and the whole reads as one text
about one subject and not as a heap of facts. Whether the facts are right, how much of the article is covered and how
polished the language is are other properties, which do not count here.

The score is a whole number from {low} to {high}, where {low} means that the sentences have nothing to do with one
another and {high} means that the summary could not be organised better.

Work in three steps. First read the article and find its subject and its main points. Then read the summary and follow
how it moves from sentence to sentence. Then choose the score from {low} to {high} that fits best.

Article:
{article}

Summary:
{summary}

Answer with the score for coherence only, a whole number from {low} to {high}."""


class _DataOnly(pickle.Unpickler):
    """The released file is a pickle of dicts, lists, strings and numbers; anything else in it is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is not plain data")


def prompts(count: int) -> list[list[dict[str, str]]]:
    """The first `count` chat prompts of 100 articles x 16 summaries x 2 ranges, the range before the article."""
    mirror = os.environ.get("REPROLIB_MIRROR") or sys.exit("set REPROLIB_MIRROR to a folder that holds " + DATA)
    with Path(mirror, DATA).open("rb") as file:
        data = list(_DataOnly(file).load().values())[: -(-count // 32)]
    every = [
        [{"role": "user", "content": BEFORE.format(low=low, high=high, article=item["src"], summary=text["sys_summ"])}]
        for item in data
        for text in item["sys_summs"].values()
        for low, high in RANGES
    ]
    return every[:count]


def ids_of(judge: Any, count: int) -> list[tuple[int, ...]]:
    return [judge.tokens.render(prompt, item=str(i)).ids for i, prompt in enumerate(prompts(count))]


def label_ids(judge: Any) -> list[int]:
    rendered = judge.tokens.render(prompts(1)[0], item="0")
    return [judge.tokens.label(rendered, label, item="0")[0] for label in LABELS]


def peak(dtype: Any) -> float:
    """Measured matrix-multiply peak, FLOP/s: best of ten products of 2048 x 2048 matrices."""
    import torch

    a, b = torch.randn(2, 2048, 2048).to(dtype)
    times = []
    for _ in range(10):
        start = time.process_time()
        a @ b
        times.append(time.process_time() - start)
    return 2 * 2048**3 / min(times)


def linear_seconds(model: Any) -> Callable[[], float]:
    """Count the time inside linear layers other than the head; the function returned tells the sum."""
    import torch

    spent, started = [0.0], [0.0]
    head = model.get_output_embeddings()
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and module is not head:
            module.register_forward_pre_hook(lambda *_: started.__setitem__(0, time.process_time()))
            module.register_forward_hook(lambda *_: spent.__setitem__(0, spent[0] + time.process_time() - started[0]))
    return lambda: spent[0]


def shared(judge: Any, count: int) -> dict[str, Any]:
    import torch

    from reprolib.inference.torch_judge import describe

    engine, dtype = judge.engine, getattr(torch, judge.weights.dtype)
    cost = judge.cost(prompts(count), LABELS)
    judge.label_logprobs(prompts(2), LABELS)
    before = peak(dtype)
    start = time.process_time()
    frame = judge.label_logprobs(prompts(count), LABELS)
    seconds = time.process_time() - start
    rows = frame[[f"logp_{label}" for label in LABELS]].to_numpy().tolist()
    top = max(before, peak(dtype))
    inside, tokens = linear_seconds(engine.model), frame.attrs["run"]["tokens_computed"]
    few = judge.label_logprobs(prompts(32), LABELS).attrs["run"]["tokens_computed"]
    rate = 2 * describe(judge.weights.folder)[0] / top
    return {
        "rows": rows,
        "seconds": seconds,
        "tokens": tokens,
        "note": f"peak {top / 1e9:.0f} GFLOP/s; linear layers alone at {rate * few / inside():.0%} of it, "
        f"whole run at {rate * tokens / seconds:.0%}; in-label mass {frame['in_label_mass'].median():.2f}; {cost}",
    }


def one_by_one(judge: Any, count: int) -> dict[str, Any]:
    import torch

    model, ids = _plain(judge), ids_of(judge, count)
    start, rows = time.process_time(), []
    for sequence in ids:
        out = model.generate(
            torch.tensor([sequence]),
            attention_mask=torch.ones(1, len(sequence), dtype=torch.long),
            max_new_tokens=1,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
            pad_token_id=0,
        )
        rows.append(_logp(out.logits[0], judge))
    return _result(start, torch.cat(rows), sum(map(len, ids)))


def padded(judge: Any, count: int, *, size: int = 8) -> dict[str, Any]:
    """Sorted by length, right-padded; hidden states everywhere, the head on the last row of each prompt only."""
    import torch

    model, ids = _plain(judge), ids_of(judge, count)
    order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
    rows: list[Any] = [None] * len(ids)
    start, tokens = time.process_time(), 0
    for at in range(0, len(order), size):
        batch = order[at : at + size]
        lengths = torch.tensor([len(ids[i]) for i in batch])
        longest = int(lengths.max())
        block = torch.tensor([ids[i] + (0,) * (longest - len(ids[i])) for i in batch])
        mask = (torch.arange(longest) < lengths[:, None]).long()
        with torch.inference_mode():
            hidden = model.base_model(block, attention_mask=mask, use_cache=False).last_hidden_state
            logp = _logp(model.get_output_embeddings()(hidden[torch.arange(len(batch)), lengths - 1]), judge)
        tokens += block.numel()
        for row, i in enumerate(batch):
            rows[i] = logp[row]
    return _result(start, torch.stack(rows), tokens)


def lm_eval(judge: Any, count: int) -> dict[str, Any]:
    import torch
    from lm_eval.models.huggingface import HFLM

    model, ids, labels = _plain(judge), ids_of(judge, count), label_ids(judge)
    lm = HFLM(pretrained=model, tokenizer=judge.tokens.tokenizer, batch_size=8, max_length=4096)
    requests = [(("", ""), list(sequence), [label]) for sequence in ids for label in labels]
    start = time.process_time()
    out = lm._loglikelihood_tokens(requests, disable_tqdm=True)
    rows = torch.tensor([value for value, _ in out]).reshape(len(ids), len(labels))
    return _result(start, rows, sum(map(len, ids)))


VLLM = """
import json, sys, time, resource
from vllm import LLM, SamplingParams
job = json.load(open(sys.argv[1]))
llm = LLM(model=job["folder"], dtype=job["dtype"], enable_prefix_caching=True, max_model_len=4096, max_logprobs=64,
          disable_log_stats=True)
ask = SamplingParams(max_tokens=1, temperature=0.0, logprob_token_ids=job["labels"])
llm.generate([{"prompt_token_ids": job["ids"][0][:64]}], ask, use_tqdm=False)
start = time.process_time()
out = llm.generate([{"prompt_token_ids": i} for i in job["ids"]], ask, use_tqdm=False)
seconds = time.process_time() - start
rows = [[o.outputs[0].logprobs[0][t].logprob for t in job["labels"]] for o in out]
hits = sum(o.num_cached_tokens or 0 for o in out)
json.dump({"rows": rows, "seconds": seconds, "tokens": sum(map(len, job["ids"])) - hits,
           "memory": max(resource.getrusage(w).ru_maxrss for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))},
          open(sys.argv[2], "w"))
"""


def vllm(judge: Any, count: int) -> dict[str, Any]:
    """In an environment of its own, named by VLLM_PYTHON; prefix caching on, prompts in the order of the tree."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        job, answer = Path(folder, "job.json"), Path(folder, "answer.json")
        ids = ids_of(judge, count)
        order = sorted(range(len(ids)), key=lambda i: ids[i])
        about = {"folder": str(judge.weights.folder), "dtype": judge.weights.dtype, "labels": label_ids(judge)}
        job.write_text(json.dumps(about | {"ids": [ids[i] for i in order]}))
        settings = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "2", "OMP_NUM_THREADS": "1"}
        settings |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        run = subprocess.run(
            [os.environ["VLLM_PYTHON"], "-c", VLLM, job, answer], env=settings, capture_output=True, text=True
        )
        if run.returncode:
            raise RuntimeError(run.stderr[-2000:])
        result = json.loads(answer.read_text())
    rows = dict(zip(order, result["rows"], strict=True))
    return result | {"rows": [rows[i] for i in range(len(ids))]}


METHODS = {"shared": shared, "padded": padded, "one-by-one": one_by_one, "lm-eval": lm_eval, "vllm": vllm}


def _plain(judge: Any) -> Any:
    from reprolib.inference.torch_judge import load_model

    return load_model(judge.weights.folder, dtype=judge.weights.dtype, device="cpu")


def _logp(logits: Any, judge: Any) -> Any:
    return logits.float()[:, : len(judge.tokens.tokenizer)].log_softmax(-1)[:, label_ids(judge)]


def _result(start: float, rows: Any, tokens: int) -> dict[str, Any]:
    return {"rows": rows.tolist(), "seconds": time.process_time() - start, "tokens": tokens}


def run_one(method: str, count: int, dtype: str) -> None:
    import torch

    from reprolib.inference import load_judge

    torch.set_num_threads(1)
    judge = load_judge(MODEL, dtype=dtype)
    result = METHODS[method](judge, count)
    result.setdefault("memory", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    result["held"] = sum(len(ids) for ids in ids_of(judge, count))
    print(json.dumps(result))


def run_all(args: argparse.Namespace) -> None:
    import numpy as np

    print(f"{MODEL} in {args.dtype}; {platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(
        f"{'method':<12}{'prompts':>8}{'held':>10}{'computed':>10}{'CPU s':>8}{'per s':>10}{'GB':>6}  |d logp|  flips"
    )
    base: Any = None
    for method in args.methods:
        count = args.prompts if method in ("shared", "vllm") else min(args.few, args.prompts)
        command = [sys.executable, __file__, "--one", method, "--prompts", str(count), "--dtype", args.dtype]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode:
            print(f"{method:<12} not measured: {run.stderr.strip().splitlines()[-1][:150]}", flush=True)
            continue
        result = json.loads(run.stdout.splitlines()[-1])
        rows = np.array(result["rows"])
        base = rows if base is None else base
        n = min(len(base), len(rows))
        apart = np.abs(rows[:n] - base[:n]).max()
        flips = (rows[:n].argmax(1) != base[:n].argmax(1)).mean()
        print(
            f"{method:<12}{len(rows):>8}{result['held']:>10,}{result['tokens']:>10,}{result['seconds']:>8.1f}"
            f"{len(rows) / result['seconds']:>10.2f}{result['memory'] / 1e6:>6.1f}{apart:>10.1e}{flips:>7.1%}"
            f"  {result.get('note', '')}",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=640, help="prompts for the judge and vLLM; 32 share an article")
    parser.add_argument("--few", type=int, default=32, help="prompts for the methods that share nothing")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--one", choices=list(METHODS), help=argparse.SUPPRESS)
    given = parser.parse_args()
    run_one(given.one, given.prompts, given.dtype) if given.one else run_all(given)
