"""``draftwire-verifier serve`` with all its parts: that what options and file say reaches whatever acts on it."""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draftwire.cloud_verifier.service.keys import hash_key, new_key
from draftwire.cloud_verifier.targets.transformers_target import TransformersTarget
from draftwire.edge_client import AsyncEdgeClient, Result
from draftwire.protocol.errors import AuthenticationError, VerifierRefusedError

from ..cloud_verifier.service.certificates import Authority
from ..grace import GRACE, wait_for
from .scrape import Scrape, fetch
from .table_bundle import write_bundle
from .verifier_process import make_tiny_model, serving

ALICE, BOB = new_key(), new_key()
WRONG = new_key()
PROMPT = [5, 6, 7]
COUNT = 24
KV_BYTES = 8 * 1024**2


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def bad_draft(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft of the tiny model's vocabulary that knows nothing of it."""
    target = TransformersTarget.load(str(tiny_model), threads=1)
    size = target.info.vocabulary_size
    table = np.random.default_rng(1).standard_normal(((size + 1) ** 2, size)).astype(np.float32)
    return write_bundle(tmp_path_factory.mktemp("bad-draft"), target, table)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@dataclass(frozen=True, slots=True)
class Served:
    """The program, and the files it was given."""

    process: subprocess.Popen[str]
    url: str
    log: Path
    config: Path

    def logged(self) -> list[dict[str, Any]]:
        """Every whole line of its log so far."""
        return [json.loads(line) for line in self.log.read_text().split("\n")[:-1]]

    async def metrics(self) -> Scrape:
        """From the port that the log tells."""
        (said,) = [line["message"] for line in self.logged() if line["message"].startswith("metrics are at ")]
        _, text = await asyncio.to_thread(fetch, said.removeprefix("metrics are at "))
        return Scrape(text)

    async def metrics_when(self, holds: Callable[[Scrape], bool]) -> Scrape:
        """The first in which something holds."""
        async with asyncio.timeout(GRACE):
            while not holds(seen := await self.metrics()):
                await asyncio.sleep(0.01)
        return seen

    async def generate(self, key: str, route: str = "", *, draft: Path | None = None, seed: int = 0) -> Result:
        """One answer, that is always the same; a draft is waited for."""
        path = f"/v1/verify/{route}" if route else ""
        async with AsyncEdgeClient(f"{self.url}{path}", draft=draft, api_key=key, reconnect_seconds=0) as client:
            if draft is not None:
                await client.wait_for_draft()
            options: Any = {"policy": "cost", "controller": "fixed", "look_ahead": 4}
            result = client.generate(PROMPT, max_tokens=COUNT, seed=seed, ignore_eos=True, **options)
            return await wait_for(result)

    def end(self) -> None:
        """SIGTERM; it ends well, and says nothing outside its log."""
        self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=GRACE)
        assert self.process.returncode == 0
        assert errors == ""


@contextmanager
def served(model: Path, folder: Path, config: str, *arguments: str) -> Iterator[Served]:
    """The program with everything logged as JSON to a file."""
    log, file = folder / "log", folder / "verifier.toml"
    file.write_text(config)
    general = ["--log-level", "debug", "--log-format", "json", "--log-file", str(log)]
    options = ["--threads", "1", "--kv-memory", "8M", "--config", str(file), *arguments]
    with serving(str(model), *options, general=general) as (process, url):
        yield Served(process, url, log, file)


def config_of(*, plain: str, keys: dict[str, str] | None = None) -> str:
    """Keys, a route of which ``plain`` says what becomes of drafts, and one that bad drafts trip."""
    named = keys or {"alice": ALICE}
    return "\n".join(
        [
            *(f'[keys.{name}]\nsha256 = ["{hash_key(key)}"]' for name, key in named.items()),
            f'[routes.plain]\nspeculation = "{plain}"',
            "[routes.chat]\n[routes.chat.guardrails]\nmin_acceptance = 0.5\nmin_samples = 2",
            "",
        ]
    )


