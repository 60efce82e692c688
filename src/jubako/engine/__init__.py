"""The engine behind a port; vLLM behind the port."""
