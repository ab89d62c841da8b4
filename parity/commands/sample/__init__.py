"""`parity sample`: both arms against one engine at fixed weights, until the evidence suffices (L1)."""
