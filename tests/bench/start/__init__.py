"""How long a start takes, beside vLLM's own server."""
