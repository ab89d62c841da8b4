"""The host's own `generate` as the adapter: asked what it would send, and handed what came back.

A host's function that generates one sample builds a payload, calls its module's `post` once, and writes the answer into
the sample. Called with a `post` that takes the payload and stops, it says what to send; called with one that returns an
item of a group's answer, it applies that item exactly as it applies an answer of its own. Neither call waits for
anything, so the module's `post` is another only while nothing else can run.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from types import CodeType
from typing import Any

from rollout_patch.errors import UnsupportedHost
from rollout_patch.media import Encoder
from rollout_patch.requests import SampleRequest
from rollout_patch.responses import UNSENT, Output

_SHARED = ("prompt", "multimodal_inputs", "multimodal_train_inputs")
"""Fields that generation replaces and never changes in place, so that a snapshot need not copy them."""


class NothingToSend(Exception):
    """The host's `generate` returned without a request, such as for a sample without budget: the host handles it."""


class _Taken(BaseException):
    """Carries a payload out of the host's `generate`; no `except Exception` of the host's may stop it."""

    def __init__(self, url: str, payload: Mapping[str, Any], headers: Mapping[str, str] | None) -> None:
        super().__init__()
        self.url, self.payload, self.headers = url, payload, headers


@dataclass(frozen=True, slots=True)
class Stock:
    """Where a host keeps what is replaced while its `generate` runs.

    Attributes:
        generate: The host's generation of one sample, given the sample and its sampling parameters.
        post_in: The module in which it finds `post`.
        places: What else is another while it runs, as module, name and value: encoders that leave media as they are.
        trace_in: The module in which it finds `trace_span`, if it traces.
        shared_headers: The first sample's headers are every sample's.
    """

    generate: Callable[[Any, dict[str, Any]], Coroutine[Any, Any, Any]]
    post_in: Any
    places: Sequence[tuple[Any, str, Any]] = ()
    trace_in: Any = None
    shared_headers: bool = False


class StockAdapter:
    """Adapts a host's samples by the host's own `generate`.

    Args:
        stock: The host's functions.
        group: The group's samples.
        sampling_params: One set a slot.
        prime: What the host does to a sample before it generates it.
        aborted_status: What the host calls an aborted sample.
    """

    def __init__(
        self,
        stock: Stock,
        group: Sequence[Any],
        sampling_params: Sequence[Mapping[str, Any]],
        prime: Callable[[Any], None],
        aborted_status: Any,
    ) -> None:
        self.url = ""
        self._stock = stock
        self._prime = prime
        self._aborted_status = aborted_status
        self._params = {id(sample): params for sample, params in zip(group, sampling_params, strict=True)}
        self._before: dict[int, dict[str, Any]] = {}
        self._headers: Mapping[str, str] | None = None

    def request(self, sample: Any) -> SampleRequest:
        """What the host would send for the sample; images are left unencoded.

        Raises:
            NothingToSend: The host would send nothing.
        """

        async def take(url: str, payload: Mapping[str, Any], **options: Any) -> Any:
            raise _Taken(url, payload, options.get("headers"))

        self._prime(sample)
        try:
            self._run(sample, take, traced=False)
        except _Taken as taken:
            self.url = taken.url
            if self._headers is None or not self._stock.shared_headers:
                self._headers = taken.headers or {}
            return _request_of(taken.payload, self._headers, resumed=sample.response_length > 0)
        raise NothingToSend

    def apply(self, sample: Any, output: Output) -> None:
        """Lets the host write an output; a sample that was never sent is only marked, as the host marks one."""
        if output.id == UNSENT:
            self.restore(sample, self._before[id(sample)])
            sample.status = self._aborted_status
            return
        item = {"text": output.text, "output_ids": list(output.output_ids), "meta_info": dict(output.meta_info)}

        async def give(url: str, payload: Mapping[str, Any], **options: Any) -> Any:
            return item

        self._run(sample, give, traced=True)

    def snapshot(self, sample: Any) -> dict[str, Any]:
        """All attributes, those beyond the fields included."""
        before = {name: _copied(name, value) for name, value in vars(sample).items()}
        self._before[id(sample)] = before
        return before

    def restore(self, sample: Any, snapshot: Any) -> None:
        """All attributes as they were, and none that came since."""
        vars(sample).clear()
        vars(sample).update({name: _copied(name, value) for name, value in snapshot.items()})

    def _run(self, sample: Any, post: Callable[..., Any], traced: bool) -> None:
        stock = self._stock
        places = [(stock.post_in, "post", post), *stock.places]
        if stock.trace_in is not None and not traced:
            places.append((stock.trace_in, "trace_span", lambda *_, **__: nullcontext()))
        with replaced(*places):
            drive(stock.generate(sample, copy.deepcopy(dict(self._params[id(sample)]))))


