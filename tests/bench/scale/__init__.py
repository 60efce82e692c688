"""Whether what a request and a token cost grows with the tenants, the keys and the streams: `make bench-scale`."""
