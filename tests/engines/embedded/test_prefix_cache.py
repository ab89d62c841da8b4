"""The prefix cache against a slow, plain model of it."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.engines.embedded.prefix_cache import PrefixCache, common_length

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple)


def entry(tokens):
    return torch.tensor(tokens, dtype=torch.float64).view(1, 1, 1, -1, 1).expand(2, 2, 1, -1, 1).clone()


def shared(a, b):
    return next((place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@settings(derandomize=True, max_examples=200, deadline=None)
@given(TOKENS, TOKENS)
def test_common_length_is_that_of_the_plain_loop(a, b):
    assert common_length(a, b) == shared(a, b)


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.lists(TOKENS, max_size=12), TOKENS)
def test_the_match_is_the_longest_prefix_ever_inserted_and_its_entry_begins_with_it(inserted, wanted):
    cache = PrefixCache(capacity=1 << 20)
    for tokens in inserted:
        cache.insert(tokens, entry(tokens))
    length, kv = cache.match(wanted)
    assert length == max((shared(tokens, wanted) for tokens in inserted), default=0)
    if length:
        assert kv[0, 0, 0, :length, 0].tolist() == list(wanted[:length])
    else:
        assert kv is None


def test_the_least_recently_used_go_first_and_the_bound_holds():
    size = entry((1, 1)).numel() * 8
    cache = PrefixCache(capacity=2 * size)
    cache.insert((1, 1), entry((1, 1)))
    cache.insert((2, 2), entry((2, 2)))
    assert cache.match((1, 1))[0] == 2
    cache.insert((0, 0), entry((0, 0)))
    assert cache.bytes == 2 * size
    assert [cache.match(tokens)[0] for tokens in ((1, 1), (2, 2), (0, 0))] == [2, 0, 2]
    cache.insert((0, 1, 2, 0, 1), entry((0, 1, 2, 0, 1)))
    assert cache.match((0, 1, 2, 0, 1))[0] == 1
    cache.clear()
    assert (cache.bytes, cache.match((1, 1))) == (0, (0, None))


def test_an_entry_is_a_copy():
    cache, kv = PrefixCache(capacity=1 << 20), entry((1, 2))
    cache.insert((1, 2), kv)
    kv.zero_()
    assert cache.match((1, 2))[1][0, 0, 0, :, 0].tolist() == [1, 2]
