"""What others wrote, as samples, exchanges and curves: one module a format, one registry that recognises them."""

from parity.sources.dumps.directories import Found, Omission, dataset_of, find_sources, omission
from parity.sources.dumps.registry import FORMATS, Format, Source, open_source

__all__ = ["FORMATS", "Format", "Found", "Omission", "Source", "dataset_of", "find_sources", "omission", "open_source"]
