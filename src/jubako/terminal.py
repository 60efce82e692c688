"""What the server says to the operator's terminal past all logging: how to try it, why it does not start, its end."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from jubako.errors import StartupFault


def ready_message(address: str, key_file: Path, alias: str) -> str:
    """What to try first."""
    demo_key = key_file.is_file()
    key = f"An API key is in {key_file}" if demo_key else "Make an API key with: jubako keys create TENANT"
    bearer = f"$(cat {key_file})" if demo_key else "YOUR_KEY"
    return f"""
Jubako is ready on {address}
{key}. Try:

  curl {address}/v1/chat/completions \\
    -H "Authorization: Bearer {bearer}" -H "Content-Type: application/json" \\
    -d '{{"model": "{alias}", "messages": [{{"role": "user", "content": "What is the capital of France?"}}]}}'
"""


def exit_with(fault: StartupFault) -> NoReturn:
    """End the process with the fault's message and exit status 1."""
    sys.stderr.write(f"jubako: cannot start:\n{fault}\n")
    sys.stderr.flush()
    raise SystemExit(1)


def tell_the_worker_ended(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """The arbiter's `sys.excepthook`: one line where BentoML's supervisor would print a traceback of its own frames."""
    if isinstance(error, RuntimeError) and "No active process" in str(error):
        sys.stderr.write("jubako: the worker has ended, and the server with it. The reason is above.\n")
    else:
        sys.__excepthook__(kind, error, trace)
