"""A served judge against an endpoint that fails in every way a real one does, and against a real server."""

from __future__ import annotations

import json
import logging
import math
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import traceback
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from reprolib import cli
from reprolib.evidence import recipe
from reprolib.inference import JudgeError, weights
from reprolib.inference.api_judge import ApiJudge
from reprolib.inference.judge import load_judge
from reprolib.inference.store import Store
from tests.inference.served import Endpoint, Reply, completion, judging, share

LABELS = ["1", "2"]
KEY = "sk-planted-5b1f0c2e9d"


def served(endpoint: Endpoint, model: str = "toy", variable: str = "", **settings: Any) -> ApiJudge:
    """The endpoint's judge, with little patience."""
    judge = load_judge(f"openai:{model}@{endpoint.url}{variable}", **{"timeout": 5.0} | settings)
    assert isinstance(judge, ApiJudge)
    return judge


def rows(number: int) -> list[str]:
    return [f"Which is better in pair {n}?" for n in range(number)]


def statuses(store: Store) -> list[str]:
    found = []
    for path in store.folder.glob("*.sqlite"):
        with closing(sqlite3.connect(path)) as database:
            found += [status for (status,) in database.execute("SELECT status FROM judgments")]
    return sorted(found)


def test_labels_are_scored_in_order_and_what_was_sent_is_what_the_page_says(tmp_path: Path) -> None:
    with Endpoint() as endpoint:
        judge = served(endpoint, price=(1.0, 10.0))
        frame = judge.label_logprobs([*rows(40), rows(1)[0]], LABELS, store=Store(tmp_path))
    assert frame["logp_1"].tolist() == pytest.approx([math.log(share(prompt)) for prompt in [*rows(40), rows(1)[0]]])
    assert frame["answer"].tolist() == np.where(frame["logp_1"] > frame["logp_2"], "1", "2").tolist()
    assert frame["in_label_mass"].tolist() == pytest.approx([1.0] * 41)
    assert frame[["bound_1", "bound_2"]].isna().all(axis=None)
    run = frame.attrs["run"]
    assert (run["rows"], run["rows_computed"]) == (41, 40)
    assert (run["prompt_tokens"], run["new_tokens"]) == (400, 80)
    assert run["cost"] == pytest.approx((400 * 1.0 + 80 * 10.0) / 1e6)
    assert run["served"] == ["toy-2026 fp1"]
    assert endpoint.bodies[0]["messages"] == [{"role": "user", "content": endpoint.bodies[0]["messages"][0]["content"]}]
    sent = {key: value for key, value in endpoint.bodies[0].items() if key != "messages"}
    fixed = {"temperature": 0.0, "seed": 0, "max_tokens": 16, "logprobs": True, "top_logprobs": 20}
    assert sent == {"model": "toy", **fixed}


def test_no_more_requests_at_once_than_allowed() -> None:
    def slow(prompt: str, nth: int, body: dict[str, Any]) -> Reply:
        return judging(prompt, nth, body)._replace(after=0.02)

    with Endpoint(slow) as endpoint:
        served(endpoint, concurrency=3).label_logprobs(rows(20), LABELS)
    assert endpoint.busy == 3


def failing(share_of: float) -> Any:
    """Fails at random, by a seed: an error of the server, or too many requests; never three times."""
    draw = random.Random(5)

    def answer(prompt: str, nth: int, body: dict[str, Any]) -> Reply:
        if nth < 3 and draw.random() < share_of:
            broken = [Reply("oops", 500), Reply({}, 429, (("retry-after", "0.01"),))]
            return draw.choice(broken)
        return judging(prompt, nth, body)

    return answer


