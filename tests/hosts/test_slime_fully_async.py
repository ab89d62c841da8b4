"""slime's own fully asynchronous worker, unmodified, with groups asked for natively from rollout to rollout."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from host_rollouts import N, common_arguments

from rollout_patch import PatchError, ResponseRefused, UnsupportedHost
from rollout_patch.hosts import slime_fully_async
from rollout_patch.hosts.slime_fully_async import generate_rollout_fully_async, take_out

pytestmark = [pytest.mark.hosts, pytest.mark.filterwarnings("ignore")]

CHECKOUT = "SLIME_CHECKOUT"
PROMPTS = [f"prompt number {number}" for number in range(60)]  # versions before mid-August 2026 drop what is over


@pytest.fixture
def stock(host_importer: Callable[..., Any]) -> Any:
    return host_importer(CHECKOUT, "slime.rollout.fully_async_rollout", ("httpx", "ray", "pylatexenc"))


@pytest.fixture
def arguments(stock: Any, server: Any, byte_tokenizer: Path) -> Iterator[Callable[..., Namespace]]:
    from slime.utils import http_utils
    from slime.utils.misc import SingletonMeta

    SingletonMeta._instances.clear()
    http_utils._http_client = None

    def make(**changes: Any) -> Namespace:
        given = dict(
            **common_arguments(server.port, byte_tokenizer) | {"rollout_batch_size": 3},
            rollout_num_engines=1,
            group_rm=False,
            rm_type=None,
        )
        args = Namespace(**{**given, **changes})
        http_utils.init_http_client(args)
        return args

    yield make
    close(stock, http_utils._http_client)
    http_utils._http_client = None


def close(stock: Any, client: Any) -> None:
    """Ends the worker, and the client's connections on the worker's loop."""
    in_place, worker = slime_fully_async._in_place, stock._global_worker
    if in_place is not None and worker is not None:
        worker.data_buffer = Namespace(get_samples=lambda count: [])
        loop = in_place.calls._engines.get_loop()
        asyncio.run_coroutine_threadsafe(settled(client), loop).result(30)
    stock._stop_global_worker()
    take_out()


async def settled(client: Any) -> None:
    for task in asyncio.all_tasks():
        if "generate_and_rm_group" in repr(task.get_coro()):
            task.cancel()
    await asyncio.sleep(0.1)
    await client.aclose()


def test_groups_go_native_from_rollout_to_rollout(stock: Any, arguments: Any, server: Any, data_source: Any) -> None:
    from slime.utils import http_utils
    from slime.utils.types import Sample

    own = {name: getattr(stock, name) for name in ("generate_and_rm_group", "AsyncRolloutWorker")}
    args, source = arguments(), data_source(Sample, PROMPTS, N)
    outputs = [generate_rollout_fully_async(args, number, source) for number in range(3)]
    samples = [sample for output in outputs for group in output.samples for sample in group]
    assert len(samples) == len({sample.index for sample in samples}) == 9 * N
    assert all(sample.status is Sample.Status.COMPLETED or sample.response_length == 8 for sample in samples)
    assert all(sample.reward is not None and len(sample.loss_mask) == sample.response_length for sample in samples)
    assert {body["sampling_params"].get("n") for body in server.requests} == {N}
    counted = sum(output.metrics["rollout_patch/native_groups"] for output in outputs)
    assert 9 <= counted <= len(server.requests) <= len(PROMPTS)
    close(stock, http_utils._http_client)
    assert {name: getattr(stock, name) for name in own} == own


def test_an_error_of_the_plug_in_ends_the_rollout_although_the_worker_only_logs_it(
    arguments: Any, server: Any, data_source: Any
) -> None:
    from slime.utils.types import Sample

    server.changes = lambda item: item["meta_info"].pop("id")
    with pytest.raises(ResponseRefused, match="has no id"):
        generate_rollout_fully_async(arguments(rollout_patch_strict=1), 0, data_source(Sample, PROMPTS, N))


@pytest.mark.parametrize("changes", [{"rollout_patch_design": "probe"}, {"rollout_patch_record": "record"}])
def test_what_needs_an_end_is_refused(
    arguments: Any, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnsupportedHost, match="need an end"):
        generate_rollout_fully_async(arguments(**changes), 0, "source")
    assert slime_fully_async._in_place is None
    assert issubclass(UnsupportedHost, PatchError)
