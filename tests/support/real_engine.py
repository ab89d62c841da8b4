"""What a test module needs that runs a real engine: `pytestmark = needs_sglang`, or `needs_vllm`."""

from __future__ import annotations

import pytest

from parity.engines.installed import find_python
from parity.errors import EngineError


def _needs(engine: str, mark: pytest.MarkDecorator) -> list[pytest.MarkDecorator]:
    missing = ""
    try:
        find_python(engine)
    except EngineError as error:
        missing = str(error)
    # the start alone takes minutes on a machine that is busy
    return [mark, pytest.mark.skipif(bool(missing), reason=missing), pytest.mark.timeout(900)]


needs_sglang = _needs("sglang", pytest.mark.sglang)
needs_vllm = _needs("vllm", pytest.mark.vllm)
