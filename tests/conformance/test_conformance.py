"""The suite passes on the embedded engine, touches only what it may, and notices what goes wrong on the wire."""

from __future__ import annotations

import contextlib
import copy
import http.server
import threading

import pytest

from parity.conformance import CASES, check_engine, features, images
from parity.conformance.known import known_deviations
from parity.conformance.probe import About, new_id
from parity.engines import EngineProcess, router
from parity.engines.client import OF_NOTHING
from parity.engines.process import reserve_port
from parity.errors import EngineError, EngineUnavailable, UsageError
from parity.findings import Level, Severity, Status

BY_NAME = {case.name: case for case in CASES}


def cases_named(*names):
    return [BY_NAME[name] for name in names]


def items_of(answer):
    return answer if isinstance(answer, list) else [answer]


def test_every_case_has_a_name_of_its_own_and_a_rule():
    assert len(BY_NAME) == len(CASES) >= 147
    assert all(case.rule and "\n" not in case.rule and not case.rule.endswith(".") for case in CASES)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_embedded_engine_passes_every_case(checked_engine):
    told = []
    findings = check_engine(
        checked_engine, control=True, destructive=True, progress=lambda *progress: told.append(progress)
    )
    of_images = {f"engine_{case.name}" for case in (*images.CASES, *features.CASES)}
    other = [finding for finding in findings if finding.check not in of_images]
    assert [(finding.check, finding.message) for finding in other if finding.status is not Status.PASS] == []
    assert [finding.check for finding in findings] == [f"engine_{case.name}" for case in CASES]
    assert all(finding.level is Level.CONTRACT and finding.evidence["checked"] > 0 for finding in other)
    blind = [finding for finding in findings if finding.check in of_images]
    assert {finding.status for finding in blind} == {Status.NOT_COMPARED}
    assert told == [(number, len(CASES), case.name) for number, case in enumerate(CASES)]


def test_without_leave_it_only_generates_and_looks(through, no_fault):
    kept = [case for case in CASES if case.control or case.destructive or case.name in ("native_2", "client_gone")]
    with through(no_fault) as (url, asked):
        findings = {finding.check.removeprefix("engine_"): finding for finding in check_engine(url, cases=kept)}
    assert {line for line in asked if line.startswith("POST")} == {"POST /generate"}
    for case in kept:
        finding = findings[case.name]
        if not case.control and not case.destructive:
            assert finding.status is Status.PASS
            continue
        assert finding.status is Status.NOT_COMPARED
        assert ("--destructive" if case.destructive else "--control") in finding.message


# --- faults on the wire, each taken from a bug that happened somewhere, and the cases that must notice it


class Wire:
    """A fault as functions of a request's body, or of an answered request and its items."""

    def __init__(self, request=None, response=None):
        self._request, self._response = request, response

    def request(self, path, body):
        return self._request(path, copy.deepcopy(body)) if self._request else body

    def response(self, path, body, status, answer):
        if self._response is None or path != "/generate" or status != 200 or not isinstance(answer, (dict, list)):
            return status, answer
        return 200, self._response(body, answer)


def each(change):
    """A fault in every output."""

    def response(body, answer):
        for slot, item in enumerate(items_of(answer)):
            change(body, slot, item)
        return answer

    return Wire(response=response)


def params(change):
    """A fault in the sampling parameters on their way to the engine."""

    def request(path, body):
        if path == "/generate" and isinstance(body, dict) and isinstance(body.get("sampling_params"), dict):
            change(body["sampling_params"])
        return body

    return Wire(request=request)


def meta(**fields):
    return each(lambda body, slot, item: item["meta_info"].update(copy.deepcopy(fields)))


def swallow(path, answer):
    """An endpoint that says it did, and did not."""
    return Wire(request=lambda asked, body: (200, answer) if asked == path else body)


def checker(change):
    """A fault in the digests of weights."""
    wire = Wire()

    def response(path, body, status, answer):
        if path == "/weights_checker":
            for rank in answer["ranks"]:
                rank["checksums"] = {name: change(name, digest) for name, digest in rank["checksums"].items()}
        return status, answer

    wire.response = response
    return wire


def cut_matched_token(body, slot, item):
    if item["meta_info"]["finish_reason"]["type"] == "stop":
        item["output_ids"] = item["output_ids"][:-1]


