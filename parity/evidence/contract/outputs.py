"""Rules over single outputs of an answer: whether each is what was asked for, and true of itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

from parity.evidence.contract.facts import SENTINEL_LOGPROB
from parity.evidence.contract.outcomes import Case, Skip
from parity.evidence.contract.rules import Rules
from parity.evidence.contract.tokens import LONG_TAIL
from parity.evidence.contract.wire import WireOutput, ints_of, is_whole
from parity.findings import Message, quantity
from parity.records.samples import FINISH_REASONS


def logprobs_returned(output: WireOutput, rules: Rules) -> Iterator[Case]:
    """Log-probs come when they were asked for, each with its id and its text or null."""
    wanted = output.exchange.request.get("return_logprob")
    if isinstance(wanted, list) and output.slot < len(wanted):
        wanted = wanted[output.slot]
    triples = output.triples
    if wanted and (triples is None or not all(len(item) < 3 or isinstance(item[2], _TEXT) for item in triples)):
        found = str(output.meta.get("output_token_logprobs"))[:60]
        message = Message("log-probs were asked for and came as {found}", found=found)
        yield output.case("output_token_logprobs", "[log-prob, id, text] a token", found, message)


_TEXT = (str, type(None))


def top_logprobs(output: WireOutput, rules: Rules) -> Iterable[Case] | Skip:
    """Alternatives come when they were asked for: as many a token as asked, and for the prompt from where asked."""
    request = output.exchange.request
    count, start = request.get("top_logprobs_num"), request.get("logprob_start_len")
    if not is_whole(count) or count < 1 or not request.get("return_logprob"):
        return Skip.UNCONCERNED
    wanted: dict[str, int | None] = {"output_top_logprobs": _count(output)}
    if is_whole(start) and start >= 0 and isinstance(output.prompt, list):
        wanted["input_top_logprobs"] = len(output.prompt) - start

    def cases() -> Iterator[Case]:
        for field, tokens in wanted.items():
            found = output.meta.get(field)
            rows = found if isinstance(found, list) else []
            short = [row for row in rows if row is not None and (not isinstance(row, list) or len(row) != count)]
            if len(rows) != tokens or short:
                message = Message(
                    "{field}: asked for {alternatives} a token, tokens: {tokens}; {found} came",
                    field=field,
                    alternatives=quantity(count, "alternatives"),
                    tokens=tokens,
                    found=str(found)[:60],
                )
                yield output.case(field, [tokens, count], [len(rows), len(short)], message)

    return cases()


def rollout_log_probs_length(output: WireOutput, rules: Rules) -> Iterable[Case] | Skip:
    """Output ids, log-prob triples and completion_tokens agree in number, and each triple names the id at its place."""
    ids, triples, counted = output.ids, output.triples, output.meta.get("completion_tokens")
    if ids is None or (triples is None and counted is None):
        return Skip.MISSING

    count_of_ids = quantity(len(ids), "output ids")

    def cases() -> Iterator[Case]:
        if counted is not None and (not is_whole(counted) or counted != len(ids)):
            message = Message("completion_tokens is {counted} for {ids}", counted=counted, ids=count_of_ids)
            yield output.case("completion_tokens", len(ids), counted, message)
        if triples is None:
            return
        if len(triples) != len(ids):
            values = quantity(len(triples), "log-probs")
            message = Message("{values} for {ids}", values=values, ids=count_of_ids)
            yield output.case("output_token_logprobs", len(ids), len(triples), message)
        elif (named := list(map(itemgetter(1), triples))) != ids or ints_of(named) is None:
            place = next(k for k, (a, b) in enumerate(zip(named, ids, strict=True)) if a != b or not is_whole(a))
            template = "the log-prob at token {place} is of id {named}, the output id there is {id}"
            message = Message(template, place=place, named=named[place], id=ids[place])
            yield output.case("output_token_logprobs", ids[place], named[place], message)

    return cases()


def logprob_values(output: WireOutput, rules: Rules) -> Iterable[Case] | Skip:
    """Log-probs are finite, at most 0, and no padding value such as -9999."""
    if output.triples is None:
        return Skip.MISSING if output.exchange.request.get("return_logprob") else Skip.UNCONCERNED
    values = list(map(itemgetter(0), output.triples))
    bad = [place for place, value in enumerate(values) if not _is_logprob(value)]
    if not bad:
        return []
    message = Message(
        "{bad} of {values} are invalid, the first at token {place}: {value!r}",
        bad=len(bad),
        values=quantity(len(values), "log-probs"),
        place=bad[0],
        value=values[bad[0]],
    )
    return [output.case("output_token_logprobs", "finite and <= 0", repr(values[bad[0]]), message)]


def logprob_tail(output: WireOutput, rules: Rules) -> Iterable[Case] | Skip:
    """Log-probs of sampled tokens do not end in a row of exact zeros, as filled-up ones do."""
    if output.triples is None:
        return Skip.MISSING if output.exchange.request.get("return_logprob") else Skip.UNCONCERNED
    if output.params.get("temperature") == 0 or output.params.get("top_k") == 1:
        return Skip.UNCONCERNED
    values = list(map(itemgetter(0), output.triples))
    zeros = next((k for k, value in enumerate(reversed(values)) if value != 0.0), len(values))
    if not LONG_TAIL <= zeros < len(values):
        return []
    message = Message(
        "the last {zeros} of {values} are exactly 0", zeros=zeros, values=quantity(len(values), "log-probs")
    )
    return [output.case("output_token_logprobs", f"fewer than {LONG_TAIL}", zeros, message)]


def _is_logprob(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value) and SENTINEL_LOGPROB <= value <= 0


def finish_reason(output: WireOutput, rules: Rules) -> Iterator[Case]:
    """The finish reason is an object whose type is stop, length or abort."""
    kind = output.finish.get("type")
    if kind not in FINISH_REASONS:
        found = output.meta.get("finish_reason")
        message = Message("finish reason {reason}", reason=str(found)[:60])
        yield output.case("finish_reason", list(FINISH_REASONS), found, message)


def finish_length(output: WireOutput, rules: Rules) -> Iterable[Case] | Skip:
    """No output is longer than its cap, and `length` means that it reached it."""
    cap, count = output.params.get("max_new_tokens", rules.max_new_tokens), _count(output)
    if not is_whole(cap) or count is None:
        return Skip.MISSING
    if rules.context_length is not None and isinstance(output.prompt, list):
        cap = min(cap, rules.context_length - len(output.prompt))
    stated = output.finish.get("length", count)
    return _length_cases(output, cap, count, stated)


def _length_cases(output: WireOutput, cap: int, count: int, stated: Any) -> list[Case]:
    if count > cap:
        message = Message("{tokens}, above the cap of {cap}", tokens=quantity(count, "tokens"), cap=cap)
        return [output.case("finish_reason", f"at most {cap}", count, message)]
    if output.finish.get("type") == "length" and (count != cap or not is_whole(stated) or stated != count):
        template = "finished by length {stated} after {tokens} of {cap}"
        message = Message(template, stated=stated, tokens=count, cap=quantity(cap, "tokens"))
        return [output.case("finish_reason", cap, count, message)]
    return []


def _count(output: WireOutput) -> int | None:
    """Tokens of an output: its ids, or what the engine counted where no ids came."""
    counted = output.meta.get("completion_tokens")
    return len(output.ids) if output.ids is not None else counted if is_whole(counted) else None


def finish_stop(output: WireOutput, rules: Rules) -> Iterable[Case] | Skip:
    """`stop` names what matched; a matched id is the last token and a stop token, a matched string was asked for."""
    ids, matched = output.ids, output.finish.get("matched")
    if ids is None:
        return Skip.MISSING
    stops = {*(ints_of(output.params.get("stop_token_ids")) or []), *rules.stop_token_ids}

    def cases() -> Iterator[Case]:
        if output.finish.get("type") == "stop":
            yield from _stop_cases(output, ids, matched, stops)
        if output.params.get("ignore_eos") or output.params.get("min_new_tokens"):
            return
        early = stops.intersection(ids[:-1])
        if early:
            place = next(k for k, token in enumerate(ids) if token in early)
            after = quantity(len(ids) - place - 1, "tokens")
            message = Message("{tokens} after stop token {stop}", tokens=after, stop=ids[place])
            yield output.case("output_ids", "nothing after a stop token", len(ids) - place - 1, message)

    return cases()


def _stop_cases(output: WireOutput, ids: Sequence[int], matched: Any, stops: set[int]) -> Iterator[Case]:
    if matched is None:
        message = Message("finished by stop, and the answer does not say what matched")
        yield output.case("finish_reason", "what matched", None, message)
    elif is_whole(matched):
        last = ids[-1] if ids else None
        if last != matched:
            message = Message("stopped on token {matched}, but the last token is {last}", matched=matched, last=last)
            yield output.case("finish_reason", matched, last, message)
        elif output.params.get("ignore_eos"):
            message = Message("stopped on token {matched} though the request has ignore_eos", matched=matched)
            yield output.case("finish_reason", "length", "stop", message)
        elif stops and _ends_known(stops, output) and matched not in stops:
            message = Message("stopped on token {matched}, which is no stop token", matched=matched)
            yield output.case("finish_reason", sorted(stops)[:20], matched, message)
    else:
        strings = [*_strings(output.params.get("stop")), *_strings(output.params.get("stop_regex"))]
        text = output.body.get("text")
        trimmed = not output.params.get("no_stop_trim")
        if matched not in strings:
            message = Message("stopped on {matched!r}, which the request does not name", matched=matched)
            yield output.case("finish_reason", strings, matched, message)
        # untrimmed text may lack it honestly: the engine also matches inside special tokens, which it does not show
        elif isinstance(text, str) and trimmed and str(matched) in text:
            message = Message("the text still holds the string {matched!r} that it stopped on", matched=matched)
            yield output.case("text", "trimmed", text[-40:], message)


def _strings(value: Any) -> list[str]:
    """A string or a list of them as a list."""
    values = value if isinstance(value, list) else [value]
    return [item for item in values if isinstance(item, str)]


def _ends_known(stops: set[int], output: WireOutput) -> bool:
    """Whether all stop tokens are known: those asked for alone leave out the model's own end tokens."""
    return bool(stops - set(ints_of(output.params.get("stop_token_ids")) or []))


