"""The report as data (`document`), and beside it what renders it.

Nothing here judges: findings and verdicts come in.
"""

SCHEMA_VERSION = 2
"""Version of the format, as report.schema.json describes it; it grows when a reader of the old one would be misled."""