async def test_every_part_is_wired(
    tiny_model: Path, bad_draft: Path, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = authority.issue("site")
    tls = ["--tls-cert", str(files.certificate), "--tls-key", str(files.key)]
    with served(tiny_model, tmp_path, config_of(plain="off"), *tls, "--metrics-port", "0") as verifier:
        assert verifier.url.startswith("wss://")
        with pytest.raises(VerifierRefusedError, match="CERTIFICATE_VERIFY_FAILED"):
            await verifier.generate(ALICE)
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))

        # The door: keys, and who was sent away.
        with pytest.raises(AuthenticationError):
            await verifier.generate(WRONG)
        await _is_refused(verifier, authority)
        expected = await verifier.generate(ALICE)
        assert len(expected.token_ids) == COUNT

        # The rules: a route without speculation, and one that loses it.
        off = await verifier.generate(ALICE, "plain", draft=bad_draft)
        assert off.stats.sent_tokens > 0
        assert off.stats.drafted == 0
        chats = [await verifier.generate(ALICE, "chat", draft=bad_draft) for _ in range(3)]
        assert [chat.stats.drafted > 0 for chat in chats] == [True, True, False]
        assert {result.token_ids for result in (expected, off, *chats)} == {expected.token_ids}

        seen = await verifier.metrics_when(lambda now: now.value("connections") == 0)
        _check_metrics(seen, [expected, off, *chats])
        (line,) = [line for line in verifier.logged() if "speculation is" in line["message"]]
        assert line["level"] == "warning"
        assert line["message"].startswith("route 'chat': speculation is tripped (acceptance): 0.")

        # Set anew: a file that is wrong changes nothing, and a good one all of it.
        verifier.config.write_text("[routes.plain]\nspeculation = 1\n")
        verifier.process.send_signal(signal.SIGHUP)
        await verifier.metrics_when(lambda now: now.value("config_reloads_total", outcome="failed") == 1)
        verifier.config.write_text(config_of(plain="on", keys={"bob": BOB}))
        verifier.process.send_signal(signal.SIGHUP)
        await verifier.metrics_when(lambda now: now.value("config_reloads_total", outcome="done") == 1)
        on = await verifier.generate(BOB, "plain", draft=bad_draft)
        assert on.stats.drafted > 0
        assert on.token_ids == expected.token_ids
        with pytest.raises(AuthenticationError):
            await verifier.generate(ALICE)
        assert (await verifier.metrics()).value("requests_rejected_total", reason="unauthorized") == 3
        verifier.end()
    text = verifier.log.read_text()
    assert all(key not in text for key in (ALICE, BOB, WRONG))
    assert {"debug", "info", "warning", "error"} <= {line["level"] for line in verifier.logged()}


async def _is_refused(verifier: Served, authority: Authority) -> None:
    """OpenAI's endpoint asks for the key as well."""
    context = ssl.create_default_context(cafile=str(authority.certificate))
    address = verifier.url.replace("wss", "https", 1)
    with pytest.raises(urllib.error.HTTPError) as caught:
        await asyncio.to_thread(_post, f"{address}/v1/completions", {"prompt": PROMPT}, context)
    caught.value.close()
    assert caught.value.code == 401


def _post(url: str, body: Any, context: ssl.SSLContext | None = None) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=GRACE, context=context) as reply:
        return json.load(reply)


def _check_metrics(seen: Scrape, results: list[Result]) -> None:
    """What the engine, the door and the guardrails tell is what clients got."""
    assert seen.value("requests_rejected_total", reason="unauthorized") == 2
    assert seen.total("request_success_total") == len(results)
    assert seen.total("generation_tokens_total") == COUNT * len(results)
    drafted = sum(result.stats.drafted for result in results)
    assert seen.total("spec_decode_num_draft_tokens_total") == drafted > 0
    assert seen.value("step_seconds_count") >= sum(result.stats.target_passes for result in results) > 0
    assert seen.total("time_to_first_token_seconds_count") == len(results)
    assert 0 < seen.value("kv_cache_limit_bytes") <= KV_BYTES
    assert seen.value("speculation_switches_total", route="chat", to="tripped", reason="acceptance") == 1
    assert seen.value("speculation_state", route="chat", state="tripped") == 1
    assert seen.value("speculation_state", route="plain", state="healthy") == 1
    assert seen.value("config_reloads_total", outcome="done") == 0
    assert seen.value("log_errors_total") == 0


async def test_metrics_and_the_watchdog_are_on_the_services_own_port(tiny_model: Path, tmp_path: Path) -> None:
    """Neither asks for a key. With a step that may take no time at all, every step in progress is a stall."""
    with served(tiny_model, tmp_path, config_of(plain="off"), "--stall-seconds", "0") as verifier:
        address = verifier.url.replace("ws", "http", 1)
        assert await asyncio.to_thread(fetch, f"{address}/readyz") == ("text/plain; charset=utf-8", "ready\n")
        async with AsyncEdgeClient(verifier.url, api_key=ALICE) as client:
            call = asyncio.create_task(client.generate(PROMPT, max_tokens=4000, ignore_eos=True))
            said = ""
            while not said:
                assert not call.done(), "no step was ever seen in progress"
                said = await asyncio.to_thread(_unready, f"{address}/readyz")
            assert said == "503 the target's step has taken more than 0 s\n"
            call.cancel()
        _, text = await asyncio.to_thread(fetch, f"{address}/metrics")
        assert Scrape(text).total("build_info") == 1
        verifier.end()


def _unready(url: str) -> str:
    """The status and why it is not; empty where it is."""
    try:
        fetch(url)
    except urllib.error.HTTPError as error:
        with error:
            return f"{error.code} {error.read().decode()}"
    return ""
