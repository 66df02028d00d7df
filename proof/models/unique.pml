/* One waiting job per key: two callers, each of which has committed a change before, and a worker that runs, retries, and
   frees the key when a job starts. */

#define JOBS 3
#define NONE 0
#define WAITS 1
#define RUNNING 2
#define DONE 3
#define FAILED 4
#define NOBODY 7

byte state[JOBS];
/* Whose transaction has not committed the row, plus 1. */
byte open[JOBS];
byte made, retries = 1;
/* The data: how many changes are committed, and up to which one a run has seen them. */
byte version, seen;

#ifdef KEEP_KEY
#define HAS_KEY(j) (state[j] == WAITS || state[j] == RUNNING)
#else
#define HAS_KEY(j) (state[j] == WAITS)
#endif
#define OTHERS(j, c) (HAS_KEY(j) && open[j] && open[j] != c + 1)
#define COMMITTED(j) (HAS_KEY(j) && !open[j])
#define SOMEBODY (COMMITTED(0) || COMMITTED(1) || COMMITTED(2))

inline rows() { printf("= j0 %d j1 %d j2 %d\n", state[0], state[1], state[2]) }

inline check() {
    /* Never two that wait for one key. */
    assert((state[0] == WAITS && !open[0]) + (state[1] == WAITS && !open[1]) + (state[2] == WAITS && !open[2]) <= 1)
}

proctype caller(byte c) {
    byte own = NOBODY, change;
    atomic { version++; change = version; printf("@ %d changes\n", c) };
    /* The INSERT waits for another's that is not committed. */
    if
    :: atomic {
#ifndef NO_WAIT
        !OTHERS(0, c) && !OTHERS(1, c) && !OTHERS(2, c) ->
#endif
        if
#ifndef NO_INDEX
        :: SOMEBODY -> printf("@ %d finds_one\n", c)
#ifdef NO_WAIT
        :: OTHERS(0, c) || OTHERS(1, c) || OTHERS(2, c) -> printf("@ %d finds_an_open_one\n", c)
#endif
#endif
        :: else -> own = made; made++; state[own] = WAITS; open[own] = c + 1; printf("@ %d inserts j%d\n", c, own)
        fi }
    fi;
    if
    :: atomic { own != NOBODY -> open[own] = 0; printf("@ %d commits\n", c); rows(); check() }
    :: atomic { own == NOBODY -> printf("@ %d commits\n", c) }
    /* Its own change was committed before, so somebody calls again. */
    :: atomic { own != NOBODY && c == 0 -> state[own] = NONE; open[own] = 0; version--; printf("@ %d rolls_back\n", c) }
    fi
}

inline claim(j) { state[j] = RUNNING; reads = NOBODY; now = j; printf("@ w claims j%d\n", j); rows() }

proctype worker() {
    byte now, reads;
end_worker:
    do
    :: atomic { state[0] == WAITS && !open[0] -> claim(0) };  goto body
    :: atomic { state[1] == WAITS && !open[1] -> claim(1) };  goto body
    :: atomic { state[2] == WAITS && !open[2] -> claim(2) };  goto body
    od;
body:
    atomic { reads = version; printf("@ w reads %d\n", reads) };
    if
    :: atomic { seen = (reads > seen -> reads : seen); state[now] = DONE; printf("@ w completes j%d\n", now); rows() }
    :: atomic { retries > 0 && (!open[0] || state[0] != WAITS) && (!open[1] || state[1] != WAITS) && (!open[2] || state[2] != WAITS) ->
        retries--;
        if
#ifndef BLIND_RETRY
        :: (state[0] == WAITS || state[1] == WAITS || state[2] == WAITS) -> state[now] = FAILED
#endif
        :: else -> state[now] = WAITS
        fi;
        printf("@ w retries j%d\n", now); rows(); check() }
    fi;
    atomic { now = 0; reads = 0; goto end_worker }
}

proctype end() {
end_end:
    atomic { timeout ->
        /* No change is missed that was committed before its call. */
        assert(seen >= version) }
}

init { atomic { run caller(0); run caller(1); run worker(); run end() } }
