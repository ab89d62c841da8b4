"""Sends groups of samples to an engine by way of the patch, and keeps every exchange: for training and for sampling."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from PIL.Image import Image

from parity.engines.answers import REQUEST_RETRIES, RETRY_WAIT
from parity.engines.router import ROUTING_KEY
from parity.records.exchanges import Exchange, output_id
from parity.records.samples import SAMPLE_FIELDS, STATUS_OF_FINISH_REASON, Sample
from rollout_patch import (
    SGLANG,
    Capabilities,
    Dialect,
    GroupReport,
    Output,
    Permits,
    Post,
    SampleRequest,
    generate_group,
)

SEQUENCES_IN_FLIGHT = 512
"""Most samples requested at once, slime's default of `--sglang-server-concurrency`."""

T = TypeVar("T")


class SampleAdapter:
    """Lets samples take part in `rollout_patch.generate_group`; `images` are those of the prompt."""

    def __init__(self, images: Sequence[Image] = ()) -> None:
        self._images = images

    def request(self, sample: Sample) -> SampleRequest:
        """The prompt's ids and images, or its text where it has no ids, the sampling parameters, and log-probs."""
        names = ("max_new_tokens", "temperature", "top_p", "top_k", "sampling_seed")
        text = sample.prompt_ids is None
        return SampleRequest(
            {name: getattr(sample, name) for name in names if getattr(sample, name) is not None},
            input_ids=sample.prompt_ids,
            text=sample.extra["prompt"] if text else None,
            media={} if text else {"image_data": self._images},
            options={"return_logprob": True},
            # keeps a group together in every arm, where the router's policy goes by keys
            headers={ROUTING_KEY: f"{sample.rollout_id}-{sample.group_index}"},
        )

    def apply(self, sample: Sample, output: Output) -> None:
        """Fills in the response; the tokens of an aborted one are not trained on."""
        sample.output_ids, sample.logprobs, sample.text = output.output_ids, output.logprobs, output.text
        sample.finish_reason, sample.status = output.finish_reason, STATUS_OF_FINISH_REASON[output.finish_reason]
        sample.response_length = len(output.output_ids)
        sample.loss_mask = [int(sample.status != "aborted")] * sample.response_length
        sample.weight_versions = None if output.weight_version is None else [output.weight_version]
        sample.prompt_tokens, sample.cached_tokens = output.prompt_tokens, output.cached_tokens

    def snapshot(self, sample: Sample) -> dict[str, Any]:
        """Every field; `apply` replaces values and changes none in place."""
        return {name: getattr(sample, name) for name in SAMPLE_FIELDS}

    def restore(self, sample: Sample, snapshot: Any) -> None:
        """Every field as it was."""
        for name, value in snapshot.items():
            setattr(sample, name, value)


async def png_data_urls(_: str, images: Sequence[Image]) -> list[str]:
    """Images as the wire carries them: an encoder for `rollout_patch.generate_group`."""
    return [_png_data_url(image) for image in images]


def _png_data_url(image: Image) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def pending_group(size: int, extra: Mapping[str, Any], seed: int | None = None, **fields: Any) -> list[Sample]:
    """The samples of a group before they are sent; slot i has the sampling seed `seed` + i, if there is one."""
    return [
        Sample(
            index=index,
            status="pending",
            sampling_seed=None if seed is None else seed + index,
            extra=dict(extra),
            **fields,
        )
        for index in range(size)
    ]


@dataclass(frozen=True, slots=True)
class GroupSender:
    """Sends groups to one engine, or to the router in front of several.

    Attributes:
        post: Sends one request for samples.
        capabilities: Of the engine.
        served_by: Names the engine that gave an output, by the output's id.
        retries: How often a request may be sent again.
        placeholders: Token ids that stand for an image in a prompt.
        permits: How many samples may be in flight at once.
        dialect: How the engine is spoken to.
        decode: The text of a response, from its token ids, where the engine answers with ids alone; without it such a
            response has no text.
    """

    post: Post
    capabilities: Capabilities
    served_by: Callable[[str | None], str]
    retries: int = REQUEST_RETRIES
    placeholders: Collection[int | str] = ()
    permits: Permits = field(
        default_factory=lambda: Permits(asyncio.Semaphore(SEQUENCES_IN_FLIGHT), SEQUENCES_IN_FLIGHT)
    )
    dialect: Dialect = SGLANG
    decode: Callable[[list[int]], str] | None = None

    async def send(
        self,
        arm: str,
        samples: list[Sample],
        exchanges: list[Exchange],
        images: Sequence[Image] = (),
        chunk: int | None = None,
    ) -> GroupReport:
        """Fills in the samples of one group; appends each exchange as it comes, of failed requests too.

        A request for several samples holds at most `chunk` of them.

        Raises:
            PatchError: The group could not be generated.
        """
        place = {"rollout_id": samples[0].rollout_id, "group_index": samples[0].group_index}
        where = f"step {samples[0].rollout_id}, group {samples[0].group_index}, {arm}"

        def record(row: dict[str, Any]) -> None:
            engine_id = self.served_by(output_id(row["response"]))
            exchanges.append(Exchange.from_json({**row, **place, "engine_id": engine_id}, where))

        report = await generate_group(
            arm,
            samples,
            adapter=SampleAdapter(images),
            post=self.post,
            dialect=self.dialect,
            capabilities=self.capabilities,
            chunk=chunk,
            retries=self.retries,
            retry_wait=RETRY_WAIT,
            recorder=record,
            permits=self.permits,
            encoder=png_data_urls,
            placeholders=self.placeholders,
        )
        for sample, output in zip(samples, report.outputs, strict=True):
            sample.arm, sample.engine_id = report.arm_used, self.served_by(output.id)
            if output.text is None and self.decode is not None:
                sample.text = self.decode(output.output_ids)
        return report


async def all_or_none(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All results in order; after the first failure the rest is cancelled, and has ended, before it is raised."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
