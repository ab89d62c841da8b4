"""What a command says of a URL at which no engine answers, before it loads anything."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from toy_engine import toy_engine

from parity.cli import cli
from parity.engines.identify import check_engine
from parity.errors import EngineError

Answers = Mapping[str, tuple[int, str, str]]
"""By path, status, type of content, and body; `*` stands for every other path."""

NOT_FOUND = (404, "text/html", "<title>Error response</title>")
MODELS = json.dumps({"object": "list", "data": [{"id": "Qwen/Qwen3-4B", "object": "model"}]})


@contextmanager
def server(answers: Answers, headers: Mapping[str, str] | None = None) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, kind, body = answers.get(self.path) or answers.get("*", (404, "text/plain", "404: Not Found"))
            self.send_response(status)
            self.send_header("Content-Type", kind)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()
        thread.join()


STRANGERS = {
    "web page": ({"*": (200, "text/html", "<html><title>Grafana &amp; co</title>")}, "'Grafana & co'"),
    "files": ({"*": NOT_FOUND}, "a web server, no engine"),
    "another model server": ({"/v1/models": (200, "application/json", MODELS)}, "serves Qwen/Qwen3-4B, without"),
    "nothing known": ({}, "none of /server_info, /get_server_info"),
    "a key": ({"*": (401, "application/json", "{}")}, "PARITY_API_KEY"),
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_a_stranger_is_named(kind: str) -> None:
    answers, words = STRANGERS[kind]
    with server(answers) as url, pytest.raises(EngineError) as refused:
        check_engine(url)
    assert words in str(refused.value)
    assert str(refused.value).startswith(url)


def test_a_redirect_is_named_and_not_followed() -> None:
    with (
        server({"*": (307, "text/plain", "")}, {"Location": "https://elsewhere.example/"}) as url,
        pytest.raises(EngineError, match=r"redirects to https://elsewhere\.example/: give that address"),
    ):
        check_engine(url)


def test_a_port_without_a_server_is_named() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(EngineError, match=r"nothing answers there \(connection refused\)"):
        check_engine(f"http://127.0.0.1:{port}")


OBJECT = (200, "application/json", "{}")


@pytest.mark.parametrize(
    "answers",
    [
        {"/server_info": OBJECT},
        {"/get_server_info": OBJECT},
        {"/version": OBJECT},
        {"*": (503, "text/html", "starting")},
        {"*": (429, "text/plain", "later")},
    ],
)
def test_what_may_be_an_engine_passes(answers: Answers) -> None:
    with server(answers) as url:
        check_engine(url)


def test_an_engine_passes() -> None:
    with toy_engine() as engine:
        check_engine(f"{engine.url}/")
        assert engine.paths == {"/server_info"}, "one request, which changes nothing"


@pytest.mark.parametrize(
    "command",
    [
        ("check", "URL"),
        ("sample", "--engine", "URL", "--out", "OUT"),
        ("run", "--engine", "URL", "--control", "--out", "OUT"),
        ("bench", "URL", "--out", "OUT"),
    ],
    ids=lambda command: command[0],
)
def test_each_command_says_it_before_it_makes_anything(command: tuple[str, ...], tmp_path: Path) -> None:
    out = tmp_path / "out"
    with server({"*": NOT_FOUND}) as url, pytest.raises(EngineError, match="no engine; parity speaks to SGLang"):
        cli.main([{"URL": url, "OUT": str(out)}.get(word, word) for word in command], standalone_mode=False)
    assert not out.exists()