@pytest.mark.parametrize("number", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_of_rows_with_random_failures_each_is_there_exactly_once(tmp_path: Path, number: int) -> None:
    with Endpoint(failing(0.05)) as endpoint:
        frame = served(endpoint, concurrency=16).label_logprobs(rows(number), LABELS, store=Store(tmp_path))
        again = served(endpoint).label_logprobs(rows(number), LABELS, store=Store(tmp_path))
    assert 0.01 < endpoint.asked.total() / number - 1 < 0.1
    assert frame["logp_1"].tolist() == pytest.approx([math.log(share(prompt)) for prompt in rows(number)])
    assert statuses(Store(tmp_path)) == ["done"] * number
    assert (again.attrs["run"]["rows_computed"], again["logp_1"].tolist()) == (0, frame["logp_1"].tolist())
    assert again.attrs["run"]["prompt_tokens"] == frame.attrs["run"]["prompt_tokens"] == 10 * number


def test_a_server_that_asks_to_wait_is_waited_for() -> None:
    times: list[float] = []

    def busy(prompt: str, nth: int, body: dict[str, Any]) -> Reply:
        times.append(time.monotonic())
        return judging(prompt, nth, body) if nth > 1 else Reply({"error": {}}, 429, (("retry-after", "1"),))

    with Endpoint(busy) as endpoint:
        served(endpoint).label_logprobs(rows(1), LABELS)
    assert times[1] - times[0] >= 1.0


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (Reply('{"choices": ['), "JSONDecodeError"),
        (Reply({"choices": []}), "IndexError"),
        (Reply("<html>proxy</html>", 200, (("x", "y"),)), "JSONDecodeError"),
        (Reply({"error": {"message": "the prompt is too long"}}, 400), "BadRequestError.*the prompt is too long"),
        (completion("1", {"1": -0.1})._replace(after=3.0), "TimeoutError|no reply"),
    ],
)
def test_a_row_without_a_reply_fails_alone_says_why_and_is_asked_again(tmp_path: Path, reply: Reply, why: str) -> None:
    def one_bad(prompt: str, nth: int, body: dict[str, Any]) -> Reply:
        return reply if prompt == rows(3)[1] and not repaired else judging(prompt, nth, body)

    repaired = False
    with Endpoint(one_bad) as endpoint:
        judge = served(endpoint, attempts=2, timeout=0.3)
        with pytest.raises(JudgeError, match=rf"1 of 3 rows failed: .*({why}).*\(1 times\); .*run the same again"):
            judge.label_logprobs(rows(3), LABELS, store=Store(tmp_path))
        assert statuses(Store(tmp_path)) == ["done", "done", "failed"]
        repaired = True
        before = endpoint.asked.copy()
        assert judge.label_logprobs(rows(3), LABELS, store=Store(tmp_path)).attrs["run"]["rows_computed"] == 1
        assert endpoint.asked - before == {rows(3)[1]: 1}


def test_a_wrong_model_stops_the_run_at_once_with_those_that_are_served() -> None:
    with Endpoint() as endpoint, pytest.raises(JudgeError, match=r"no model nonsense.*it serves: toy, tiny"):
        served(endpoint, model="nonsense").label_logprobs(rows(500), LABELS)
    assert len(endpoint.headers) < 30


def test_a_server_that_is_down_is_given_up_and_the_finished_rows_stay(tmp_path: Path) -> None:
    def dies(prompt: str, nth: int, body: dict[str, Any]) -> Reply:
        return Reply("down", 503) if len(endpoint.bodies) > 50 else judging(prompt, nth, body)

    with Endpoint(dies) as endpoint:
        with pytest.raises(JudgeError, match=r"3\d rows failed one after the other"):
            served(endpoint, attempts=1).label_logprobs(rows(500), LABELS, store=Store(tmp_path))
        assert statuses(Store(tmp_path)).count("done") == 50
        assert len(endpoint.bodies) < 120


def test_censored_labels_are_bounds_in_the_table_and_too_little_mass_stops_the_run(tmp_path: Path) -> None:
    def essay(prompt: str, nth: int, body: dict[str, Any]) -> Reply:
        return completion("The second", {"The": -0.01, "I": -5.0, "1": -6.0, "A": -7.0})

    with Endpoint(essay) as endpoint:
        frame = served(endpoint).label_logprobs(rows(2), LABELS, min_mass=0, store=Store(tmp_path))
        with pytest.raises(JudgeError, match=r"the labels catch 0\.0034 of the probability"):
            served(endpoint).label_logprobs(rows(2), LABELS, store=Store(tmp_path))
    assert frame["logp_2"].isna().all()
    assert frame["bound_2"].tolist() == [-7.0, -7.0]
    assert frame["answer"].tolist() == ["1", "1"]


