"""The compiled core.

Words
    G       an asyncio world: a Loop with its ready ring, inbox, timers and tasks. At most one thread runs it. g.pyx
    locked  a G that one thread runs by run_forever(), with timers and a poller of its own. runtime.pyx
    moving  a G made by go(): whichever M takes it runs one turn of it. spawn.pyx, moving.pyx
    P       what an M must hold to run moving Gs: run queue, runnext, timer heap; as many as may run at once. scheduler.h
    M       a thread that runs moving Gs; made on demand, parked, reused. m.pyx
    sysmon  the thread that watches, without P and GIL: retakes Ps, polls late, reports stalls, of loops with a thread of
            their own too. sysmon.h, watched.h
    rest    of all Ms: none runs, looks for work, or waits for a time or an event; who is told, and when. rest.pyx
    post    a handle, or a watch with events, handed to a G from outside: inbox, then notify. g.pyx
    watch   the registration of one fd for one owner. poller.pyx
    event   what became of a G, P or M, and when, for who looks in from outside. events.h
    waiter  one operation that waits at a channel, lock or the like. wait.pyx, waiter.pyx

States
    G   IDLE -> RUNNABLE -> RUNNING -> IDLE, RUNNABLE, BLOCKED (its P was handed off) or DEAD      gstate.h
    P   IDLE -> RUNNING <-> INCALL (a callback runs) -> IDLE (taken from it)                       schedtypes.h
    M   RUNNING, SPINNING, PARKED, POLLING, ORPHAN (its callback lost the P)                       schedtypes.h
    fd, operation                                                                                  poller.pyx
    waiter                                                                                         waitq.h
Each of the first three is a table of legal transitions, checked when GMPLOOP_DEBUG_STATES is defined.
When GMPLOOP_RACES is defined, threads pause at random where they race: races.h.

Locks. Their sections are a few loads and stores, in which no reference is dropped and no Python code runs. Only these are
taken one inside the other, in this order:
    the scheduler's `lock` (idle lists, global queue), a P's `tlock` (its timer heap)           schedtypes.h
    the list of all channels and locks, those by ascending address                             shared.pyx, waitq.h
    a shard of worlds, a world's list of tasks                                                 tasklist.h

Imports point down: runtime -> stream, datagram, sockop -> fdwatch, transport -> poller -> g -> handle; moving -> m, netpoll,
runtime; sysmon -> sched; rest, spawn -> moving; locks -> sync -> grant, waits, waiter -> wait -> shared, future. What the
core needs of asyncio is handed to it by gmploop's Python modules; spawn, moving, m and sysmon import asyncio for the running
loop of their threads.
"""
