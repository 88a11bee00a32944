"""A judge behind an OpenAI-compatible endpoint: a provider's, or a vLLM or llama.cpp server of your own.

A prompt that is a string is sent as one user message. A reply is stored as it comes, and read by `answers`. Nothing
proves which weights gave it: there is no digest, only what the server calls itself (column `served`). The key is read
from the environment when a run starts, and travels over https or within this machine only.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import openai
import pandas as pd
import tenacity

from reprolib.inference import JudgeError
from reprolib.inference.answers import ANSWER_TOKENS, read_reply
from reprolib.inference.judge import Computed, Cost, Judge, Value, item_names, refuse_little
from reprolib.inference.store import Store, row_key
from reprolib.inference.tokens import Prompt, check_labels
from reprolib.inference.weights import Weights

_TOP = 20  # alternatives asked for, the most that OpenAI gives
_LOST = 32  # rows that fail one after the other before a run is given up
_PATIENCE = 600.0  # seconds of Retry-After that are still waited for
_ADDRESS = re.compile(r"openai:([^\s#?]+?)@(https?://[^\s#?@]+)(?:#([A-Z_][A-Z0-9_]*))?")


class ApiJudge(Judge):
    """The judge `openai:MODEL@BASE_URL`; `...#VARIABLE` where the key is in another variable than OPENAI_API_KEY.

    `concurrency` requests at once; `timeout`: seconds for a reply; `attempts` for a row, after pauses that double from
    `pause` seconds or are what the server asks for; `price` of a million prompt tokens and of a million new ones.
    """

    def __init__(
        self, name: str, *, concurrency: int = 8, timeout: float = 60.0, attempts: int = 8, pause: float = 1.0,
        price: tuple[float, float] = (0.0, 0.0),
    ) -> None:  # fmt: skip
        if not (found := _ADDRESS.fullmatch(name)):  # which is not repeated here: it may hold a key
            hint = "write openai:MODEL@BASE_URL, and #VARIABLE after it if the key is not in OPENAI_API_KEY"
            raise JudgeError("this is no address of a served judge", hint=hint)
        self.model, self.url, self.variable = found[1], found[2].rstrip("/"), found[3] or "OPENAI_API_KEY"
        self.concurrency, self.timeout, self.attempts, self.pause = concurrency, timeout, attempts, pause
        self.price, self.sent, self._logprobs = price, 0, True
        self.weights = Weights(f"openai:{self.model}@{self.url}", Path(), "", "", self.url)
        self.engine: Any = SimpleNamespace(device=SimpleNamespace(type="served"), plain="served", shipped_generation={})

    def label_logprobs(
        self, prompts: Sequence[Prompt], labels: Sequence[str], *, min_mass: float = 0.01, **common: Any
    ) -> pd.DataFrame:
        """As `Judge.label_logprobs`, as far as a server tells: from the 20 likeliest first tokens.

        For each label `logp_<label>`, or NaN and `bound_<label>`, its upper bound (see `read_reply`); `in_label_mass`
        of the labels shown; `answer`, the likeliest label or the one that the `text` is, as `source` says, or None and
        the `failure`. `attrs["run"]`: requests sent now; tokens and cost of all rows. JudgeError at the end for rows
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
        repetition_penalty: float = 1.0, seed: int = 0, **common: Any,
    ) -> pd.DataFrame:  # fmt: skip
        """As `Judge.generate`; the seed is sent, and it is up to the server to honour it."""
        if max_new_tokens < 1 or temperature < 0 or not 0 < top_p <= 1 or repetition_penalty != 1:
            allowed = "max_new_tokens >= 1, temperature >= 0, 0 < top_p <= 1, no repetition penalty"
            raise JudgeError("a setting is out of range for a served judge", hint=f"allowed: {allowed}")
        fixed = {"temperature": float(temperature), "top_p": float(top_p), "seed": seed, "max_tokens": max_new_tokens}
        values, frame = self._replies(prompts, fixed, (), **common)
        return frame.assign(stopped=[value["finish"] != "length" for value in values])

    def cost(self, prompts: Sequence[Prompt], labels: Sequence[str], *, items: Sequence[str] | None = None) -> Cost:
        """What `label_logprobs` will ask for; tokens are a guess, because the tokenizer is the server's."""
        check_labels(labels)
        asked = {json.dumps(_messages(p, n)) for p, n in zip(prompts, item_names(prompts, items), strict=True)}
        return Cost(len(asked), sum(map(len, asked)) // 4, len(asked) * ANSWER_TOKENS, 0.0, "served")

    def _replies(
        self, prompts: Sequence[Prompt], fixed: dict[str, Any], labels: Sequence[str], *,
        items: Sequence[str] | None = None, store: Store | None = None, truncate: bool = False, progress: bool = False,
    ) -> tuple[list[Value], pd.DataFrame]:  # fmt: skip
        """Replies, and the columns that every table of a served judge has."""
        if truncate:
            raise JudgeError("a served judge cuts no prompts: the tokenizer is the server's", hint="shorten them")
        names, self.sent = item_names(prompts, items), 0
        bodies = [fixed | {"messages": _messages(p, name)} for p, name in zip(prompts, names, strict=True)]
        who = {"provider": "openai", "model": self.model, "url": self.url, "labels": list(labels)}
        keys = [row_key(**who, **body) for body in bodies]
        values, run = self._complete(keys, lambda todo: self._ask(todo, bodies), store, progress, every=1)
        frame = pd.DataFrame(values, columns=["n_tokens", "n_new", "text", "served"])
        frame = frame.astype({"n_tokens": "Int64", "n_new": "Int64"}).assign(cut=0)
        frame.insert(0, "item", names)
        frame["prompt_digest"] = [hashlib.sha256(json.dumps(body["messages"]).encode()).hexdigest() for body in bodies]
        used = frame[~pd.Series(keys).duplicated()][["n_tokens", "n_new"]].sum().tolist()
        run |= {"calls": self.sent, "prompt_tokens": used[0], "new_tokens": used[1]}
        run |= {"cost": float(np.dot(used, self.price)) / 1e6, "served": sorted(set(frame["served"]))}
        frame.attrs["run"] = run
        return values, frame

    def _ask(self, todo: list[int], bodies: list[dict[str, Any]]) -> Computed:
        """Replies and failures as they come; the loop runs in a thread, because a notebook's runs in this one."""
        loop, replies = asyncio.new_event_loop(), self._come(todo, bodies)
        with ThreadPoolExecutor(1) as pool:
            try:
                while batch := pool.submit(loop.run_until_complete, anext(replies, None)).result():
                    yield batch
            finally:
                for task in asyncio.all_tasks(loop):
                    loop.call_soon_threadsafe(task.cancel)
                pool.submit(loop.run_until_complete, replies.aclose()).result()
                loop.close()

    async def _come(self, todo: list[int], bodies: list[dict[str, Any]]) -> AsyncGenerator[dict[int, Any]]:
        lost, waiting, running = 0, iter(todo), dict[asyncio.Task[Value | JudgeError], int]()
        async with openai.AsyncOpenAI(api_key=self._secret(), base_url=self.url, max_retries=0) as client:
            try:
                while True:
                    for index in islice(waiting, self.concurrency - len(running)):
                        running[asyncio.create_task(self._row(client, bodies[index]))] = index
                    if not running:
                        return
                    ready, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    batch = {running.pop(task): task.result() for task in ready}
                    yield batch
                    for result in batch.values():
                        lost = lost + 1 if isinstance(result, JudgeError) else 0
                    if lost >= _LOST:
                        raise JudgeError(f"{lost} rows failed one after the other: {result}", hint="run it again later")
            finally:
                for task in running:
                    task.cancel()
                await asyncio.gather(*running, return_exceptions=True)

    async def _row(self, client: openai.AsyncOpenAI, body: dict[str, Any]) -> Value | JudgeError:
        """The reply, or why there is none after all attempts; raises JudgeError for what would stop every row."""
        stop, check = tenacity.stop_after_attempt(self.attempts), tenacity.retry_if_exception(_passes)
        own = tenacity.wait_exponential_jitter(multiplier=self.pause, max=60, jitter=self.pause)
        retry = tenacity.AsyncRetrying(
            retry=check, stop=stop, reraise=True,
            wait=lambda state: _retry_after(state.outcome.exception() if state.outcome else None) or own(state),
        )  # fmt: skip
        try:
            return await retry(self._post, client, body)
        except (openai.OpenAIError, TimeoutError, ValueError) as error:
            kind, text = type(error), f"{type(error).__name__}: {error}".replace(client.api_key, "[key]")
        if kind is openai.BadRequestError and "logprob" in text and self._logprobs:
            self._logprobs = False  # the server tells none: texts are read instead
            return await self._row(client, body)
        hint = ""
        if kind is openai.NotFoundError:
            hint = "look at the model's name and at the URL"
            with suppress(openai.OpenAIError, TypeError, ValueError):
                hint = "it serves: " + ", ".join([model.id async for model in client.models.list()][:20])
        elif kind in (openai.AuthenticationError, openai.PermissionDeniedError):
            hint = f"look at the key in {self.variable}"
        failure = JudgeError(text[:300], hint=hint)
        if hint:  # raised out here: no frame of the client, which holds the key, hangs on it
            raise failure
        return failure

    async def _post(self, client: openai.AsyncOpenAI, body: dict[str, Any]) -> Value:
        """One request; TimeoutError or ValueError if no reply comes or it is not one."""
        self.sent += 1
        sent: Any = {name: value for name, value in body.items() if self._logprobs or "logprobs" not in name}
        async with asyncio.timeout(self.timeout):
            reply: Any = await client.chat.completions.create(model=self.model, timeout=self.timeout, **sent)
        try:
            choice, usage = reply.choices[0], reply.usage or SimpleNamespace(prompt_tokens=None, completion_tokens=None)
            refusal = getattr(choice.message, "refusal", None)
            first = choice.logprobs.content[:1] if choice.logprobs and choice.logprobs.content else []
            return {
                "text": choice.message.content or refusal or "",
                "finish": "refusal" if refusal else choice.finish_reason or "",
                "top": [[other.token, other.logprob, other.bytes] for token in first for other in token.top_logprobs],
                "served": " ".join(filter(None, [reply.model, reply.system_fingerprint])),
                "n_tokens": usage.prompt_tokens,
                "n_new": usage.completion_tokens,
            }
        except (AttributeError, TypeError, IndexError) as error:
            raise ValueError(f"the reply is malformed ({error})") from None

    def _secret(self) -> str:
        parts = urlsplit(self.url)
        near = parts.hostname in ("localhost", "127.0.0.1", "::1")
        key = os.environ.get(self.variable, "") if near or parts.scheme == "https" else ""
        if not (key or near or parts.scheme == "http"):
            raise JudgeError(f"{self.variable} is not set", hint=f"it holds the key for {parts.hostname}")
        return key or "none"


def _messages(prompt: Prompt, item: str) -> list[dict[str, str]]:
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(m) for m in prompt]
    if not any(str(message.get("content", "")).strip() for message in messages):
        raise JudgeError(f"item {item}: the prompt is empty", hint="give text or a list of chat messages")
    return messages


def _passes(error: BaseException) -> bool:
    """Whether to try again: no connection, no reply in time, a malformed one, too many requests, a server's fault."""
    status = getattr(error, "status_code", 500)
    wanted = isinstance(error, Exception) and (_retry_after(error) or 0) <= _PATIENCE
    return wanted and (status in (408, 409, 429) or status >= 500)


def _retry_after(error: BaseException | None) -> float | None:
    told = error.response.headers.get("retry-after", "") if isinstance(error, openai.APIStatusError) else ""
    return float(told) if re.fullmatch(r"\d+(\.\d+)?", told) else None
