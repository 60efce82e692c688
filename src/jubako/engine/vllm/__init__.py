"""vLLM's `AsyncLLM`, owned: the only place that imports vLLM. Import it late; it takes seconds."""
