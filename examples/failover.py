"""An answer that outlives its verifier: several addresses, and the draft alone where none is left.

    python examples/failover.py "Why is the sky blue?" ws://one.example:8300 ws://two.example:8300

Kill the verifier that answers: the text goes on at the next one where it stopped. With DRAFTWIRE_DRAFT, the folder of
a draft bundle, it goes on even without any, in the draft's own words, which are marked.
"""

import os
import sys

from draftwire.edge_client import Degraded, DraftwireError, EdgeClient, Reconnecting, TextDelta

urls = sys.argv[2:] or [os.environ.get("DRAFTWIRE_URL", "ws://127.0.0.1:8300")]
draft = os.environ.get("DRAFTWIRE_DRAFT") or None
prompt = sys.argv[1] if len(sys.argv) > 1 else "Why is the sky blue?"
try:
    with (
        EdgeClient(urls, draft=draft, on_verifier_loss="draft_only" if draft else "raise") as client,
        client.stream([{"role": "user", "content": prompt}]) as stream,
    ):
        for event in stream:
            match event:
                case TextDelta(verified=True):
                    print(event.text, end="", flush=True)
                case TextDelta():
                    print(f"\x1b[2m{event.text}\x1b[0m", end="", flush=True)  # dim: the draft's own
                case Reconnecting() | Degraded():
                    print(f"[{event.reason}]", file=sys.stderr, flush=True)
        result = stream.get_final_result()
    print(f"\n\n{len(result.token_ids)} tokens, {result.unverified_tokens} of them the draft's alone")
except DraftwireError as error:
    sys.exit(f"failover: {error}")
except KeyboardInterrupt:
    sys.exit(130)
