"""What answers at a URL, seen within seconds by requests that change nothing, before a command loads anything."""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import dataclass
from html import unescape

import aiohttp

from parity.errors import EngineError, InputError, shown
from parity.records.budgets import decode_json

SECONDS = 10.0
MOST_BYTES = 1_000_000
INFO = ("/server_info", "/get_server_info", "/version")
"""Where engines say what they are: SGLang, releases before 0.5.6 and its router, vLLM."""
MODELS = "/v1/models"
_SHOWN_MODELS = 3
_TITLE = re.compile(r"<title[^>]{0,200}>([^<]{0,200})", re.IGNORECASE)


def check_engine(url: str) -> None:
    """Refuses a URL where something else than an engine answers, or nothing; in doubt it passes.

    Raises:
        EngineError: What it is, as far as that can be seen, and what to do.
    """
    if what := asyncio.run(_what_is_wrong(url.rstrip("/"))):
        raise EngineError(f"{url}: {what}")


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    kind: str
    location: str
    body: bytes

    @property
    def json(self) -> object:
        """What it holds, if that is JSON."""
        try:
            return decode_json(self.body, "the answer")
        except InputError:
            return None


async def _what_is_wrong(url: str) -> str:
    """Why nothing here is an engine; empty where one may be."""
    key = os.environ.get("PARITY_API_KEY", "")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    timeout = aiohttp.ClientTimeout(total=SECONDS)
    answers = []
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
        for endpoint in (*INFO, MODELS):
            try:
                answer = await _ask(session, url + endpoint)
            except aiohttp.ClientSSLError as error:
                return f"no TLS connection ({shown(str(error))}); is it http:// instead of https://?"
            except aiohttp.ClientConnectorError as error:
                reason = os.strerror(number).lower() if (number := error.errno or 0) > 0 else shown(str(error.os_error))
                return f"nothing answers there ({reason}); start the engine, or give the address that its log names"
            except (aiohttp.ClientError, OSError, ValueError, asyncio.TimeoutError):
                return ""
            if answer.status == 200 and endpoint != MODELS and isinstance(answer.json, dict):
                return ""
            answers.append(answer)
    return _name(answers)


async def _ask(session: aiohttp.ClientSession, url: str) -> _Answer:
    async with session.get(url, allow_redirects=False) as response:
        body = await response.content.read(MOST_BYTES)
        location = response.headers.get("Location", "")
        return _Answer(response.status, response.content_type, location, body)


def _name(answers: list[_Answer]) -> str:
    """What gave these answers, the last of them to `MODELS`; empty where they say nothing for good."""
    needed = "parity speaks to SGLang, vLLM and sglang-router: give the address of one of these"
    models = answers[-1].json
    first = answers[0]
    if first.status in (401, 403):
        return f"asks for a key (status {first.status}): set PARITY_API_KEY to it"
    if first.location and 300 <= first.status < 400:
        return f"redirects to {shown(first.location)}: give that address"
    if any(answer.status >= 429 or answer.status == 408 for answer in answers):
        return ""
    if answers[-1].status == 200 and isinstance(models, dict) and isinstance(models.get("data"), list):
        names = [str(model.get("id")) for model in models["data"] if isinstance(model, dict)]
        serves = f" that serves {shown(', '.join(names[:_SHOWN_MODELS]))}" if names else ""
        return f"an OpenAI-compatible API{serves}, without the endpoints that return token ids; {needed}"
    if any(answer.kind == "text/html" for answer in answers):
        pages = (_TITLE.search(answer.body.decode(errors="replace")) for answer in answers if answer.status == 200)
        titles = [found[1].strip() for found in pages if found]
        title = f" ({shown(unescape(titles[0]))!r})" if titles else ""
        return f"a web server{title}, no engine; {needed}"
    return f"a server that has none of {', '.join((*INFO, MODELS))}, so no engine; {needed}"
