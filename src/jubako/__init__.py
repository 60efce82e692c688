"""Jubako: one pinned open-weights model, served with vLLM behind a boundary one can rely on."""

__version__ = "0.1.0"
