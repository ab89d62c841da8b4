"""Bodies of hosts' functions that the plug-in was tested with; written by tools/hosts/known_bodies.py."""

from __future__ import annotations

from collections.abc import Mapping

BODIES: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "slime": {
        "slime.rollout.sglang_rollout.generate": {
            "9e0f1c5c1c2e": "slime ee72ab5a2 (2026-06-11)",
            "c233d962ae40": "slime 8f5e21519 (2026-06-19)",
            "a6e0427558bc": "slime 2d909df57 (2026-07-06)",
            "47cb3690faf0": "slime 624b824a8 (2026-08-21)",
        },
        "slime.rollout.sglang_rollout.generate_and_rm": {
            "85cf6910b771": "slime ee72ab5a2 (2026-06-11)",
            "0a0fa9375689": "slime a6272da0d (2026-08-06)",
        },
        "slime.rollout.sglang_rollout.generate_and_rm_group": {
            "3cf1b304c2bd": "slime ee72ab5a2 (2026-06-11)",
        },
        "slime.utils.http_utils._post": {
            "97af928b6839": "slime ee72ab5a2 (2026-06-11)",
        },
    },
    "miles": {
        "miles.rollout.inference_rollout.inference_rollout_common.generate_and_rm": {
            "cece40ae51d4": "miles 6189c686c (2026-07-21)",
            "8e0a4cb8d613": "miles 31f1ca961 (2026-08-21)",
        },
        "miles.rollout.inference_rollout.inference_rollout_common.generate_and_rm_group": {
            "acef3f3c1341": "miles 6189c686c (2026-07-21)",
            "0b50da688824": "miles fd2b6eaf9 (2026-08-11)",
        },
        "miles.rollout.generate_hub.single_turn.generate": {
            "b8606f41992d": "miles 6189c686c (2026-07-21)",
        },
        "miles.rollout.sglang_rollout.generate": {
            "02459c9ce087": "miles 6189c686c (2026-07-21)",
            "776bd7f49128": "miles 5400905d5 (2026-08-03)",
            "0d1715f58b89": "miles 5c517599f (2026-08-03)",
            "3219ab180a98": "miles 1a661812f (2026-08-03)",
        },
        "miles.rollout.sglang_rollout.generate_and_rm": {
            "569b9d3bcdb8": "miles 6189c686c (2026-07-21)",
            "21c2c2c02ab0": "miles 44a33ac14 (2026-07-22)",
        },
        "miles.rollout.sglang_rollout.generate_and_rm_group": {
            "6e1c7e8a6c22": "miles 6189c686c (2026-07-21)",
        },
        "miles.utils.http_utils._post": {
            "cecf7226be03": "miles 6189c686c (2026-07-21)",
        },
    },
    "relax": {
        "relax.engine.rollout.sglang_rollout.generate": {
            "b40223cb844d": "relax 89fbe4595 (2026-04-23)",
            "5e30dd387621": "relax e5459091f (2026-05-29)",
            "0e40b13784ee": "relax 43e5129c2 (2026-05-29)",
            "2a2589f672cd": "relax 2b223c65d (2026-06-14)",
        },
        "relax.engine.rollout.sglang_rollout.generate_and_rm": {
            "02ff054003c2": "relax 89fbe4595 (2026-04-23)",
        },
        "relax.engine.rollout.sglang_rollout.generate_and_rm_group": {
            "c5278ad2ecf2": "relax 89fbe4595 (2026-04-23)",
            "543a5c842a0e": "relax e5459091f (2026-05-29)",
        },
        "relax.utils.http_utils._post": {
            "27a58a9b5fa4": "relax 89fbe4595 (2026-04-23)",
        },
    },
}
"""By host, function and fingerprint: the revision in which the body was first tested."""
