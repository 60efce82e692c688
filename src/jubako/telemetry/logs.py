"""Where log lines go. One handler for Jubako's own loggers; vLLM and BentoML keep theirs."""

from __future__ import annotations

import logging


def configure(level: int = logging.INFO) -> None:
    """Write Jubako's log lines to standard error, once however often this is called."""
    root = logging.getLogger("jubako")
    root.setLevel(level)
    if not root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        root.addHandler(handler)
        root.propagate = False