def null_logprob(body, slot, item):
    if rows := item["meta_info"].get("output_token_logprobs"):
        rows[-1][0] = None


def shift_ids(body, slot, item):
    if rows := item["meta_info"].get("output_token_logprobs"):
        item["meta_info"]["output_token_logprobs"] = rows[1:] + rows[:1]


def unscaled(body, slot, item):
    for row in item["meta_info"].get("output_top_logprobs", []):
        for top in row:
            top[0] *= body["sampling_params"]["temperature"]


def truncated(body, slot, item):
    if body["sampling_params"].get("top_k") == 2:
        item["meta_info"]["output_token_logprobs"][0][0] = 0.0


def no_reason_on_abort(body, slot, item):
    if item["meta_info"]["finish_reason"]["type"] == "abort":
        item["meta_info"]["finish_reason"] = None


def other_version(body, slot, item):
    if slot == 1:
        item["meta_info"]["weight_versions"][0]["version"] = "other"


def clones(body, answer):
    if isinstance(answer, list):
        for item in answer:
            item["output_ids"] = list(answer[0]["output_ids"])
            item["meta_info"]["output_token_logprobs"] = answer[0]["meta_info"]["output_token_logprobs"]
    return answer


def same_ids(body, slot, item):
    item["meta_info"]["id"] = "the-same"


def slot_major(body, answer):
    n = body["sampling_params"].get("n", 1)
    return [answer[place] for slot in range(n) for place in range(slot, len(answer), n)] if n > 1 else answer


def error_for_answer(path, body):
    error = {"error": {"message": "Out of range float values are not JSON compliant"}}
    return (500, error) if path == "/generate" else body


def rid_means_all(path, body):
    return {"abort_all": True} if path == "/abort_request" and "rid" in body else body


FAULTS = {
    "one object for n": (Wire(response=lambda body, answer: items_of(answer)[0]), ["native_8", "list_of_8"]),
    "one output lost": (
        Wire(response=lambda body, a: a[:-1] if isinstance(a, list) else a),
        ["native_8", "list_distinct"],
    ),
    "finish order": (
        Wire(response=lambda body, a: a[::-1] if isinstance(a, list) else a),
        ["list_distinct", "list_by_n"],
    ),
    "slot-major order": (Wire(response=slot_major), ["list_by_n"]),
    "clones": (Wire(response=clones), ["free_samples_differ", "seed_native"]),
    "ids repeated": (each(same_ids), ["native_2", "list_of_8"]),
    "meta_info stripped": (each(lambda body, slot, item: item.pop("meta_info")), ["single_ids", "native_2"]),
    "log-probs dropped": (meta(output_token_logprobs=None), ["single_ids", "native_8"]),
    "log-prob not a number": (each(null_logprob), ["native_8", "list_of_8"]),
    "log-probs shifted": (each(shift_ids), ["native_8", "greedy_arms"]),
    "matched token cut from ids": (each(cut_matched_token), ["stop_token_single", "stop_token_native"]),
    "log-probs not scaled": (each(unscaled), ["logprobs_at_temperature"]),
    "log-probs after truncation": (each(truncated), ["logprobs_untruncated"]),
    "prompt encoded again": (
        each(lambda b, s, item: item["meta_info"].update(prompt_tokens=99)),
        ["single_ids", "concurrent"],
    ),
    "no finish reason": (meta(finish_reason=None), ["single_ids", "native_8"]),
    "stop for length": (meta(finish_reason={"type": "stop", "matched": 1}), ["single_ids", "native_1_token"]),
    "no finish reason on abort": (each(no_reason_on_abort), ["abort_single", "abort_native"]),
    "version of another step": (each(other_version), ["native_2", "list_of_8"]),
    "cap off by one": (
        params(lambda p: p.update(max_new_tokens=p["max_new_tokens"] + 1)),
        ["native_1_token", "single_ids"],
    ),
    "seed dropped": (params(lambda p: p.pop("sampling_seed", None)), ["seed_repeats", "seed_slots", "seed_in_traffic"]),
    "seed pinned": (params(lambda p: p.update(sampling_seed=42)), ["seeds_differ", "free_requests_differ"]),
    "unknown field dropped": (params(lambda p: p.pop("frobnicate", None)), ["sampling_key_unknown"]),
    "text left untrimmed": (
        params(lambda p: p.update(no_stop_trim=True)),
        ["stop_string_single", "stop_token_trimmed"],
    ),
    "abort lost": (swallow("/abort_request", ""), ["abort_single", "abort_native", "abort_rid"]),
    "abort of one hits all": (Wire(request=rid_means_all), ["abort_rid", "abort_rid_in_list"]),
    "update lost": (
        swallow("/update_weights_from_disk", {"success": True, "message": "done"}),
        ["weights_version", "weights_missing", "weights_take_effect", "digests_follow_weights"],
    ),
    "layers hashed as nothing": (
        checker(lambda name, digest: OF_NOTHING if ".layers." in name else digest),
        ["digests_of_something", "digests_follow_weights"],
    ),
    "digests that never change": (checker(lambda name, digest: name), ["digests_follow_weights"]),
    "digests that never repeat": (checker(lambda name, digest: new_id()), ["digests_follow_weights"]),
    "flush lost": (swallow("/flush_cache", "Cache flushed."), ["flush"]),
    "pause lost": (swallow("/pause_generation", {"status": "ok"}), ["pause_holds"]),
    "error for answer": (Wire(request=error_for_answer), ["single_ids", "n_text"]),
}


