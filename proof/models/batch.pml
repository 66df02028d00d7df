/* A claim of several jobs, of which the first takes long: the supervisor gives back what waits behind it, while the
   process may end that body at the same moment and go on.

   Process 0 has claimed three jobs at once, process 1 claims what is given back, and both stand still wherever time is
   let go on. Times are of one machine's monotonic clock. */

#define JOBS 3
#define READY 0
#define RUNNING 1
#define DONE 2
#define RENEWED 32
#define NOBODY 7
/* A claim is old, and a body long, when more than so many seconds are over. */
#define OLD 1
#define LONG 2
#ifndef TIME
#define TIME 7
#endif

typedef Row { byte state, lease, token, bodies, effects };
Row row[JOBS];
byte now, tokens;
/* What process 0 shows: its job, the token of what waits behind it, and since when. */
byte shown, behind, began;

inline rows() {
    printf("= j0 %d %d %d %d j1 %d %d %d %d j2 %d %d %d %d\n", row[0].state, row[0].lease, row[0].token, row[0].effects,
        row[1].state, row[1].lease, row[1].token, row[1].effects,
        row[2].state, row[2].lease, row[2].token, row[2].effects)
}

inline begin(w, j) {
    row[j].bodies++; printf("@ %d begins j%d\n", w, j);
    /* No job runs twice side by side, while nobody died. */
    assert(row[j].bodies == 1)
}

inline complete(w, j, l, t) {
    row[j].bodies--;
    if
    :: row[j].state == RUNNING && row[j].lease == l && row[j].token == t ->
        row[j].state = DONE; row[j].effects++; printf("@ %d completes j%d owned=1\n", w, j)
    :: else -> printf("@ %d completes j%d owned=0\n", w, j)
    fi;
    rows()
}

#define BATCH 1

inline name(j) {
    shown = j; began = now; behind = (j < JOBS - 1 -> BATCH : 0); printf("@ 0 names j%d\n", j)
}

proctype first() {
    byte j, age, token;
    do
    :: j < JOBS ->
#ifdef LOOK_FIRST
        atomic { age = now; printf("@ 0 looks j%d age=%d\n", j, age) };
        atomic { name(j) };
#else
        atomic { name(j) };
        atomic { age = now; printf("@ 0 looks j%d age=%d\n", j, age) };
#endif
        token = BATCH;
#ifndef NO_RENEWAL
        if
        :: atomic { age > OLD ->
            if
            :: row[j].state == RUNNING && row[j].lease == 1 && row[j].token == BATCH ->
#ifndef SAME_TOKEN
                row[j].token = BATCH | RENEWED; token = row[j].token;
#endif
                printf("@ 0 renews j%d owned=1\n", j); rows()
            :: else -> printf("@ 0 renews j%d owned=0\n", j); rows();
#ifndef NO_CHECK
                goto following
#endif
            fi }
        :: age <= OLD
        fi;
#endif
        atomic { age = 0; begin(0, j) };
        atomic { complete(0, j, 1, token) };
following:
        atomic { j++; age = 0; token = 0 }
    :: else -> break
    od;
    atomic { shown = NOBODY; behind = 0; began = 0; printf("@ 0 rests\n") }
}

inline give(j) {
    if
#ifdef NO_BUT
    :: row[j].state == RUNNING && row[j].token == given -> row[j].state = READY
#else
    :: row[j].state == RUNNING && row[j].token == given && spared != j -> row[j].state = READY
#endif
    :: else
    fi
}

proctype supervisor() {
    byte spared, given;
end_supervisor:
    do
    :: atomic { shown != NOBODY && behind && now - began > LONG -> spared = shown; given = behind;
        printf("@ s sees j%d\n", spared) };
        atomic {
            give(0); give(1); give(2);
            printf("@ s gives_back token=%d but=j%d\n", given, spared); rows();
            spared = 0; given = 0;
            /* It does so once for each claim. */
            break
        }
    od
}

proctype second() {
    byte j, lease, token;
end_second:
    do
    :: atomic { row[0].state == READY -> j = 0; goto claim }
    :: atomic { row[1].state == READY -> j = 1; goto claim }
    :: atomic { row[2].state == READY -> j = 2; goto claim }
    od;
claim:
    atomic { tokens++; row[j].state = RUNNING; row[j].lease++; row[j].token = tokens; lease = row[j].lease;
        token = tokens; printf("@ 1 claims j%d token=%d\n", j, tokens); rows(); begin(1, j) };
    atomic { complete(1, j, lease, token); j = 0; lease = 0; token = 0; goto end_second }
}

proctype clock() {
    do
    :: atomic { now < TIME -> now++; printf("@ t ticks now=%d\n", now) }
    :: now == TIME -> break
    od
}

proctype end() {
end_end:
    atomic { timeout ->
        /* All end, once. */
        assert(row[0].state == DONE && row[0].effects == 1);
        assert(row[1].state == DONE && row[1].effects == 1);
        assert(row[2].state == DONE && row[2].effects == 1) }
}

init {
    atomic {
        tokens = BATCH; shown = NOBODY;
        row[0].state = RUNNING; row[0].lease = 1; row[0].token = BATCH;
        row[1].state = RUNNING; row[1].lease = 1; row[1].token = BATCH;
        row[2].state = RUNNING; row[2].lease = 1; row[2].token = BATCH;
        printf("@ 0 claims all token=1\n"); rows();
        run first(); run second(); run supervisor(); run clock(); run end()
    }
}
