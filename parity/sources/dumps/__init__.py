"""What others wrote, as samples and exchanges: one module a format; `parity.sources.registry` recognises them."""
