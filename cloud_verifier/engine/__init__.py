"""One loop that advances every stream: what waits, who takes part in a step, what is committed, who is told."""
