"""What the engines say of themselves, and which conditions follow: flags of the host may not tell all of it."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from rollout_patch.eligibility import Capabilities

_log = logging.getLogger("rollout_patch")

SECONDS_TO_ANSWER = 10.0
"""How long an engine may take to say how it runs."""

Get = Callable[[str], Awaitable[Any]]
"""A host's `get`: the decoded body of a 200, else it raises."""


@dataclass(frozen=True, slots=True)
class Engines:
    """How the engines behind a router run.

    Attributes:
        infos: What each said, by its address.
        silent: The addresses that said nothing; the router's own where even the engines are unknown.
    """

    infos: Mapping[str, Mapping[str, Any]]
    silent: tuple[str, ...] = ()

    def conditions(self) -> list[str]:
        """The conditions of `rollout_patch.CONDITIONS` that hold for any of the engines."""
        held = {
            "disaggregated_prefill": self._any(lambda info: info.get("disaggregation_mode") not in (None, "", "null")),
            "speculative_decoding": self._any(lambda info: bool(info.get("speculative_algorithm"))),
        }
        return [name for name, holds in held.items() if holds]

    def seeded(self) -> bool:
        """Whether any of them samples deterministically from seeds."""
        return self._any(lambda info: bool(info.get("enable_deterministic_inference")))

    def added_to(self, capabilities: Capabilities) -> Capabilities:
        """What is known of the engines, with what they say of themselves."""
        versions = [_version(info) for info in self.infos.values()]
        lora = not self.silent and min(versions, default=()) >= LORA_WITH_N
        return replace(
            capabilities,
            seeded=capabilities.seeded or self.seeded(),
            lora_with_n=capabilities.lora_with_n or lora,
            lora_lists=capabilities.lora_lists or lora,
        )

    def described(self) -> str:
        """One line for the log: how many engines, their versions, and what else matters."""
        versions = sorted({str(info.get("version")) for info in self.infos.values()})
        special = {
            name: sorted({str(info[name]) for info in self.infos.values() if str(info.get(name)) not in _USUAL})
            for name in SAID
        }
        rest = ", ".join(f"{name} {'/'.join(values)}" for name, values in special.items() if values)
        silent = f"; {len(self.silent)} did not say how they run" if self.silent else ""
        return f"{len(self.infos)} of version {'/'.join(versions) or 'unknown'}{', ' + rest if rest else ''}{silent}"

    def _any(self, holds: Callable[[Mapping[str, Any]], bool]) -> bool:
        return any(holds(info) for info in self.infos.values())


LORA_WITH_N = (0, 5, 23)
"""The version of SGLang that was seen to unload an adapter after requests with n; earlier ones wait for ever."""


def _version(info: Mapping[str, Any]) -> tuple[int, ...]:
    """The release that an engine names; nothing where it names none, or one that was not released yet."""
    named = re.match(r"(\d+)\.(\d+)\.(\d+)(?!\d|\.?(?:dev|a|b|rc))", str(info.get("version")))
    return tuple(map(int, named.groups())) if named else ()


_USUAL = ("None", "", "null", "False", "0", "1", "[]", "{}")
SAID = (
    "disaggregation_mode",
    "speculative_algorithm",
    "enable_lora",
    "enable_dp_attention",
    "dp_size",
    "skip_tokenizer_init",
    "enable_deterministic_inference",
)
"""Settings of SGLang's `/server_info` that matter for several samples a request."""


async def ask_engines(router: str, get: Get) -> Engines:
    """Asks the router for its engines, and each engine how it runs; what cannot be had is logged and left out.

    Args:
        router: The router's address, ``http://host:port``.
        get: The host's way to ask.
    """
    try:
        addresses = _addresses(await _first(get, f"{router}/workers", f"{router}/list_workers"))
    except Exception as error:  # whatever the host's HTTP client raises
        _log.warning("the router at %s does not name its engines: %s", router, error)
        addresses = [router]
    said = await asyncio.gather(*(_info(get, address) for address in addresses))
    infos = {address: info for address, info in zip(addresses, said, strict=True) if info is not None}
    return Engines(infos, tuple(address for address in addresses if address not in infos))


async def _first(get: Get, *urls: str) -> Any:
    """The first answer that is one."""
    for url in urls[:-1]:
        with suppress(Exception):  # whatever the host's HTTP client raises
            return await asyncio.wait_for(get(url), SECONDS_TO_ANSWER)
    return await asyncio.wait_for(get(urls[-1]), SECONDS_TO_ANSWER)


async def _info(get: Get, address: str) -> Mapping[str, Any] | None:
    try:
        info = await _first(get, f"{address}/server_info", f"{address}/get_server_info")
    except Exception as error:  # whatever the host's HTTP client raises
        _log.warning("the engine at %s does not say how it runs: %s", address, error)
        return None
    return info if isinstance(info, dict) and "version" in info else None


def _addresses(workers: Any) -> list[str]:
    """The engines' addresses, without the ``@rank`` of a router that knows data-parallel ranks."""
    listed = workers.get("workers", workers.get("urls")) if isinstance(workers, dict) else None
    if not isinstance(listed, list):
        raise ValueError(f"the list of engines is {str(workers)[:200]}")
    urls = [str(one["url"] if isinstance(one, dict) else one) for one in listed]
    return list(dict.fromkeys(re.sub(r"@\d+$", "", url).rstrip("/") for url in urls))
