"""Reserves tokens with weir serve before a call of a language model, and settles what it has used.

python3 reserve.py, with the address of -auth-addr in WEIR.
"""
import json
import os
import time
import urllib.error
import urllib.request

WEIR = os.environ.get("WEIR", "http://localhost:9090")


class Limited(Exception):
    """The units are not available. retry_after is in seconds, or None if waiting does not help."""

    def __init__(self, retry_after):
        super().__init__(f"limited, retry after {retry_after} s")
        self.retry_after = retry_after and int(retry_after)


def call(path, **body):
    request = urllib.request.Request(WEIR + path, json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=2) as response:
            return json.load(response)
    except urllib.error.HTTPError as e:
        if e.code == 429:
            raise Limited(e.headers["Retry-After"]) from None
        raise


class Reservation:
    """Use it in a with statement, and set used before the end. Without, all units are charged."""

    def __init__(self, rule, key, units, seconds=600):
        self.used = None
        self._take("/reserve", rule=rule, key=key, units=units, seconds=seconds)

    def draw(self, units):
        self._take("/draw", id=self.id, units=units)

    def _take(self, path, **body):
        answer = call(path, **body)
        self.id, self.units = answer["id"], answer["units"]

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        used = self.units if self.used is None else self.used
        for attempt in range(3):  # a settlement may come twice, but counts once
            try:
                return call("/settle", id=self.id, used=used) and None
            except OSError:  # also an answer of 503
                time.sleep(attempt)


if __name__ == "__main__":
    with Reservation("tokens", "acme", 60) as r:
        r.draw(20)
        r.used = 50  # as the model's answer says
    with Reservation("tokens", "acme", 50) as r:
        r.used = 50
    try:
        Reservation("tokens", "acme", 1)
    except Limited as e:
        print("reserved 60 and 20, used 50; reserved 50, used 50; then limited:", e.retry_after is not None)
