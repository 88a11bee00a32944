"""A judge behind an OpenAI-compatible endpoint: a provider's, or a vLLM or llama.cpp server of your own.

A prompt that is a string is sent as one user message. A reply is stored as it comes, and read as a value, a bound or a
named failure, never as a number by luck. Nothing proves which weights gave it: there is no digest, only what the server
calls itself (column `served`). The key is read from the environment when a run starts, and travels over https or within
this machine only.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import openai
import pandas as pd
import tenacity

from reprolib.inference import JudgeError
from reprolib.inference.judge import Computed, Judge, Value, complete, refuse_little
from reprolib.inference.store import Store, row_key
from reprolib.inference.tokens import Prompt, check_labels
from reprolib.inference.weights import Weights

ANSWER_TOKENS = 16  # of a reply that names a label: enough to see whether a "1" is the start of an essay
_TOP = 20  # alternatives asked for, the most that OpenAI gives
_LOST = 32  # rows that fail one after the other before a run is given up
_UNKNOWN = -9000.0  # OpenAI writes -9999 for a log-probability that it does not tell
_WRAPPERS = " \t\r\n*_`\"'[](){}“”‘’"
_LEAD = re.compile(r"((the|my|final)\s+)*(answer|choice|label|rating|score|verdict)\b\s*(is\b|:|=)?", re.IGNORECASE)
_ADDRESS = re.compile(r"openai:([^\s#?]+?)@(https?://[^\s#?@]+)(?:#([A-Z_][A-Z0-9_]*))?")


class ApiJudge(Judge):
    """The judge `openai:MODEL@BASE_URL`; `...#VARIABLE` where the key is in another variable than OPENAI_API_KEY.

    `concurrency` requests at once; `timeout`: seconds for a reply; `attempts` for a row, after growing pauses or those
    that the server asks for; `price` of a million prompt tokens and of a million new ones.
    """

    def __init__(
        self, name: str, *, concurrency: int = 8, timeout: float = 60.0, attempts: int = 8,
        price: tuple[float, float] = (0.0, 0.0),
    ) -> None:  # fmt: skip
        if not (found := _ADDRESS.fullmatch(name)):  # which is not repeated here: it may hold a key
            hint = "write openai:MODEL@BASE_URL, and #VARIABLE after it if the key is not in OPENAI_API_KEY"
            raise JudgeError("this is no address of a served judge", hint=hint)
        self.model, self.url, self.variable = found[1], found[2].rstrip("/"), found[3] or "OPENAI_API_KEY"
        self.concurrency, self.timeout, self.attempts, self.price = concurrency, timeout, attempts, price
        self.weights = Weights(f"openai:{self.model}@{self.url}", Path(), "", "", self.url)
        self._logprobs = True

    def label_logprobs(
        self, prompts: Sequence[Prompt], labels: Sequence[str], *, min_mass: float = 0.01, **common: Any
    ) -> pd.DataFrame:
        """As `Judge.label_logprobs`, as far as a server tells: from the 20 likeliest first tokens.

        For each label `logp_<label>`, or NaN and `bound_<label>`, its upper bound (see `read_reply`); `in_label_mass`
        of the labels shown; `answer`, the likeliest label or the one that the `text` is, as `source` says, or None and
        the `failure`. `attrs["run"]`: rows asked now; tokens and cost of all rows. JudgeError at the end for rows
        that failed, the others being stored; at once for a wrong key or model, or 32 failures one after the other.
        """
        check_labels(labels)
        fixed = {"temperature": 0.0, "seed": 0, "max_tokens": ANSWER_TOKENS, "logprobs": True, "top_logprobs": _TOP}
        values, frame = self._replies(prompts, fixed, labels, **common)
        read = pd.DataFrame([read_reply(value["top"], value["text"], value["finish"], labels) for value in values])
        most = read["in_label_mass"] + np.exp(read[[f"bound_{label}" for label in labels]]).sum(axis=1)
        refuse_little(most.dropna(), min_mass)
        return frame.assign(**dict(read.items()))

    def generate(
        self, prompts: Sequence[Prompt], *, max_new_tokens: int, temperature: float = 0.0, top_p: float = 1.0,
        seed: int = 0, **common: Any,
    ) -> pd.DataFrame:  # fmt: skip
        """As `Judge.generate`, without a repetition penalty; it is up to the server to honour the seed."""
        fixed = {"temperature": float(temperature), "top_p": float(top_p), "seed": seed, "max_tokens": max_new_tokens}
        values, frame = self._replies(prompts, fixed, (), **common)
        return frame.assign(stopped=[value["finish"] != "length" for value in values])

    def cost(self, prompts: Sequence[Prompt], labels: Sequence[str], *, items: Sequence[str] | None = None) -> str:
        """What `label_logprobs` will ask for; tokens are a guess, because the tokenizer is the server's."""
        asked = {json.dumps(_messages(prompt)) for prompt in prompts}
        tokens = f"about {sum(map(len, asked)) // 4:,} prompt tokens (of 4 characters)"
        return f"{len(asked):,} calls, {tokens}, at most {len(asked) * ANSWER_TOKENS:,} new tokens"

    def _replies(
        self, prompts: Sequence[Prompt], fixed: dict[str, Any], labels: Sequence[str], *,
        items: Sequence[str] | None = None, store: Store | None = None, truncate: bool = False, progress: bool = False,
    ) -> tuple[list[Value], pd.DataFrame]:  # fmt: skip
        """Replies, and the columns that every table of a served judge has."""
        if truncate:
            raise JudgeError("a served judge cuts no prompts: the tokenizer is the server's", hint="shorten them")
        bodies = [fixed | {"messages": _messages(prompt)} for prompt in prompts]
        who = {"provider": "openai", "model": self.model, "url": self.url, "labels": list(labels)}
        keys = [row_key(**who, **body) for body in bodies]
        values, run = complete(keys, partial(self._ask, bodies), store, device="served", progress=progress, every=1)
        frame = pd.DataFrame(values, columns=["n_tokens", "n_new", "text", "served"])
        frame = frame.astype({"n_tokens": "Int64", "n_new": "Int64"}).assign(cut=0)
        frame.insert(0, "item", [str(name) for name in items or range(len(prompts))])
        frame["prompt_digest"] = [hashlib.sha256(json.dumps(body["messages"]).encode()).hexdigest() for body in bodies]
        used = frame[~pd.Series(keys).duplicated()][["n_tokens", "n_new"]].sum().tolist()
        run |= {"prompt_tokens": used[0], "new_tokens": used[1], "model": self.weights.name}
        frame.attrs["run"] = run | {"cost": np.dot(used, self.price) / 1e6, "served": sorted(set(frame["served"]))}
        return values, frame

    def _ask(self, bodies: list[dict[str, Any]], todo: list[int]) -> Computed:
        """Replies and failures as they come; nothing new is sent before those that are there have been taken."""
        lost, waiting, running = 0, iter(todo), dict[Future[Value | JudgeError], int]()
        pool = ThreadPoolExecutor(self.concurrency)
        client = openai.OpenAI(api_key=self._secret(), base_url=self.url, timeout=self.timeout, max_retries=0)
        try:
            while True:
                for index in islice(waiting, self.concurrency - len(running)):
                    running[pool.submit(self._row, client, bodies[index])] = index
                if not running:
                    return
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    result = done.result()
                    yield running.pop(done), result
                    lost = lost + 1 if isinstance(result, JudgeError) else 0
                    if lost >= _LOST:
                        raise JudgeError(f"{lost} rows failed one after the other: {result}", hint="run it again later")
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            client.close()

    def _row(self, client: openai.OpenAI, body: dict[str, Any]) -> Value | JudgeError:
        """The reply, or why there is none after all attempts; raises JudgeError for what would stop every row."""
        sent: Any = {name: value for name, value in body.items() if self._logprobs or "logprobs" not in name}
        stop, passes = tenacity.stop_after_attempt(self.attempts), tenacity.retry_if_exception(_passes)
        again = tenacity.Retrying(stop=stop, retry=passes, wait=_pause, reraise=True)
        try:
            return again(lambda: _read(client.chat.completions.create(model=self.model, **sent)))
        except (openai.OpenAIError, ValueError, AttributeError, TypeError, IndexError) as error:
            kind, text = type(error), f"no usable reply ({type(error).__name__}: {error})"
            text = text.replace(client.api_key, "[key]")
        if kind is openai.BadRequestError and "logprob" in text and "logprobs" in sent:
            self._logprobs = False  # the server tells none: texts are read instead
            return self._row(client, body)
        hint = ""
        if kind is openai.NotFoundError:
            hint = "look at the model's name and at the URL"
            with suppress(openai.OpenAIError, TypeError, ValueError):
                hint = "it serves: " + ", ".join([model.id for model in client.models.list()][:20])
        elif kind in (openai.AuthenticationError, openai.PermissionDeniedError):
            hint = f"look at the key in {self.variable}"
        failure = JudgeError(text[:300], hint=hint)
        if hint:  # raised out here: no frame of the client, which holds the key, hangs on it
            raise failure
        return failure

    def _secret(self) -> str:
        parts = urlsplit(self.url)
        near = parts.hostname in ("localhost", "127.0.0.1", "::1")
        key = os.environ.get(self.variable, "") if near or parts.scheme == "https" else ""
        if not (key or near or parts.scheme == "http"):
            raise JudgeError(f"{self.variable} is not set", hint=f"it holds the key for {parts.hostname}")
        return key or "none"