@pytest.fixture
def brief(monkeypatch):
    """Requests that are to be interrupted are shorter, since a fault has each moment tried in vain."""
    monkeypatch.setattr("parity.conformance.phases.LONG", 96)


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_on_the_wire_fails_the_cases_that_are_about_it(through, name):
    fault, names = FAULTS[name]
    with through(fault) as (url, _):
        findings = check_engine(url, control=True, cases=cases_named(*names))
    failing = {finding.check.removeprefix("engine_") for finding in findings if finding.fails}
    assert failing == set(names)


@pytest.mark.usefixtures("brief")
def test_the_same_cases_pass_where_the_proxy_changes_nothing(through, no_fault):
    names = sorted({name for _, names in FAULTS.values() for name in names})
    with through(no_fault) as (url, _):
        findings = check_engine(url, control=True, cases=cases_named(*names))
    assert [(finding.check, finding.message) for finding in findings if finding.status is not Status.PASS] == []


@pytest.mark.parametrize(
    ("answer", "status", "named"),
    [
        ((200, {"checksums": {"tp0:lm_head": "aa", "tp0:qkv_proj": OF_NOTHING}}), Status.FAIL, ["tp0:qkv_proj"]),
        ((200, {"checksums": {"tp0:lm_head": "aa", "tp0:qkv_proj": "bb"}}), Status.PASS, None),
        ((200, {"checksums": {}}), Status.FAIL, []),
        ((404, {"detail": "Not Found"}), Status.NOT_COMPARED, None),
    ],
)
def test_digests_of_nothing_are_seen_at_the_endpoint_of_vllm_too(through, answer, status, named):
    answers = {"/weights_checker": (404, {"detail": "Not Found"}), "/weight_checker": answer}
    with through(Wire(request=lambda path, body: answers.get(path, body))) as (url, _):
        (finding,) = check_engine(url, control=True, cases=cases_named("digests_of_something"))
    assert (finding.status, finding.observed) == (status, named)


# --- who is excused, and what ends the run


class LikeSGLang(Wire):
    """Says of itself what SGLang does, and ignores seeds as it does without its deterministic mode."""

    def __init__(self, info):
        super().__init__(request=params(lambda p: p.pop("sampling_seed", None)).request)
        self._info = info

    def response(self, path, body, status, answer):
        return (status, self._info) if path == "/server_info" else (status, answer)


@pytest.mark.parametrize(
    ("info", "severity"),
    [
        ({"version": "0.5.23", "disable_radix_cache": False}, Severity.WARNING),
        ({"version": "0.5.23", "disable_radix_cache": False, "enable_deterministic_inference": True}, Severity.ERROR),
        ({"version": "1.0"}, Severity.ERROR),
    ],
)
def test_what_sglang_is_known_to_do_is_a_warning_with_its_reason_on_sglang_alone(through, info, severity):
    with through(LikeSGLang(info)) as (url, _):
        (finding,) = check_engine(url, cases=cases_named("seed_repeats"))
    assert (finding.status, finding.severity) == (Status.FAIL, severity)
    assert ("--enable-deterministic-inference" in finding.message) is (severity is Severity.WARNING)


