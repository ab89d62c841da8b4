"""L0: exact rules over exchanges, samples, requests, curves and both arms; `parity.contract_checks` is the face.

No statistics, and nothing of the patch that is judged.
"""
