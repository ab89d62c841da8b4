"""A stand-in of ClearML's server: it speaks the part of the protocol that reports need, and keeps what arrives."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import BodyPartReader, web


def _token() -> str:
    """A token of the form that the SDK decodes; nobody checks its signature."""
    claims = {"exp": int(time.time()) + 3600, "api_version": "2.23", "server_version": "1.16.0", "feature_set": "basic"}
    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in ({"alg": "none"}, claims)
    ]
    return ".".join([*parts, ""])


class ClearMLServer:
    """What arrived: tasks by id, their events, and the names of uploaded files.

    From the task named `dies_at` on it "forgets" events, "refuses" every request or "hangs", as `how` says.
    """

    def __init__(self, dies_at: str = "", how: str = "") -> None:
        self.tasks: dict[str, dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []
        self.uploads: list[str] = []
        self.dies_at, self.how, self.dead = dies_at, how, False  # dead: it has come to that task
        self.address = ""

    def named(self, name: str) -> list[dict[str, Any]]:
        """The tasks of a name, in the order they were made."""
        return [task for task in self.tasks.values() if task["name"] == name]

    def scalars(self, task: dict[str, Any]) -> dict[str, dict[int, float]]:
        """The scalars of a task: values by step, by title and series."""
        found: dict[str, dict[int, float]] = {}
        for event in self.events:
            if event["task"] == task["id"] and event["type"] == "training_stats_scalar":
                found.setdefault(f"{event['metric']}/{event['variant']}", {})[event["iter"]] = event["value"]
        return found

    def configuration(self) -> str:
        """A clearml.conf for this server."""
        hosts = {name: self.address for name in ("api_server", "web_server", "files_server")}
        return json.dumps({"api": {**hosts, "credentials": {"access_key": "key", "secret_key": "secret"}}})

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if self.dead and self.how == "hangs":
            await request.content.read()
            await asyncio.sleep(3600)
        if self.dead and self.how == "refuses":
            return web.json_response({"meta": {"result_code": 400, "result_msg": "gone"}}, status=400)
        if request.content_type.startswith("multipart/"):
            reader = await request.multipart()
            while (part := await reader.next()) is not None:
                assert isinstance(part, BodyPartReader)
                self.uploads.append(str(part.name))
                await part.read()
            return web.json_response({})
        body = await request.read()
        action = request.path.rpartition("/")[2]
        lines = [json.loads(line) for line in body.splitlines() if line.strip()] if action == "events.add_batch" else []
        asked = json.loads(body) if body and not lines else {}
        data = self.act(action, asked, lines)
        return web.json_response({"meta": {"result_code": 200, "result_subcode": 0, "result_msg": "OK"}, "data": data})

    def act(self, action: str, asked: dict[str, Any], lines: list[dict[str, Any]]) -> dict[str, Any]:
        if action == "auth.login":
            return {"token": _token()}
        if action == "projects.get_all":
            return {"projects": []}
        if action == "projects.create":
            return {"id": "p" * 32}
        if action == "projects.get_by_id":
            return {"project": {"id": "p" * 32, "name": "parity"}}
        if action == "tasks.create":
            return self._create(asked)
        if action == "tasks.get_by_id":
            return {"task": self.tasks[asked["task"]]}
        if action in ("tasks.get_all", "tasks.get_all_ex"):
            return {"tasks": [self.tasks[one] for one in asked.get("id") or [] if one in self.tasks]}
        if action == "tasks.edit":
            self.tasks[asked["task"]].update(
                {key: value for key, value in asked.items() if key not in ("task", "force")}
            )
        if action == "tasks.add_or_update_artifacts":
            self.tasks[asked["task"]].setdefault("artifacts", []).extend(one["key"] for one in asked["artifacts"])
        if action in ("tasks.started", "tasks.completed"):
            self.tasks[asked["task"]]["status"] = {"tasks.started": "in_progress"}.get(action, "completed")
        if action == "events.add_batch":
            kept = [] if self.dead else lines
            self.events += kept
            return {"added": len(lines), "errors": 0}
        if action == "events.get_task_events":
            return self._page(asked)
        return {"updated": 1, "fields": {}}

    def _create(self, asked: dict[str, Any]) -> dict[str, Any]:
        number = f"{len(self.tasks):032x}"
        plain = {"user": "someone", "company": "here", "status": "created", "project": "p" * 32}
        self.tasks[number] = {**asked, **plain, "id": number, "last_iteration": 0, "output": {}, "execution": {}}
        self.dead = self.dead or asked["name"] == self.dies_at
        return {"id": number}

    def _page(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The events of a task in pages; the page asked for is told by the scroll id."""
        own = [
            event for event in self.events if event["task"] == asked["task"] and event["type"] == asked["event_type"]
        ]
        first, size = int(asked.get("scroll_id") or 0), int(asked.get("batch_size") or 1000)
        page = own[first : first + size]
        return {"events": page, "returned": len(page), "total": len(own), "scroll_id": str(first + len(page))}


@asynccontextmanager
async def clearml_server(dies_at: str = "", how: str = "") -> AsyncIterator[ClearMLServer]:
    """Serves on a port of this machine."""
    server = ClearMLServer(dies_at, how)
    application = web.Application(client_max_size=1 << 28)
    application.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.address = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()
