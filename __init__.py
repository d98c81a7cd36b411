"""Draftwire: a large model in the cloud, guessed ahead by a small one on the user's own device."""

__version__ = "0.1.0"
