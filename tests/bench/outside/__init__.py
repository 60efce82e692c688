"""Another's benchmark of both servers: a tool that knows nothing of Jubako looks for what `make bench` says."""