def test_without_log_probabilities_texts_are_read_strictly() -> None:
    says = dict(zip(rows(6), ["1", "Answer: 2", "1 and 2 are alike", "10", "", "no"], strict=True))

    def plain(prompt: str, nth: int, body: dict[str, Any]) -> Reply:
        if prompt == rows(6)[5]:
            return completion("", refusal="I will not")
        return completion(says[prompt])

    with Endpoint(plain) as endpoint:
        frame = served(endpoint).label_logprobs(rows(6), LABELS)
    assert frame["answer"].fillna("none").tolist() == ["1", "2", "none", "none", "none", "none"]
    assert frame["failure"].tolist() == ["", "", "several labels", "off the scale", "empty", "refusal"]
    assert set(frame["source"]) == {"text"}
    assert frame[["logp_1", "logp_2", "in_label_mass"]].isna().all(axis=None)


def test_a_server_that_refuses_to_tell_log_probabilities_is_asked_without() -> None:
    def refuses(prompt: str, nth: int, body: dict[str, Any]) -> Reply:
        if "logprobs" in body:
            return Reply({"error": {"message": "logprobs is not supported with this model"}}, 400)
        return completion("2")

    with Endpoint(refuses) as endpoint:
        frame = served(endpoint, concurrency=1).label_logprobs(rows(5), LABELS)
    assert frame["answer"].tolist() == ["2"] * 5
    assert len(endpoint.headers) == 6


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"temperature": 0.5}, {"top_p": 0.9}, {"max_new_tokens": 9}, {"prompt": "Other?"}]
)
def test_whatever_changes_a_text_is_another_row(tmp_path: Path, change: dict[str, Any]) -> None:
    with Endpoint() as endpoint:
        for settings in ({}, change, change):
            given = {"max_new_tokens": 8, "temperature": 1.0, "seed": 0, "prompt": "Why?"} | settings
            frame = served(endpoint).generate([given.pop("prompt")], store=Store(tmp_path), **given)
    assert endpoint.asked.total() == 2
    assert frame.attrs["run"]["rows_computed"] == 0
    assert (frame["n_new"].tolist(), frame["stopped"].tolist()) == ([2], [True])


def test_two_servers_or_models_in_one_store_never_share_a_row(tmp_path: Path) -> None:
    with Endpoint() as first, Endpoint() as second:
        for endpoint in (first, second):
            served(endpoint).label_logprobs(rows(3), LABELS, store=Store(tmp_path))
        served(second).label_logprobs(rows(3), ["1", "3"], store=Store(tmp_path))
    assert (first.asked.total(), second.asked.total()) == (3, 6)


def test_what_a_served_judge_cannot_do_is_refused_before_anything_is_sent() -> None:
    with Endpoint() as endpoint:
        judge = served(endpoint)
        for refused in (
            lambda: judge.label_logprobs(["fine", " "], LABELS),
            lambda: judge.label_logprobs(["fine"], ["1", "1"]),
            lambda: judge.label_logprobs(["fine"], LABELS, truncate=True),
        ):
            with pytest.raises(JudgeError):
                refused()
    assert endpoint.headers == []


def test_a_setting_of_served_judges_is_refused_for_others(toy_folder: Path) -> None:
    with pytest.raises(TypeError, match="price"):
        load_judge(str(toy_folder), price=(1.0, 2.0))


def test_it_runs_where_a_loop_is_running_as_in_a_notebook() -> None:
    import asyncio

    async def cell() -> pd.DataFrame:
        return served(endpoint).label_logprobs(rows(3), LABELS)

    with Endpoint() as endpoint:
        assert len(asyncio.run(cell())) == 3


