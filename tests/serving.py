"""A `python -m gmploop serve` that tests start, ask over HTTP and end by signals."""

import contextlib
import http.client
import os
import re
import signal
import subprocess
import sys
import threading


class Serve:
    """A started `gmploop serve`. `lines` grows as it prints; `url` is where it says that it runs."""

    def __init__(self, app, *options, replicas=2, env=(), cwd=None):
        command = [sys.executable, "-m", "gmploop", "serve", app, *options]
        if replicas:
            command += ["--replicas", str(replicas)]
        self.replicas = replicas
        env = {**os.environ, "PYTHONUNBUFFERED": "1", **dict(env)}
        self.process = subprocess.Popen(command, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        env=env, start_new_session=True)
        self.lines = []
        self.changed = threading.Condition()
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(line.rstrip("\n"))
                self.changed.notify_all()
        with self.changed:
            self.lines.append("(end)")
            self.changed.notify_all()

    def wait_for(self, text, count=1):
        with self.changed:
            self.changed.wait_for(lambda: self.count(text) >= count or "(end)" in self.lines, 30)
        assert self.count(text) >= count, self.text
        return self

    def count(self, text):
        return sum(text in line for line in self.lines)

    def started(self):
        self.wait_for("Serving in")
        found = re.search(r"running on \w+://127\.0\.0\.1:(\d+)", self.text)
        self.port = int(found[1]) if found else None
        return self

    @property
    def text(self):
        return "\n".join(self.lines)

    def connection(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)

    def get(self, path="/"):
        with contextlib.closing(self.connection()) as connection:
            connection.request("GET", path)
            return connection.getresponse().read().decode()

    def getting(self, path):
        """The request in a thread: a function that waits for its answer (None: the connection broke)."""
        answers = []

        def get():
            try:
                answers.append(self.get(path))
            except (OSError, http.client.HTTPException):
                answers.append(None)
        thread = threading.Thread(target=get)
        thread.start()

        def result():
            thread.join(30)
            return answers[0]
        return result

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def end(self):
        status = self.process.wait(30)
        self.reader.join(30)
        return status

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.end()
        self.process.stdout.close()
