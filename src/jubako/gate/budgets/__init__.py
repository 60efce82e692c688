"""What tenants and keys may use in a span of time; `port` is what the pipeline knows of it."""
