"""How a server behaves when more is asked of it than it can do in time: `python -m tests.bench.overload --help`."""