def read_reply(top: Sequence[Any], text: str, finish: str, labels: Sequence[str]) -> dict[str, Any]:
    """The row of `label_logprobs`: from the first token's alternatives or, where no label is among them, the text.

    `top` holds for each its text, log-probability, and bytes if the server gives them. A label that no single token
    spells is censored: `logp_` is NaN and `bound_` its upper bound, the log-probability of the least likely token shown
    or, for a label of several tokens, of the likeliest token shown that begins it.

    >>> row = read_reply([("1", -0.1, None), ("The", -3.0, None)], "1", "stop", ["1", "2"])
    >>> row["logp_1"], row["bound_2"], row["answer"]
    (-0.1, -3.0, '1')
    """
    shown = [(bytes(b) if b else t.encode(), p) for t, p, b in top if p is not None and p > _UNKNOWN]
    least, logp, row = min((p for _, p in shown), default=np.nan), dict[str, float](), dict[str, Any]()
    for label in labels:
        if whole := [p for token, p in shown if token == label.encode()]:  # two ids can spell one label
            logp[label] = float(np.logaddexp.reduce(whole))
        begun = [p for token, p in shown if token and label.encode().startswith(token)]
        row |= {f"logp_{label}": logp.get(label, np.nan), f"bound_{label}": np.nan if whole else max([least, *begun])}
    best = [label for label, p in logp.items() if p == max(logp.values())]
    answer, failure = (best[0], "") if len(best) == 1 else (None, "tie") if best else parse_label(text, finish, labels)
    row |= {"in_label_mass": float(np.exp([*logp.values()]).sum()) if shown else np.nan}
    return row | {"answer": answer, "failure": failure, "source": "logprob" if best else "text"}


