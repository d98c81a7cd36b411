"""An answer, printed as it is written: guessed ahead by a draft on this device, verified by a target in the cloud.

    python examples/quickstart.py "Why is the sky blue?"

DRAFTWIRE_URL is the verifier, DRAFTWIRE_DRAFT the folder of a draft bundle; without one the answer is cloud-only.
"""

import os
import sys

from draftwire.edge_client import DraftwireError, EdgeClient

url = os.environ.get("DRAFTWIRE_URL", "ws://127.0.0.1:8300")
draft = os.environ.get("DRAFTWIRE_DRAFT") or None
prompt = " ".join(sys.argv[1:]) or "Why is the sky blue?"
try:
    with EdgeClient(url, draft=draft) as client, client.stream([{"role": "user", "content": prompt}]) as stream:
        for text in stream.text_stream:
            print(text, end="", flush=True)
        stats = stream.get_final_result().stats
        mode = client.status.reason or client.status.mode
        print(f"\n\n{stats.committed} tokens, {stats.agreed} of them guessed here; {mode}")
except DraftwireError as error:
    sys.exit(f"quickstart: {error}")
except KeyboardInterrupt:
    sys.exit(130)
