"""What a test module needs that runs the real SGLang: `pytestmark = needs_sglang`."""

from __future__ import annotations

import pytest

from parity.engines import sglang
from parity.errors import EngineError


def _missing() -> str:
    try:
        sglang.find_python()
    except EngineError as error:
        return str(error)
    return ""


needs_sglang = [
    pytest.mark.sglang,
    pytest.mark.skipif(bool(_missing()), reason=_missing()),
    pytest.mark.timeout(900),  # the start alone takes minutes on a machine that is busy
]
