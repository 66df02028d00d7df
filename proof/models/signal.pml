/* Signal against wait: the waiter writes "I wait" and the sender writes "it has come", in transactions that do not see
   each other. Each looks for the other's row after its own COMMIT, and the workers look again at what came lately.

   One durable job that waits for KEY twice, two senders, a tick. Processes die DEATHS times: a sender after its COMMIT,
   a run anywhere. The job's run may have a zombie beside it. */

#ifndef DEATHS
#define DEATHS 1
#endif
#define RUNNING 1
#define WAITS 2
#define READY 0
#define DONE 3

byte state = READY, lease, steps; /* the job, and how many steps of it are done */
bool there[2];                    /* the signals: committed */
byte taken[2];                    /* by how many steps */
byte deaths;

#define NEW (there[0] && !taken[0]) || (there[1] && !taken[1])

inline rows() { printf("= job %d %d %d signals %d %d %d %d\n", state, lease, steps, there[0], taken[0], there[1], taken[1]) }

inline wake() {
    if
    :: state == WAITS -> state = READY; printf("@ wakes\n"); rows()
    :: else
    fi
}

proctype sender(byte s) {
#ifdef LOOK_BEFORE
    atomic { printf("@ %d looks_first\n", s); wake() };
    atomic { there[s] = true; printf("@ %d sends\n", s); rows() };
#else
    atomic { there[s] = true; printf("@ %d sends\n", s); rows() };
    if
    :: atomic { printf("@ %d looks\n", s); wake() }
    :: atomic { deaths > 0 -> deaths--; printf("@ %d dies\n", s) }
    fi
#endif
}

proctype run_of(byte w) {
    byte own, key, one;
end_run:
    do
    :: atomic { state == READY -> state = RUNNING; lease++; own = lease; printf("@ w%d claims\n", w); rows() };
again:
        /* It reads what is there. */
        if
        :: atomic { steps == 2 ->
            if
            :: state == RUNNING && lease == own -> state = DONE; printf("@ w%d completes\n", w); rows()
            :: else
            fi;
            own = 0; goto end_run }
        :: atomic { steps < 2 && (NEW) -> key = ((there[0] && !taken[0]) -> 0 : 1) };
            /* The step: its result, and the signal that it takes, under the fence. */
            if
            :: atomic { deaths > 0 -> deaths--; printf("@ w%d dies\n", w); goto died }
            :: atomic {
                if
#ifdef NO_FENCE
                :: true ->
#else
                :: state == RUNNING && lease == own ->
#endif
                    if
                    :: !taken[key] ->
                        taken[key]++; steps++; printf("@ w%d takes s%d\n", w, key); rows();
                        /* One step takes a signal. */
                        assert(taken[key] == 1);
                        assert(lease == own);
                        key = 0; goto again
                    :: else -> key = 0; goto again
                    fi
                :: else -> printf("@ w%d lost\n", w); own = 0; key = 0; goto end_run
                fi }
            fi
        :: atomic { steps < 2 && !(NEW) -> printf("@ w%d finds_none\n", w) };
            if
            :: atomic { deaths > 0 -> deaths--; printf("@ w%d dies\n", w); goto died }
            :: atomic {
                if
                :: state == RUNNING && lease == own -> state = WAITS; printf("@ w%d waits\n", w); rows()
                :: else -> printf("@ w%d lost\n", w); own = 0; goto end_run
                fi }
            fi;
#ifndef NO_LOOK
            if
            :: atomic { deaths > 0 -> deaths--; printf("@ w%d dies\n", w) }
            :: atomic {
                printf("@ w%d looks\n", w);
                if
                :: NEW -> wake()
                :: else
                fi }
            fi;
#endif
            own = 0
        fi
    od;
died:
    /* It died, or was taken for dead: then it goes on, and another run has the job. */
    atomic {
        if
        :: state == RUNNING && lease == own -> state = READY; printf("@ k rescues\n"); rows()
        :: else
        fi;
        if
        :: own = 0; key = 0; goto end_run
        :: key = 0; goto again
        fi
    }
}

/* It looks at signals that came in the last minute, and at those at which nobody has looked. */
proctype tick() {
end_tick:
    do
#ifndef NO_TICK
    :: atomic { state == WAITS && (NEW) -> printf("@ t looks\n"); wake() }
#else
    :: false
#endif
    od
}

proctype end() {
end_end:
    atomic { timeout ->
        /* No signal is lost: the job has got both, and has ended. */
        assert(state == DONE && taken[0] == 1 && taken[1] == 1) }
}

init { atomic { deaths = DEATHS; run sender(0); run sender(1); run run_of(0); run run_of(1); run tick(); run end() } }
