"""Verdict and findings as Markdown, PNG and JSON."""