def test_an_interrupt_keeps_what_is_finished(tmp_path: Path) -> None:
    def interrupts(prompt: str, nth: int, body: dict[str, Any]) -> Reply:
        if len(endpoint.bodies) >= 60 and not sent.is_set():
            sent.set()
            os.kill(os.getpid(), signal.SIGINT)
        return judging(prompt, nth, body)._replace(after=0.005)

    sent, before = threading.Event(), signal.signal(signal.SIGINT, signal.default_int_handler)
    with Endpoint(interrupts) as endpoint:
        try:
            with pytest.raises(KeyboardInterrupt):
                served(endpoint, concurrency=4).label_logprobs(rows(300), LABELS, store=Store(tmp_path))
        finally:
            signal.signal(signal.SIGINT, before)
        kept = len(statuses(Store(tmp_path)))
        assert 60 - 4 - 4 <= kept < 80
        frame = served(endpoint).label_logprobs(rows(300), LABELS, store=Store(tmp_path))
    assert frame.attrs["run"]["rows_computed"] == 300 - kept
    assert endpoint.asked.total() <= 300 + 8


RUN = """if True:
    import sys
    from reprolib.inference import Store, load_judge
    judge = load_judge(sys.argv[1], concurrency=4)
    judge.label_logprobs([f"Which is better in pair {n}?" for n in range(120)], ["1", "2"], store=Store(sys.argv[2]))"""


def test_killed_and_resumed_nothing_finished_is_asked_twice(tmp_path: Path) -> None:
    def slow(prompt: str, nth: int, body: dict[str, Any]) -> Reply:
        return judging(prompt, nth, body)._replace(after=0.01)

    with Endpoint(slow) as endpoint:
        run = subprocess.Popen([sys.executable, "-c", RUN, f"openai:toy@{endpoint.url}", str(tmp_path)])
        while endpoint.asked.total() < 40 and run.poll() is None:
            time.sleep(0.01)
        run.kill()
        run.wait()
        finished = len(statuses(Store(tmp_path)))
        frame = served(endpoint).label_logprobs(rows(120), LABELS, store=Store(tmp_path))
    assert 25 <= finished < 120
    assert frame.attrs["run"]["rows_computed"] == 120 - finished
    assert endpoint.asked.total() <= 120 + 2 * 4  # those under way, and replies that the kill came before
    assert frame["logp_1"].tolist() == pytest.approx([math.log(share(prompt)) for prompt in rows(120)])


