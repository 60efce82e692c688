"""The release: which exact files are served, where they came from, and how their identity is proven.

Knows nothing of requests, tenants or the engine's life. Only `bundle` imports BentoML.
"""
