/* A limit's places: a claim reads which are free, takes one for a job, and a constraint decides between two claims that
   chose the same. A place is free when its job does not run any more, however that came.

   Three jobs of one limit with two slots, two processes that claim and die, a rescue; the limit is lowered once. */

#ifndef DEATHS
#define DEATHS 2
#endif
#define JOBS 3
#define READY 0
#define RUNNING 1
#define DONE 2
#define NONE 7

typedef Row { byte state, lease, slot };
Row row[JOBS];
byte slots = 2, deaths, reading;
/* The rows that a claim has locked. */
byte locks;
/* How many ran when the limit was lowered: these go on. */
byte before;
#ifdef KEPT
bool kept[2];
#endif

#define HAS(j, s) (row[j].state == RUNNING && row[j].slot == s)
#ifdef KEPT
/* What a place would be that somebody has to give back. */
#define TAKEN(s) kept[s]
#else
#define TAKEN(s) (HAS(0, s) || HAS(1, s) || HAS(2, s))
#endif
#define FIRST (row[0].state == READY -> 0 : (row[1].state == READY -> 1 : (row[2].state == READY -> 2 : NONE)))
/* The slot that is free; how many run counts, for the limit may have been higher. */
#ifdef NO_COUNT
#define SLOT ((!TAKEN(0) && slots > 0) -> 0 : ((TAKEN(0) && !TAKEN(1) && slots > 1) -> 1 : NONE))
#else
#define SLOT ((!TAKEN(0) && slots > TAKEN(1)) -> 0 : ((TAKEN(0) && !TAKEN(1) && slots > 1) -> 1 : NONE))
#endif
#define RUNS ((row[0].state == RUNNING) + (row[1].state == RUNNING) + (row[2].state == RUNNING))

inline rows() {
    printf("= j0 %d %d %d j1 %d %d %d j2 %d %d %d\n", row[0].state, row[0].lease, row[0].slot,
        row[1].state, row[1].lease, row[1].slot, row[2].state, row[2].lease, row[2].slot)
}

inline leaves(j) {
#ifdef KEPT
    kept[row[j].slot] = false
#else
    skip
#endif
}

proctype process(byte w) {
    byte j, s = NONE, own;
end_process:
    do
    :: atomic {
        /* What its statement sees: the first of the line, which it locks. Behind one that is locked it takes none. */
        FIRST != NONE && !((locks >> FIRST) & 1) && SLOT != NONE ->
        j = FIRST; s = SLOT; locks = locks | (1 << j);
        reading++; printf("@ %d reads j%d slot=%d\n", w, j, s)
#ifndef ONE_WRITER
        };
        atomic {
#else
        ;
#endif
            if
#ifndef NO_CONSTRAINT
            :: TAKEN(s) -> printf("@ %d meets slot=%d\n", w, s)
            :: !TAKEN(s) ->
#else
            :: true ->
#endif
                row[j].state = RUNNING; row[j].lease++; row[j].slot = s; own = row[j].lease;
#ifdef KEPT
                kept[s] = true;
#endif
                printf("@ %d claims j%d slot=%d\n", w, j, s); rows();
                /* No place is taken twice, and no more run than places are there. */
                assert(HAS(0, s) + HAS(1, s) + HAS(2, s) == 1);
                assert(RUNS <= slots || RUNS <= before)
            fi;
            locks = locks & ~(1 << j); s = NONE; reading--
        };
        if
        :: atomic { own && row[j].state == RUNNING && row[j].lease == own ->
            leaves(j); row[j].state = DONE; printf("@ %d completes j%d\n", w, j); rows(); own = 0; j = 0 }
        /* It is dead, or is taken for dead; then another run has the job. */
        :: atomic { own && deaths > 0 -> deaths--; row[j].state = READY; printf("@ %d dies\n", w); rows(); own = 0; j = 0 }
        :: atomic { !own -> j = 0 }
        fi
    od
}

/* Somebody sets the limit to one. A claim that has read the limit before goes by it. */
proctype somebody() {
    atomic { !reading -> slots = 1; before = RUNS; printf("@ x lowers slots=1\n") }
}

proctype end() {
end_end:
    atomic { timeout ->
        /* No place is lost: all jobs have run. */
        assert(row[0].state == DONE && row[1].state == DONE && row[2].state == DONE) }
}

init {
    atomic {
        deaths = DEATHS; row[0].slot = NONE; row[1].slot = NONE; row[2].slot = NONE;
        run process(0); run process(1);
#ifdef LOWERED
        run somebody();
#endif
        run end()
    }
}
