"""Admission: a bounded, fair queue in front of the engine, and how many sequences run behind it.

    capacity    how many sequences may run: found from the engine's own steps
    fairness    who goes next, and who holds how much of the queue
    forecast    how long a request would wait
    scheduler   the decisions, from the three above; no clock, no event loop
    admission   the same for coroutines: tickets, time limits, cancellation

Knows nothing of HTTP, of vLLM, or of what a request says.
"""

from jubako.gate.admission.admission import Admission, Ticket

__all__ = ["Admission", "Ticket"]