class DiesOf(Wire):
    """Answers until it is asked for something with `n`, and never again."""

    def __init__(self):
        super().__init__()
        self._dead = False

    def request(self, path, body):
        self._dead = self._dead or (path == "/generate" and "n" in body["sampling_params"])
        return (503, "gone") if self._dead else body


def test_an_engine_that_dies_is_named_with_the_case_that_it_did_not_survive(through):
    with through(DiesOf()) as (url, _):
        findings = check_engine(url, cases=cases_named("single_ids", "native_2", "single_text"))
    assert [finding.status for finding in findings] == [Status.PASS, Status.FAIL, Status.NOT_COMPARED]
    assert "native_2" in findings[2].message


@pytest.fixture
def hangs():
    """`hangs(*paths)`: the URL of a server that is well, and never answers what is asked of these paths."""
    with contextlib.ExitStack() as servers:
        yield lambda *paths: servers.enter_context(hanging(paths))


@contextlib.contextmanager
def hanging(paths):
    over = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path in paths:
                over.wait()
                return
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        do_POST = do_GET

        def log_message(self, *_):
            """Says nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            over.set()
            server.shutdown()
            thread.join()


def test_an_engine_that_hangs_costs_one_case_and_not_each(hangs, monkeypatch):
    monkeypatch.setattr("parity.conformance.CASE_SECONDS", 0.3)
    names = ("single_ids", "native_2", "single_text")
    hung = check_engine(hangs("/generate"), cases=cases_named(*names))
    assert [finding.status for finding in hung] == [Status.FAIL, Status.NOT_COMPARED, Status.NOT_COMPARED]
    assert "0.3 s" in hung[0].message
    wrong = check_engine(hangs(), cases=cases_named(*names))
    assert {finding.check for finding in wrong if finding.fails} == {f"engine_{name}" for name in names}


def test_an_engine_that_says_nothing_of_itself_is_an_error(hangs, monkeypatch):
    monkeypatch.setattr("parity.conformance.CASE_SECONDS", 0.3)
    with pytest.raises(EngineError, match=r"0\.3 s"):
        check_engine(hangs("/server_info", "/get_server_info"))


def test_nothing_to_check_is_an_error_and_not_a_finding(nowhere):
    with pytest.raises(EngineUnavailable, match=nowhere):
        check_engine(nowhere)
    with pytest.raises(UsageError, match="localhost:30000"):
        check_engine("localhost:30000")


def test_a_case_that_takes_too_long_is_cut_off(through, monkeypatch):
    monkeypatch.setattr("parity.conformance.CASE_SECONDS", 0.2)
    with through(Wire(request=lambda path, body: body)) as (url, _):
        (finding,) = check_engine(url, control=True, cases=cases_named("abort_queued"))
    assert finding.fails
    assert "0.2 s" in finding.message


def test_through_the_real_router_what_it_refuses_and_drops_is_named_as_its_own(checked_engine, tmp_path):
    pytest.importorskip("sglang_router", reason="needs the package sglang-router")
    of_router = known_deviations(About(router=True))
    kept = cases_named(*of_router, "single_text", "native_8", "list_of_8", "seed_slots", "abort_idle")
    with reserve_port() as metrics:
        process = EngineProcess(
            "router",
            lambda port: router.command("round_robin", [checked_engine], port, metrics.getsockname()[1]),
            environment=router.ENVIRONMENT,
            log_dir=tmp_path,
            start_timeout=60,
            healthy=lambda port: router.ready(port, 1),
        )
        with process:
            process.start()
            findings = check_engine(process.url, cases=kept, control=True)
    failing = {finding.check.removeprefix("engine_") for finding in findings if finding.status is Status.FAIL}
    assert failing == of_router.keys()
    assert not any(finding.fails for finding in findings)
    assert all("sglang-router 0.3.2" in finding.message for finding in findings if finding.status is Status.FAIL)
    (abort,) = [finding for finding in findings if finding.check == "engine_abort_idle"]
    assert abort.status is Status.NOT_COMPARED
