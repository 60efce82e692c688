"""What a streamed token and a request cost the process that serves them, beside vLLM's own server: `make bench`."""