def abort_shape(output: WireOutput, rules: Rules) -> Iterator[Case]:
    """An aborted output says why in a message."""
    if output.finish.get("type") == "abort" and not isinstance(output.finish.get("message"), str):
        message = Message("aborted without a message")
        yield output.case("finish_reason", "a message", output.finish.get("message"), message)


def cached_tokens(output: WireOutput, rules: Rules) -> Iterable[Case] | Skip:
    """No more prompt tokens came from the cache than the prompt has."""
    cached, prompt = output.meta.get("cached_tokens"), output.meta.get("prompt_tokens")
    if cached is None or prompt is None:
        return Skip.MISSING
    sound = is_whole(cached) and is_whole(prompt) and 0 <= cached <= prompt
    message = Message("{cached} cached of {prompt} prompt tokens", cached=cached, prompt=prompt)
    return [] if sound else [output.case("cached_tokens", f"0 to {prompt}", cached, message)]


def version_spans(output: WireOutput, rules: Rules) -> Iterable[Case] | Skip:
    """The spans of weight versions cover the output without gap or overlap."""
    spans, count = output.meta.get("weight_versions"), _count(output)
    if not isinstance(spans, list) or count is None:
        return Skip.MISSING
    edges = [(span.get("start"), span.get("end")) for span in spans if isinstance(span, dict)]
    starts, ends = [0, *(end for _, end in edges[:-1])], [start for start, _ in edges]
    sound = bool(edges) and starts == ends and edges[-1][1] == count and all(map(is_whole, chain(*edges)))
    message = Message("weight versions cover {edges} of {tokens}", edges=edges, tokens=quantity(count, "tokens"))
    return [] if sound else [output.case("weight_versions", [0, count], edges, message)]


