"""Cases with images pass on an engine that takes them, and notice what goes wrong with images on the wire."""

from __future__ import annotations

import pytest

from parity.conformance import check_engine, images
from parity.findings import Status

BY_NAME = {case.name: case for case in images.CASES}


class Changed:
    """A proxy that changes the images of a request, or the meta information of each output."""

    def __init__(self, images=None, meta=None):
        self._images, self._meta = images, meta

    def request(self, path, body):
        if path != "/generate" or self._images is None or not body.get("image_data"):
            return body
        return {**body, "image_data": self._images(body["image_data"])}

    def response(self, path, body, status, answer):
        if path == "/generate" and status == 200 and self._meta is not None:
            for item in answer if isinstance(answer, list) else [answer]:
                self._meta(item["meta_info"])
        return status, answer


def replaced(value, image):
    """Every image by another."""
    return [replaced(one, image) for one in value] if isinstance(value, list) else image


def flat(value):
    """All images in one list."""
    return [image for one in value for image in (one if isinstance(one, list) else [one])]


def nested(value):
    """A list of lists, as n > 1 wants it."""
    return value if isinstance(value[0], list) else [value]


FAULTS = {
    "images lost on the way": (Changed(lambda value: None), ["image_single", "image_native", "image_list"]),
    "nested lists made flat": (Changed(flat), ["images_two_native", "image_list"]),
    "flat lists nested": (Changed(nested), ["image_single", "images_two"]),
    "images of a list exchanged": (Changed(lambda value: value[::-1]), ["image_list", "image_list_mixed"]),
    "the image of another prompt from the cache": (
        Changed(lambda value: replaced(value, images.RED)),
        ["images_told_apart", "image_broken", "image_too_large"],
    ),
    "image tokens not counted": (Changed(meta=lambda meta: meta.pop("image_tokens", None)), ["image_single"]),
    "a part of an image counted as text": (
        Changed(meta=lambda meta: meta.update(image_tokens=meta["image_tokens"] // 2)),
        ["image_list_flat"],
    ),
    "each sample prefills its image": (Changed(meta=lambda meta: meta.update(cached_tokens=0)), ["image_group_cached"]),
}


@pytest.mark.timeout(300)
def test_an_engine_that_takes_images_passes_every_case_with_images(seeing_engine):
    findings = check_engine(seeing_engine, cases=images.CASES, destructive=True)
    assert [(finding.check, finding.message) for finding in findings if finding.status is not Status.PASS] == []
    assert len(findings) == len(images.CASES) > 20


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_on_the_wire_fails_the_cases_that_are_about_it(through_seeing, name):
    fault, names = FAULTS[name]
    with through_seeing(fault) as (url, _):
        findings = check_engine(url, cases=[BY_NAME[case] for case in names])
    failing = {finding.check.removeprefix("engine_") for finding in findings if finding.fails}
    assert failing == set(names)