def parse_label(text: str, finish: str, labels: Sequence[str]) -> tuple[str | None, str]:
    """The label that the whole text is, bar quotes, brackets, emphasis and a lead such as "Score:"; else why not.

    Failures: "refusal", "cut", "empty", "off the scale" (a number that is no label), "several labels", "not alone" (one
    label among other words), "no label". Nothing is searched for inside a sentence, so a quoted rubric gives no score.

    >>> parse_label("**Score: 4**", "stop", list("12345")), parse_label("4.5", "stop", list("12345"))
    (('4', ''), (None, 'off the scale'))
    """
    if finish in ("refusal", "content_filter", "length"):
        return None, "cut" if finish == "length" else "refusal"
    if not (core := _bare(text)):
        return None, "empty"
    core = _bare(_LEAD.sub("", core, count=1)) if _LEAD.match(core) else core
    if len(same := [label for label in labels if _bare(label).casefold() == core.casefold()]) == 1:
        return same[0], ""
    if not same and re.fullmatch(r"[-+]?\d*[.,/]?\d+", core):
        return None, "off the scale"
    inside = [label for label in labels if re.search(rf"(?<!\w){re.escape(_bare(label))}(?!\w)", text, re.IGNORECASE)]
    return None, "several labels" if len(same + inside) > 1 else "not alone" if inside else "no label"


def _messages(prompt: Prompt) -> list[dict[str, str]]:
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(m) for m in prompt]
    if not any(str(message.get("content", "")).strip() for message in messages):
        raise JudgeError("a prompt is empty", hint="give text or a list of chat messages")
    return messages


def _read(reply: Any) -> Value:
    choice = reply.choices[0]
    refusal = getattr(choice.message, "refusal", None)
    first = choice.logprobs.content[:1] if choice.logprobs and choice.logprobs.content else []
    return {
        "text": choice.message.content or refusal or "",
        "finish": "refusal" if refusal else choice.finish_reason or "",
        "top": [[other.token, other.logprob, other.bytes] for token in first for other in token.top_logprobs],
        "served": " ".join(filter(None, [reply.model, reply.system_fingerprint])),
        "n_tokens": getattr(reply.usage, "prompt_tokens", None),
        "n_new": getattr(reply.usage, "completion_tokens", None),
    }


def _passes(error: BaseException) -> bool:
    """Whether another attempt may help: no connection, no reply in time or a malformed one, 429, a server's fault."""
    status = getattr(error, "status_code", 500)
    return isinstance(error, Exception) and (status in (408, 409, 429) or status >= 500)


def _pause(state: tenacity.RetryCallState) -> float:
    """Seconds until the next attempt: what the server asks for in Retry-After, else growing ones."""
    error = state.outcome.exception() if state.outcome else None
    told = error.response.headers.get("retry-after", "") if isinstance(error, openai.APIStatusError) else ""
    asked = re.fullmatch(r"\d+(\.\d+)?", told)
    return float(told) if asked else tenacity.wait_exponential_jitter(multiplier=0.5, max=60, jitter=0.5)(state)


def _bare(text: str) -> str:
    return text.strip(_WRAPPERS).rstrip(".").strip(_WRAPPERS)