def prompt_logprobs(output: WireOutput, rules: Rules) -> Iterable[Case] | Skip:
    """With `logprob_start_len` 0 every prompt token has a log-prob, under its own id, except the first."""
    triples = output.meta.get("input_token_logprobs")
    start = output.exchange.request.get("logprob_start_len")
    if start != 0:
        return Skip.UNCONCERNED
    if not isinstance(triples, list) or not isinstance(output.prompt, list):
        return Skip.MISSING
    ids = [item[1] if isinstance(item, list) and len(item) > 1 else None for item in triples]
    if ids == output.prompt and ints_of(ids) is not None:
        return []
    sent, found = len(output.prompt), len(ids)
    message = Message("prompt log-probs of other ids")
    if sent != found:
        values = {"values": quantity(found, "prompt log-probs"), "tokens": quantity(sent, "prompt tokens")}
        message = Message("{values} for {tokens}", **values)
    expected, observed = (sent, found) if sent != found else (output.prompt[:8], ids[:8])
    return [output.case("input_token_logprobs", expected, observed, message)]


def empty_output(output: WireOutput, rules: Rules) -> Iterator[Case]:
    """An output without tokens was aborted or asked for none."""
    if _count(output) == 0 and output.finish.get("type") != "abort" and output.params.get("max_new_tokens") != 0:
        message = Message("no tokens, finished by {reason}", reason=output.finish.get("type"))
        yield output.case("output_ids", "at least 1 token", 0, message)


OutputRule = Callable[[WireOutput, Rules], Iterable[Case] | Skip]
