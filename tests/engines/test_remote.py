"""A deployment that somebody else runs is named by its address and never started, restarted or stopped."""

import pytest

from parity.engines.process import Engine
from parity.engines.remote import remote_engine
from parity.errors import EngineError, UsageError


@pytest.mark.parametrize(
    ("spec", "url", "engine_id"),
    [
        ("http://10.0.0.7:30000", "http://10.0.0.7:30000", "10.0.0.7:30000"),
        ("http://10.0.0.7:30000/", "http://10.0.0.7:30000", "10.0.0.7:30000"),
        ("https://engines.example/pool/", "https://engines.example/pool", "engines.example"),
        ("http://name:secret@engines.example:80", "http://name:secret@engines.example:80", "engines.example:80"),
    ],
)
def test_it_is_named_after_its_address_without_credentials(spec, url, engine_id):
    engine: Engine = remote_engine(spec, control=False)
    assert (engine.url, engine.engine_id) == (url, engine_id)


@pytest.mark.parametrize(
    "spec", ["ftp://host:1", "http://", "http://:3", "http://host:1?x=1", "://host", "http://host:port"]
)
def test_an_address_that_is_none_is_a_usage_error(spec):
    with pytest.raises(UsageError, match="http://HOST:PORT"):
        remote_engine(spec, control=False)


def test_it_is_not_ours_to_restart_or_stop(monkeypatch):
    engine = remote_engine("http://127.0.0.1:1", control=False)
    engine.stop()
    assert engine.alive()
    monkeypatch.setattr("parity.engines.remote.RECOVERY_SECONDS", 0)
    with pytest.raises(EngineError, match=r"127\.0\.0\.1:1\b"):
        engine.revive()