def copy_of(sample: Any) -> Any:
    """A sample of its own with the same content; what generation never changes in place is shared."""
    twin = copy.copy(sample)
    vars(twin).update({name: _copied(name, value) for name, value in vars(sample).items()})
    return twin


def _copied(name: str, value: Any) -> Any:
    if name in _SHARED or value is None:
        return value
    return value.copy() if isinstance(value, list) else copy.deepcopy(value)


def _request_of(payload: Mapping[str, Any], headers: Mapping[str, str], resumed: bool) -> SampleRequest:
    """A payload for one sample, taken apart."""
    media = {name: list(items) for name, items in payload.items() if name.endswith("_data")}
    parts = {"sampling_params", "input_ids", "text", *media}
    ids = payload.get("input_ids")
    return SampleRequest(
        sampling_params=payload["sampling_params"],
        input_ids=None if ids is None else list(ids),
        text=payload.get("text"),
        media=media,
        resumed=resumed,
        options={name: value for name, value in payload.items() if name not in parts},
        headers=headers,
    )


def mask_earlier_tokens(args: Any, sample: Any) -> None:
    """What slime, Miles and Relax do to a resumed sample: tokens of older weights are not trained on, where asked."""
    if args.partial_rollout and args.mask_offpolicy_in_partial_rollout and sample.response_length > 0:
        sample.loss_mask = [0] * sample.response_length


def images_as_they_are(module: Any) -> tuple[Any, str, Any]:
    """The place of slime's and Miles' image encoder, for images to stay unencoded."""
    return (module, "encode_image_for_rollout_engine", lambda image: image)


def image_encoder(encode: Callable[[Any], Any]) -> Encoder:
    """Encodes images by a host's function, and leaves other media as they are."""

    async def encoder(kind: str, items: Sequence[Any]) -> Sequence[Any]:
        return [encode(item) for item in items] if kind == "image_data" else items

    return encoder


@contextmanager
def replaced(*places: tuple[Any, str, Any]) -> Iterator[None]:
    """Gives modules other attributes for the time of a block."""
    before = [(module, name, getattr(module, name)) for module, name, _ in places]
    try:
        for module, name, value in places:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def drive(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Runs a coroutine that waits for nothing to its end.

    Raises:
        UnsupportedHost: It waits for something.
    """
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    coroutine.close()
    raise UnsupportedHost("the host's generate waits for something else than its post")


def require(function: Callable[..., Any], *known: tuple[str, ...], calls: Collection[str] = ()) -> None:
    """Refuses a host's function whose parameters are not those of a known version.

    Args:
        function: The host's function.
        known: The parameters' names, one tuple a known version.
        calls: Names that the function must look up, because they are replaced.

    Raises:
        UnsupportedHost: The message names the function, and what was found.
    """
    found = tuple(inspect.signature(function).parameters)
    name = f"{function.__module__}.{function.__qualname__} ({_version_of(function.__module__)})"
    if found not in known:
        raise UnsupportedHost(f"{name} takes {found}; the known versions take {known}")
    if missing := set(calls) - _names_in(inspect.unwrap(function).__code__):
        raise UnsupportedHost(f"{name} no longer calls {sorted(missing)}")


def _version_of(module: str) -> str:
    """The installed version of the package that a module is part of."""
    package = module.partition(".")[0]
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"{package} without an installed version"


def _names_in(code: CodeType) -> set[str]:
    """The names that a function looks up, its comprehensions included."""
    inner = [_names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inner)
