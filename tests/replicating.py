"""What the tests of replicas share: where replicas meet, and how they are run."""

import collections
import threading

import gmploop

N = 3


class Together:
    """Where replicas wait for each other, and what they tell the test."""

    def __init__(self, count=N):
        self.barrier = threading.Barrier(count)
        self.shared = collections.defaultdict(list)

    def meet(self):
        self.barrier.wait(10)


def run(main, count=N, **options):
    return gmploop.run(main, replicas=count, **options)
