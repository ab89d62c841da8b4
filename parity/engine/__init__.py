"""Who answers /generate: the embedded engine, the real SGLang, or a deployment somebody else runs."""