def everything_below(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("variable", ["OPENAI_API_KEY", "MY_KEY"])
def test_the_key_is_sent_and_is_nowhere_else(
    tmp_path: Path, monkeypatch: Any, capsys: Any, caplog: Any, variable: str
) -> None:
    """A server that repeats the key in its error, logging at its loudest, and a traceback with its local variables."""
    monkeypatch.setenv(variable, KEY)
    caplog.set_level(logging.DEBUG)
    fails = True

    def tells(prompt: str, nth: int, body: dict[str, Any]) -> Reply:
        wrong = Reply({"error": {"message": f"incorrect key {KEY}"}}, 401)
        return wrong if fails else judging(prompt, nth, body)

    pd.DataFrame({"id": ["a", "b"], "prompt": rows(2)}).to_json(tmp_path / "p.jsonl", orient="records", lines=True)
    with Endpoint(tells) as endpoint:
        judge = served(endpoint, variable=f"#{variable}")
        with pytest.raises(JudgeError, match="incorrect key") as caught:
            judge.label_logprobs(rows(2), LABELS, store=Store(tmp_path / "store"))
        assert f"look at the key in {variable}" in str(caught.value)
        address = f"openai:toy@{endpoint.url}#{variable}"
        files = ["judge", str(tmp_path / "p.jsonl"), str(tmp_path / "out.parquet"), "--judge", address]
        assert cli.main([*files, "--labels", "1,2"]) == 1
        fails = False
        assert cli.main([*files, "--labels", "1,2"]) == 0
    assert all(f"Bearer {KEY}" in head for head in endpoint.headers)
    told = traceback.TracebackException.from_exception(caught.value, capture_locals=True).format()
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None
    streams = capsys.readouterr()
    for text in ("".join(told), caplog.text, streams.out, streams.err, repr(judge.__dict__), str(judge.weights)):
        assert KEY not in text
    assert KEY.encode() not in everything_below(tmp_path)
    assert "20 prompt and 4 new tokens" in streams.out
    table = pd.read_parquet(tmp_path / "out.parquet")
    assert KEY not in table.to_csv() + json.dumps(table.attrs)


@pytest.mark.parametrize("refuses", [False, True])
def test_a_chapter_shows_a_served_judge_says_it_is_not_checked_and_holds_no_key(
    project: Path, monkeypatch: Any, refuses: bool
) -> None:
    """The chapter with a key in the environment, once to its end, and once with the traceback of a refused key."""
    import papermill

    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    wrong, out = Reply({"error": {"message": f"incorrect key {KEY}"}}, 401), project / "out.ipynb"
    with Endpoint(lambda *asked: wrong if refuses else judging(*asked)) as endpoint:
        given = {"judge": f"openai:toy@{endpoint.url}", "draws": 200}
        with pytest.raises(papermill.PapermillExecutionError) if refuses else nullcontext():
            papermill.execute_notebook(
                project / "notebooks" / "evidence_check.ipynb", out, given, kernel_name="python3", progress_bar=False
            )
    text = out.read_text()
    assert ("incorrect key [key]" if refuses else "Not checked: a served judge has no weight digest") in text
    assert endpoint.headers
    assert KEY.encode() not in everything_below(project)


@pytest.mark.parametrize(
    "address",
    [
        f"openai:toy@https://user:{KEY}@example.org/v1",
        f"openai:toy@https://example.org/v1?key={KEY}",
        f"openai:toy@https://example.org/v1#{KEY}",
        "openai:toy",
        "openai:@https://example.org/v1",
        "openai:toy@ftp://example.org",
    ],
)
def test_an_address_that_is_none_or_holds_a_secret_is_refused_without_repeating_it(address: str) -> None:
    with pytest.raises(JudgeError, match="write openai:MODEL@BASE_URL") as caught:
        load_judge(address)
    assert KEY not in str(caught.value)


def test_a_key_is_needed_for_https_never_sent_in_the_clear_and_not_needed_on_this_machine(monkeypatch: Any) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(JudgeError, match=r"OPENAI_API_KEY is not set; it holds the key for example\.org"):
        load_judge("openai:toy@https://example.org/v1").label_logprobs(rows(1), LABELS)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    sent = {url: ApiJudge(f"openai:toy@{url}/v1")._secret() for url in ("http://node7:8000", "http://localhost:1")}
    assert sent == {"http://node7:8000": "none", "http://localhost:1": KEY}


def test_the_plan_tells_calls_and_asks_nothing(tmp_path: Path, capsys: Any) -> None:
    pd.DataFrame({"id": range(30), "prompt": rows(30)}).to_json(tmp_path / "p.jsonl", orient="records", lines=True)
    with Endpoint() as endpoint:
        files = ["judge", str(tmp_path / "p.jsonl"), str(tmp_path / "o.parquet"), "--labels", "1,2", "--plan"]
        assert cli.main([*files, "--judge", f"openai:toy@{endpoint.url}"]) == 0
    assert "30 calls, about " in capsys.readouterr().out
    assert endpoint.headers == []


def test_a_served_judge_makes_no_record(capsys: Any) -> None:
    assert cli.main(["record", "evidence_check", "openai:toy@http://127.0.0.1:9/v1"]) == 1
    assert "no digest pins its weights" in capsys.readouterr().err


# A real server: llama.cpp (`pip install xllamacpp`) or vLLM, in an environment of its own.

LLAMA = """if True:
    import sys, time, xllamacpp
    p = xllamacpp.CommonParams()
    p.model.path, p.n_ctx, p.hostnames, p.port, p.n_parallel = sys.argv[1], 8192, ["127.0.0.1"], int(sys.argv[2]), 2
    p.model_alias, p.cpuparams.n_threads = {"smollm2-135m"}, 1
    server = xllamacpp.Server(p)
    while True: time.sleep(1)"""
VLLM = [
    "-m",
    "vllm.entrypoints.openai.api_server",
    "--host",
    "127.0.0.1",
    "--dtype",
    "float32",
    "--max-model-len",
    "1024",
]
TOLERANCE = {"xllamacpp": 0.5, "vllm": 2e-3}  # nats; llama.cpp computes on 8-bit activations, vLLM in float32


@contextmanager
def real_server(kind: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """SmolLM2-135M-Instruct on the loopback address, answering when the block begins and killed when it ends."""
    python = os.environ["REPROLIB_SERVER_PYTHON"]
    if kind == "xllamacpp":
        model = weights.cache_folder() / weights.registry()["smollm2-135m"].file
        command = [python, "-c", LLAMA, str(model), str(port)]
    else:
        folder = weights.resolve("smollm2-135m").folder
        command = [python, *VLLM, "--model", str(folder), "--served-model-name", "smollm2-135m", "--port", str(port)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"VLLM_CPU_KVCACHE_SPACE": "1"}
    process = subprocess.Popen(command, env=env, start_new_session=True, **quiet)  # type: ignore[call-overload]
    try:
        for _ in range(1200):
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health"):  # 503 while it loads
                break
            assert process.poll() is None, f"{kind} did not start"
            time.sleep(0.25)
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["xllamacpp", "vllm"])
def test_a_real_server_killed_and_restarted_loses_nothing_and_agrees_with_the_local_judge(
    kind: str, tmp_path: Path
) -> None:
    if not weights.at_hand("smollm2-135m"):
        pytest.skip("weights of smollm2-135m are not at hand")
    python = os.environ.get("REPROLIB_SERVER_PYTHON", "")
    if not python or subprocess.run([python, "-c", f"import {kind}"], capture_output=True).returncode:
        pytest.skip(f"REPROLIB_SERVER_PYTHON names no Python that has {kind}")
    asked, port = recipe("evidence_check").prompts()["prompt"].tolist()[:24], free_port()
    judge = load_judge(f"openai:smollm2-135m@http://127.0.0.1:{port}/v1", concurrency=2, attempts=2)
    with real_server(kind, port) as process:

        def kill() -> None:
            done = 0
            while done < 8:
                time.sleep(0.05)
                with suppress(sqlite3.OperationalError):  # its table is just being made
                    done = len(statuses(Store(tmp_path)))
            os.killpg(process.pid, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        with pytest.raises(JudgeError, match=r"rows failed: .*APIConnectionError"):
            judge.label_logprobs(asked, LABELS, store=Store(tmp_path))
        killer.join()
    finished = statuses(Store(tmp_path)).count("done")
    assert 8 <= finished < 24
    with real_server(kind, port):
        frame = judge.label_logprobs(asked, LABELS, store=Store(tmp_path))
    assert frame.attrs["run"]["rows_computed"] == 24 - finished
    local = load_judge("smollm2-135m").label_logprobs(asked, LABELS)
    assert frame["n_tokens"].tolist() == local["n_tokens"].tolist()  # the server renders the same template
    columns = ["logp_1", "logp_2"]
    known = frame[columns].notna().to_numpy()
    assert known.mean() > 0.5
    difference = np.abs(frame[columns].to_numpy() - local[columns].to_numpy())[known]
    print(f"{kind}: largest difference {difference.max():.2g}, median {np.median(difference):.2g} nats")
    assert difference.max() < TOLERANCE[kind]
    bounds = frame[["bound_1", "bound_2"]].to_numpy()
    assert (local[columns].to_numpy()[~known] <= bounds[~known] + TOLERANCE[kind]).all()
