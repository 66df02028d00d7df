/* Who counts when a node dies: of a claim of three jobs the one that was begun, or was the next to be.

   The process was anywhere in its claim when it died. Two rescuers look at the rows and give them back one by one; they
   may die as well (DEATHS times), and somebody locks a row meanwhile. A worker claims what is given back. */

#ifndef DEATHS
#define DEATHS 2
#endif
#define JOBS 3
#define NOBODY 7
#define READY 0
#define RUNNING 1
#define DONE 2

typedef Row { byte state, lease, losses; bool renewed, locked };
typedef Look { bool left[JOBS]; bool skipped; byte counts };
Row row[JOBS];
/* Where the process was, and a row before that whose end it could not write. */
byte at, unfinished, deaths;
bool known; /* its row says that it was begun */
Look look[2];

/* They ran under the claim of the dead node. */
#define DEAD(j) (row[j].state == RUNNING && row[j].lease == 1)
#define LEFT(j) (look[r].left[j])
#ifdef NO_FENCE
#define MINE(j) (row[j].state == RUNNING)
#else
#define MINE(j) DEAD(j)
#endif

inline rows() {
    printf("= j0 %d %d %d j1 %d %d %d j2 %d %d %d\n", row[0].state, row[0].lease, row[0].losses,
        row[1].state, row[1].lease, row[1].losses, row[2].state, row[2].lease, row[2].losses)
}

inline give_back(r, j) {
    if
    :: row[j].locked -> look[r].skipped = true; printf("@ r%d skips j%d\n", r, j)
    :: !row[j].locked && MINE(j) ->
        /* No run is taken from a worker that lives. */
        assert(row[j].lease == 1);
        row[j].state = READY; printf("@ r%d gives_back j%d\n", r, j)
    /* Another rescuer was faster. This one leaves the row that counts to the next look as well. */
    :: !row[j].locked && !MINE(j) -> look[r].skipped = true; printf("@ r%d finds_changed j%d\n", r, j)
    fi;
    rows()
}

inline count(r, j) {
    if
    :: row[j].locked -> printf("@ r%d skips j%d\n", r, j)
    :: !row[j].locked && MINE(j) ->
        assert(row[j].lease == 1);
        /* An innocent is never counted. */
        assert(j == at || (j == unfinished && !known));
        row[j].losses++; row[j].state = READY; printf("@ r%d counts j%d\n", r, j)
    :: !row[j].locked && !MINE(j) -> printf("@ r%d finds_changed j%d\n", r, j)
    fi;
    rows()
}

inline forget(r) {
    look[r].left[0] = false; look[r].left[1] = false; look[r].left[2] = false;
    look[r].skipped = false; look[r].counts = 0
}

proctype rescuer(byte r) {
end_rescuer:
    atomic {
        DEAD(0) || DEAD(1) || DEAD(2);
        look[r].left[0] = DEAD(0); look[r].left[1] = DEAD(1); look[r].left[2] = DEAD(2);
        if
#ifndef NO_SIGN
        :: LEFT(0) && row[0].renewed -> look[r].counts = 0
        :: LEFT(1) && row[1].renewed -> look[r].counts = 1
        :: LEFT(2) && row[2].renewed -> look[r].counts = 2
#endif
        :: else ->
            if
            :: LEFT(0) -> look[r].counts = 0
            :: !LEFT(0) && LEFT(1) -> look[r].counts = 1
            :: !LEFT(0) && !LEFT(1) -> look[r].counts = 2
            fi
        fi;
        printf("@ r%d looks counts=j%d\n", r, look[r].counts)
    };
#ifdef COUNT_FIRST
    atomic { count(r, look[r].counts); look[r].left[look[r].counts] = false };
#endif
    do
    :: atomic { LEFT(0) && look[r].counts != 0 -> give_back(r, 0); look[r].left[0] = false }
    :: atomic { (!LEFT(0) || look[r].counts == 0) && LEFT(1) && look[r].counts != 1 -> give_back(r, 1); look[r].left[1] = false }
    :: atomic { (!LEFT(0) || look[r].counts == 0) && (!LEFT(1) || look[r].counts == 1) && LEFT(2) && look[r].counts != 2 -> give_back(r, 2); look[r].left[2] = false }
    :: atomic { deaths > 0 -> deaths--; printf("@ r%d dies\n", r); forget(r); goto end_rescuer }
    :: atomic { (!LEFT(0) || look[r].counts == 0) && (!LEFT(1) || look[r].counts == 1) && (!LEFT(2) || look[r].counts == 2) ->
        if
#ifndef NO_WAIT
        /* Else the next look would find another one first. */
        :: look[r].skipped -> printf("@ r%d waits\n", r); !row[0].locked && !row[1].locked && !row[2].locked
#endif
#ifndef COUNT_FIRST
        :: else -> count(r, look[r].counts)
#else
        :: else
#endif
        fi;
        forget(r); goto end_rescuer }
    od
}

inline claim(j) {
    row[j].state = RUNNING; row[j].lease++; row[j].renewed = false; printf("@ w claims j%d\n", j); rows()
}

proctype worker() {
end_worker:
    do
    :: atomic { row[0].state == READY && !row[0].locked -> claim(0) }
    :: atomic { row[1].state == READY && !row[1].locked -> claim(1) }
    :: atomic { row[2].state == READY && !row[2].locked -> claim(2) }
    od
}

proctype somebody() {
    byte j;
    if
    :: j = 0
    :: j = 1
    :: j = 2
    fi;
    atomic { row[j].locked = true; printf("@ x locks j%d\n", j) };
    atomic { row[j].locked = false; printf("@ x unlocks j%d\n", j) }
}

proctype end() {
end_end:
    atomic { timeout ->
        /* All are given back, and one of the claim is counted at the most. */
        assert(!DEAD(0) && !DEAD(1) && !DEAD(2));
        assert(row[0].lease == 2 || row[0].state == DONE);
        assert(row[1].lease == 2 || row[1].state == DONE);
        assert(row[2].lease == 2 || row[2].state == DONE);
        assert(row[0].losses + row[1].losses + row[2].losses == 1) }
}

init {
    atomic {
        deaths = DEATHS; unfinished = NOBODY;
        row[0].state = RUNNING; row[0].lease = 1; row[1].state = RUNNING; row[1].lease = 1;
        row[2].state = RUNNING; row[2].lease = 1;
        if
        :: at = 0
        :: at = 1; row[0].state = DONE
        :: at = 2; row[0].state = DONE; row[1].state = DONE
        /* Its own row was not finished, and it went on. */
        :: at = 1; unfinished = 0
        fi;
        if
        :: row[at].renewed = true; known = true
        :: true
        fi;
        printf("@ init at=j%d renewed=%d unfinished=%d\n", at, row[at].renewed, unfinished); rows();
        run rescuer(0); run rescuer(1); run worker();
#ifndef NO_LOCKS
        run somebody();
#endif
        run end()
    }
}
