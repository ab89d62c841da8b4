"""An engine that answers /health and nothing else; run as a script: fake_engine.py PORT [FLAG...].

Flags: `stubborn` ignores SIGTERM; `children` starts a child in a session of its own that ignores SIGTERM and would
outlive it, and prints its process id; `dies` exits with 1 at once; `sick` never becomes healthy;
`slow` does after two seconds; `mute` prints nothing.
"""

import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

SLEEPER = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
port, flags = int(sys.argv[1]), sys.argv[2:]
healthy_at = time.monotonic() + 2 * ("slow" in flags)

if "dies" in flags:
    sys.exit("cannot load the checkpoint")
if "stubborn" in flags:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "children" in flags:
    child = subprocess.Popen([sys.executable, "-c", SLEEPER], start_new_session=True)
    print("child", child.pid, flush=True)
if "mute" not in flags:
    print("mark", os.environ.get("FAKE_MARK"), os.environ.get("FAKE_GONE"), flush=True)


class Handler(BaseHTTPRequestHandler):
    """Answers every GET."""

    def do_GET(self):
        """200 when healthy, 503 until then."""
        self.send_response(200 if "sick" not in flags and time.monotonic() >= healthy_at else 503)
        self.end_headers()

    def log_message(self, *args):
        """Nothing: the log is for what the tests look for."""


HTTPServer(("127.0.0.1", port), Handler).serve_forever()
