"""What is checked, as data: each model with its bounds, and the guards without which it has to fail."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bounds:
    """One exhaustive search."""

    says: str
    flags: tuple[str, ...] = ()
    #: Takes more than some seconds: only with ``--deep``.
    is_deep: bool = False


@dataclass(frozen=True)
class Guard:
    """Something of the protocol that ``flags`` take out of the model, which then has to fail.

    Parameters:
        code: the function or statement of ``jobs`` that is the guard.
        breaks: what is not true without it.
    """

    name: str
    flags: tuple[str, ...]
    code: str
    breaks: str


@dataclass(frozen=True)
class Model:
    name: str
    title: str
    #: What is true in every state, or at every end.
    properties: tuple[str, ...]
    bounds: tuple[Bounds, ...]
    guards: tuple[Guard, ...]
    #: What it leaves out.
    without: str = ""
    #: Its runs end, and then all has come to its end.
    ends: bool = True


TWICE = "a job's effect is committed twice, or a zombie commits"
ONE = ("ONE", "FAULTS=2")

MODELS = (
    Model(
        "ownership",
        "Who owns a job",
        (
            "Never are two effects of one job committed (`row[j].effects == 1` at each commit).",
            "A zombie commits nothing: whoever commits has the row under its lease and its token.",
            "No two runs act outside of the database under one fencing number (the lease).",
            "What has followed a commit is never taken back by a crash of the database.",
            "Whoever finds his commit in the row says so.",
            "No run is counted as lost for a death that came before its claim.",
            "Each job ends, once: whenever nothing more can happen, all have (`timeout`), and no run is infinite.",
        ),
        (
            Bounds("2 processes, 2 jobs, 1 fault of any kind at any step", ("FAULTS=1",)),
            Bounds("2 processes, 1 job of either kind, 3 faults", ("ONE", "FAULTS=3")),
            Bounds("tokens that are all the same, no crash of the database", (*ONE, "SAME_TOKEN", "NO_CRASH")),
            Bounds("a fence without the lease: the token says the same", (*ONE, "NO_LEASE")),
            Bounds("2 processes, 2 jobs, 2 faults", ("FAULTS=2",), is_deep=True),
        ),
        (
            Guard("the token in the fence", (*ONE, "NO_TOKEN"), "jobs.store.base.owned", TWICE),
            Guard("the state in the fence", (*ONE, "NO_STATE"), "jobs.store.base.owned", TWICE),
            Guard(
                "the lease in the fence, where tokens may be the same",
                (*ONE, "SAME_TOKEN", "NO_CRASH", "NO_LEASE"),
                "jobs.store.base.owned",
                TWICE,
            ),
            Guard("a token of its own for each claim", (*ONE, "SAME_TOKEN"), "jobs.lifecycle.claims.new_token", TWICE),
            Guard(
                "the dead mark in the claim",
                (*ONE, "NO_DEAD_MARK"),
                "jobs.store.base.Store.ready",
                "a run is counted as lost for a death before its claim",
            ),
            Guard(
                "the renewal before what acts outside",
                (*ONE, "NO_RENEWAL"),
                "jobs.worker.runner.Runner._run",
                "two runs act under one fencing number",
            ),
            Guard(
                "a synchronous commit where something follows",
                (*ONE, "NO_SYNC"),
                "jobs.execution.pipeline._attempt (is_synced)",
                "what was followed by an act outside is taken back",
            ),
            Guard(
                "belief in the row after a COMMIT without an answer",
                (*ONE, "NO_BELIEF"),
                "jobs.execution.finish.is_committed",
                "a run does not know that it succeeded",
            ),
            Guard(
                "the end of a dead run's session",
                (*ONE, "NO_ENDING"),
                "jobs.contrib.sessions.zombies.end_backends",
                "a job whose row is locked by a dead run never ends",
            ),
        ),
        "Bodies that raise are one transition (retry). A node has one process; its worker state is exact.",
    ),
    Model(
        "batch",
        "A claim of several jobs behind a long body",
        (
            "No job runs twice side by side, while nobody died.",
            "All jobs end, once.",
        ),
        (Bounds("a claim of 3 jobs, 7 seconds, a process, its supervisor, another process"),),
        (
            Guard(
                "the renewal before the begin",
                ("NO_RENEWAL",),
                "jobs.worker.runner.Runner._run",
                "a job runs side by side with itself",
            ),
            Guard(
                "worker state first, then the clock",
                ("LOOK_FIRST",),
                "jobs.worker.runner.Runner._name",
                "a job runs side by side with itself",
            ),
            Guard(
                "a renewed row has a token of its own",
                ("SAME_TOKEN",),
                "jobs.lifecycle.claims.renewed",
                "a job that has begun is given back",
            ),
            Guard(
                "what could not be renewed does not begin",
                ("NO_CHECK",),
                "jobs.worker.runner.Runner._run",
                "a job runs side by side with itself",
            ),
            Guard(
                "what has begun is not given back",
                ("NO_BUT",),
                "jobs.lifecycle.transitions.hand_back_claim",
                "the long body itself is given back",
            ),
        ),
        "Nobody dies here: that is the model of the rescue.",
    ),
    Model(
        "rescue",
        "Who counts when a node dies",
        (
            "An innocent is never counted: of a dead claim only the row that was begun, or the next to be.",
            "No run is taken from a worker that lives.",
            "All rows of the claim are given back, and exactly one is counted.",
        ),
        (Bounds("a claim of 3 jobs, 2 rescuers, which die twice, somebody who locks a row"),),
        (
            Guard(
                "the row that counts is given back last",
                ("COUNT_FIRST",),
                "jobs.maintenance.rescue._lose_all",
                "an innocent is counted",
            ),
            Guard(
                "it waits for a row that is locked",
                ("NO_WAIT",),
                "jobs.maintenance.rescue._lose_all",
                "an innocent is counted",
            ),
            Guard("a renewed row is the one", ("NO_SIGN",), "jobs.lifecycle.claims.begun", "an innocent is counted"),
            Guard(
                "a rescuer's fence",
                ("NO_FENCE",),
                "jobs.maintenance.rescue._finish_all",
                "a run is taken from a worker that lives",
            ),
        ),
        "A process that dies on a node that lives: its supervisor reads which row it was in.",
    ),
    Model(
        "judge",
        "Who is dead",
        ("Nobody is declared dead who beats whenever the database takes it.",),
        (Bounds("a beat every 2 s, dead after 10 s, 17 seconds, the database away once"),),
        (
            Guard(
                "a judge that was away knows nothing",
                ("NO_GAP",),
                "jobs.maintenance.rescue.Rescue._silent",
                "after an outage of the database a node that lives is declared dead",
            ),
            Guard(
                "beats prove the time between them, and none before",
                ("ALL_BEATS",),
                "jobs.maintenance.rescue.Rescue._silent",
                "after an outage of the database a node that lives is declared dead",
            ),
            Guard(
                "the judge's own clock",
                ("OTHERS_CLOCK",),
                "jobs.maintenance.rescue.Rescue._silent",
                "a node whose clock is wrong is declared dead",
            ),
            Guard(
                "(the model can fail: somebody who died is declared dead)",
                ("NOBODY_IS_BURIED",),
                "jobs.maintenance.rescue.bury",
                "nobody is ever declared dead",
            ),
        ),
        "A node that stands still for longer is declared dead: the model of ownership bears that at any time.",
        ends=False,
    ),
    Model(
        "unique",
        "One waiting job per key",
        (
            "Never do two jobs of one key wait.",
            "No change is missed: after the commit of a change and a call there is a run that sees it.",
        ),
        (Bounds("2 callers that commit or roll back, a worker, a retry"),),
        (
            Guard("the unique index", ("NO_INDEX",), "jobs.lifecycle.unique.insert", "two jobs of one key wait"),
            Guard(
                "the key is free when the job starts",
                ("KEEP_KEY",),
                "unique_until='started'",
                "a change is missed",
            ),
            Guard(
                "a call waits for another's that is not committed",
                ("NO_WAIT",),
                "jobs.lifecycle.unique.insert",
                "a call is lost with another's transaction",
            ),
            Guard(
                "a retry looks whether its key is free",
                ("BLIND_RETRY",),
                "jobs.lifecycle.transitions.wait",
                "two jobs of one key wait",
            ),
        ),
        "A change that is committed after its call, in one transaction with it: the job may have started between.",
    ),
    Model(
        "limit",
        "The slots of a limit",
        (
            "No slot is taken twice, and no more jobs run than there are slots.",
            "No slot is lost: all jobs run, whoever dies.",
        ),
        (
            Bounds("3 jobs, 2 slots, 2 processes that die twice"),
            Bounds("the same, and the limit is lowered to 1", ("LOWERED",)),
        ),
        (
            Guard(
                "the constraint of slots",
                ("NO_CONSTRAINT",),
                "the constraint jobs_job_limit_slot",
                "a slot is taken twice",
            ),
            Guard(
                "a slot is a running row, and nothing that is given back",
                ("KEPT",),
                "jobs.contrib.limits.claims",
                "a slot is lost with a process",
            ),
            Guard(
                "how many run counts, and not which slots",
                ("LOWERED", "NO_COUNT"),
                "jobs.contrib.limits.store (cardinality)",
                "more run than a lowered limit says",
            ),
        ),
        "Rates, lines that are held, limits of queues.",
    ),
    Model(
        "signal",
        "Signal against wait",
        ("No signal is lost: the job that waits gets each.", "One step takes a signal, and no zombie's step does."),
        (
            Bounds("2 signals, a job that waits twice, 2 runs, a death anywhere"),
            Bounds("nobody dies: then no tick is needed", ("DEATHS=0", "NO_TICK")),
        ),
        (
            Guard(
                "the sender looks after its commit",
                ("DEATHS=0", "NO_TICK", "LOOK_BEFORE"),
                "jobs.contrib.durable.signals.signal",
                "a signal is lost",
            ),
            Guard(
                "the waiter looks after its commit",
                ("DEATHS=0", "NO_TICK", "NO_LOOK"),
                "jobs.contrib.durable.history.History._suspend",
                "a signal is lost",
            ),
            Guard(
                "the workers look again",
                ("NO_TICK",),
                "jobs.contrib.durable.signals.look_again",
                "a signal is lost with a process that died before it looked",
            ),
            Guard(
                "the fence of a step",
                ("NO_FENCE",),
                "jobs.contrib.durable.history.History._hold",
                "a zombie's step takes a signal",
            ),
        ),
        "Two jobs that wait for one key; the minute after which the workers look no longer.",
    ),
    Model(
        "events",
        "Handing events on",
        ("Each event is handed on once, in the order of its number.", "No event is lost."),
        (
            Bounds("3 events, 2 receivers, a publisher and its successor, 2 deaths, redelivery in any order"),
            Bounds("nobody knows an event by its id: the numbers say the same", ("NO_KNOWN",)),
        ),
        (
            Guard(
                "only whose turn it is",
                ("NO_TURN",),
                "jobs.contrib.event_broker.inbox._turn",
                "an event is handed on twice, or before another",
            ),
            Guard(
                "one process hands on at a time",
                ("NO_LOCK",),
                "jobs.events.relay.lock",
                "an event is handed on twice, or never",
            ),
        ),
        "Events without a number, replays, a source that lost its database.",
    ),
)
