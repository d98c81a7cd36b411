"""The exporter: a Hugging Face or GGUF model in, a checked draft bundle out."""

from __future__ import annotations

__all__: list[str] = []
