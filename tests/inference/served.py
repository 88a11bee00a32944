"""A small OpenAI-compatible endpoint on the loopback address, in a thread: what it says is a function of the prompt."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple, Self


class Reply(NamedTuple):
    """A response: `after` seconds, with a status, a body (JSON if it is no text) and headers."""

    body: Any
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    after: float = 0.0


Answer = Callable[[str, int, dict[str, Any]], Reply]


def completion(text: str, top: dict[str, float] | None = None, finish: str = "stop", **message: Any) -> Reply:
    """A chat completion whose first token has the alternatives `top`, by log-probability."""
    shown = [{"token": t, "logprob": p, "bytes": list(t.encode())} for t, p in (top or {}).items()]
    told = {"content": [shown[0] | {"top_logprobs": shown}]} if shown else None
    said = {"role": "assistant", "content": text} | message
    choice = {"index": 0, "finish_reason": finish, "message": said, "logprobs": told}
    usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
    rest = {"id": "c", "object": "chat.completion", "created": 1, "model": "toy-2026", "usage": usage}
    return Reply(rest | {"choices": [choice], "system_fingerprint": "fp1"})


def share(prompt: str) -> float:
    """The probability that the endpoint gives to the label "1" after this prompt; "2" has the rest."""
    return 0.02 + 0.96 * (sum(prompt.encode()) % 97) / 97


def judging(prompt: str, nth: int, body: dict[str, Any]) -> Reply:
    """Prefers "1" by the prompt's share."""
    p = share(prompt)
    return completion("1" if p > 0.5 else "2", {"1": math.log(p), "2": math.log(1 - p), "The": -9.0})


class Endpoint:
    """Serves until the block ends. `asked` counts requests by prompt, `busy` holds the most requests at one time."""

    def __init__(self, answer: Answer = judging, port: int = 0) -> None:
        self.answer, self.port = answer, port
        self.asked: Counter[str] = Counter()
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[str] = []
        self.busy = self._now = 0
        self._ready, self._loop = threading.Event(), asyncio.new_event_loop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> Self:
        self._main = self._loop.create_task(self._serve())

        def drive() -> None:
            try:
                self._loop.run_until_complete(self._main)
            except asyncio.CancelledError:
                for task in (left := asyncio.all_tasks(self._loop)):
                    task.cancel()
                if left:
                    self._loop.run_until_complete(asyncio.wait(left))

        self._thread = threading.Thread(target=drive, daemon=True)
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._main.cancel)
        self._thread.join(10)
        self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._talk, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await asyncio.Event().wait()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                lines = [line.split(":", 1) for line in head.split("\r\n")[1:] if ":" in line]
                length = int({k.lower(): v for k, v in lines}.get("content-length", 0))
                body = json.loads(await reader.readexactly(length) or b"{}")
                self.headers.append(head)
                reply = await self._reply(head.split()[1], body)
                text = reply.body if isinstance(reply.body, str) else json.dumps(reply.body)
                kind = "content-type: application/json\r\n" + "".join(f"{k}: {v}\r\n" for k, v in reply.headers)
                size = f"content-length: {len(text.encode())}\r\n\r\n"
                writer.write(f"HTTP/1.1 {reply.status} Said\r\n{kind}{size}{text}".encode())
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _reply(self, path: str, body: dict[str, Any]) -> Reply:
        if path.endswith("/models"):
            return Reply({"object": "list", "data": [{"id": n, "object": "model"} for n in ("toy", "tiny")]})
        if body["model"] != "toy":
            return Reply({"error": {"message": f"no model {body['model']}", "code": "model_not_found"}}, 404)
        prompt = body["messages"][-1]["content"]
        self.asked[prompt] += 1
        self.bodies.append(body)
        self._now += 1
        self.busy = max(self.busy, self._now)
        try:
            reply = self.answer(prompt, self.asked[prompt], body)
            await asyncio.sleep(reply.after)
            return reply
        finally:
            self._now -= 1
