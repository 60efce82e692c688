"""The edge that callers touch: HTTP in, HTTP out. The only room that knows ASGI."""
