"""OpenAI's completions and chat completions on the verifier's engine: a way in for clients without a draft."""
