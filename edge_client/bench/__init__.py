"""The benchmark behind ``draftwire bench``: the same prompts in several modes, side by side, over emulated networks."""
