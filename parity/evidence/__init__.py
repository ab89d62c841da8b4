"""The ladder of evidence: one folder a rung, pure functions from records to findings.

No files, no clock and no engine; other packages import `parity.stats` and `parity.contract_checks`.
"""
