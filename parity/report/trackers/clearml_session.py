"""The process that ClearML's SDK runs in: a job on standard input, events as JSON lines on standard output.

It ends by itself when one task takes longer than the job's patience, whatever the SDK waits for.
"""

from __future__ import annotations

import faulthandler
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

READ_BACKS = 10
"""How often a server is asked, a second apart, for the scalars that it was given: it indexes them with a delay."""
CONNECT_SECONDS = 10.0

_QUIET = {
    "auto_connect_arg_parser": False,
    "auto_connect_frameworks": False,
    "auto_connect_streams": False,
    "auto_resource_monitoring": False,
}


def main() -> None:
    """Does the job, and ends without the SDK's handlers at exit, which wait for a server that may be gone."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the SDK prints to standard output
    code = 0
    try:
        for event in _publish(json.load(sys.stdin)):
            print(json.dumps(event), file=channel, flush=True)
    except Exception as error:  # of any of the SDK's many classes
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        print(json.dumps({"event": "failed", "reason": reason}), file=channel, flush=True)
        code = 1
    os._exit(code)


def _publish(job: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    from clearml import Task

    # Detecting the repository uploads source, lists packages, asks for updates, and forks in a process with threads,
    # where it hangs now and then. A process for reports makes 1,200 scalars 30 times slower than a thread does.
    Task._update_repository = lambda self: None
    Task._report_subprocess_enabled = False
    faulthandler.dump_traceback_later(job["patience"], exit=True)
    if not job["zips"]:
        _reach_server()
    ids: list[str] = []
    for described in job["tasks"]:
        faulthandler.dump_traceback_later(job["patience"], exit=True)
        compares = described is job["tasks"][-1]
        if compares and not job["zips"] and ids:
            described["comment"] += f"\n{_compare_address(Task, ids)}"
            yield {"event": "compare", "address": _compare_address(Task, ids)}
        task = Task.init(
            job["project"], described["name"], described["type"], reuse_last_task_id=False, output_uri=False, **_QUIET
        )
        yield {"event": "begun", "name": described["name"], "id": task.id}
        _fill(task, described)
        address = task.get_output_log_web_page()
        task.close()
        if job["zips"]:
            address = _move_zip(task, Path(job["zips"]) / described["zip"])
        else:
            _confirm(Task, task.id, described)
            ids.append(task.id)
        yield {"event": "done", "name": described["name"], "address": address}


def _reach_server() -> None:
    """Asks once whether the server is there: the SDK itself would ask for hours."""
    import requests
    from clearml.backend_api import Session

    host = Session.get_api_server_host()
    try:
        requests.get(f"{host}/debug.ping", timeout=CONNECT_SECONDS)
    except requests.exceptions.SSLError:
        return  # the configuration may allow its certificate
    except requests.RequestException as error:
        raise ConnectionError(f"{host} does not answer ({type(error).__name__})") from error


def _fill(task: Any, described: Mapping[str, Any]) -> None:
    task.set_tags(described["tags"])
    task.set_comment(described["comment"])
    task.connect(described["settings"], name="experiment")
    logger = task.get_logger()
    for title, series, steps, values in described["scalars"]:
        for step, value in zip(steps, values, strict=True):
            logger.report_scalar(title, series, value, step)
    for name, value in described["numbers"].items():
        logger.report_single_value(name, value)
    for title, rows in described["tables"].items():
        logger.report_table("tables", title, 0, table_plot=rows)
    for design, metric, figure in described["plots"]:
        logger.report_plotly(f"curves, {design}", metric, figure, 0)
    for name, path in described["artifacts"].items():
        if not task.upload_artifact(name, artifact_object=path, wait_on_upload=True):
            raise OSError(f"artifact {name} was not uploaded")
    task.flush(wait_for_uploads=True)


def _move_zip(task: Any, to: Path) -> str:
    folder = task.get_offline_mode_folder()
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(f"{folder}.zip", to)
    shutil.rmtree(folder, ignore_errors=True)
    return str(to)


def _confirm(tasks: Any, task_id: str, described: Mapping[str, Any]) -> None:
    """Reads back how many scalars the server has of a task: what the SDK could not send, it drops without a word."""
    sent = {(title, series): len(steps) for title, series, steps, _ in described["scalars"]}
    missing = dict(sent)
    for attempt in range(READ_BACKS if sent else 0):
        time.sleep(bool(attempt))
        found = tasks.get_task(task_id=task_id).get_all_reported_scalars(x_axis="iter")
        missing = {
            (title, series): count
            for (title, series), count in sent.items()
            if len(found.get(title, {}).get(series, {}).get("x", ())) < count
        }
        if not missing:
            return
    if missing:
        (title, series), count = next(iter(missing.items()))
        said = f"{len(missing)} of {len(sent)} curves lack steps, first {title}/{series} with {count}"
        raise ConnectionError(f"task {task_id}, read back: {said}")


def _compare_address(tasks: Any, ids: list[str]) -> str:
    web = tasks.get_task(task_id=ids[0]).get_output_log_web_page().partition("/projects/")[0]
    return f"{web}/projects/*/compare-tasks;ids={','.join(ids)}/scalars/graph"


if __name__ == "__main__":
    main()
