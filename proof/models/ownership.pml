/* Who owns a job: claim, renewal, body, completion, COMMIT, retry, burial, rescue, orphans.

   Two workers of one process each, on two nodes. At every step a process may die, or stand still for so long that its
   node is declared dead; the answer of a COMMIT may get lost; the database may crash, and then it forgets the commits
   that nobody waited for. FAULTS is how many of these come, in any order.

   Job 0 is atomic, and its COMMIT need not be on disk. Job 1 acts outside of the database, under its lease as a fencing
   number, and something outside follows its COMMIT. With ONE there is one job, of either kind. */

#ifndef FAULTS
#define FAULTS 2
#endif
#define JOBS 2
#define WORKERS 2

#define READY 0
#define RUNNING 1
#define DONE 2

/* A renewed token is that of the claim, negated. */
#define RENEWED 32

/* The guards. Each can be taken out by -D. */
#ifdef NO_LEASE
#define LEASE(j, w) true
#else
#define LEASE(j, w) (row[j].lease == mem[w].lease[j])
#endif
#ifdef NO_TOKEN
#define TOKEN(j, w) true
#else
#define TOKEN(j, w) (row[j].token == mem[w].token[j])
#endif
#ifdef NO_STATE
#define STATE(j) true
#else
#define STATE(j) (row[j].state == RUNNING)
#endif
/* The fence (jobs/store/base.py, owned). */
#define OWNED(j, w) (STATE(j) && LEASE(j, w) && TOKEN(j, w))
/* Of two that are alike the one that claims first is called 0. */
#define FIRST(w) (tokens > 0 || w == 0)
#ifdef NO_DEAD_MARK
#define MAY_CLAIM(w) FIRST(w)
#else
#define MAY_CLAIM(w) (!DEAD(mem[w].node) && FIRST(w))
#endif
#ifdef SAME_TOKEN
#define NEW_TOKEN 1
#else
#define NEW_TOKEN tokens
#endif

#define DEAD(n) ((dead >> (n)) & 1)
#define GONE(n) ((gone >> (n)) & 1)
#define HAS_ROW(w, j) (mem[w].has[j] && row[j].token == mem[w].token[j])
#define LIVES(n) (!DEAD(n) && !GONE(n))
/* It runs on a node that lives, and no process has it. */
#define ORPHAN(j) (row[j].state == RUNNING && !lock[j] && LIVES(row[j].node) && !HAS_ROW(0, j) && !HAS_ROW(1, j))

typedef Row { byte state, lease, token, node, losses, effects };
/* What a process has claimed, as it remembers it. */
typedef Run { byte node; byte lease[JOBS]; byte token[JOBS]; bool has[JOBS]; bool cut };

Row row[JOBS];   /* what everybody sees */
Row disk[JOBS];  /* what a crash leaves */
bool dirty;      /* they differ */
Run mem[WORKERS];
byte lock[JOBS]; /* the worker whose transaction has the row, plus 1 */
bool left[JOBS]; /* that transaction has no client any more */
bool sent[JOBS]; /* and its COMMIT was sent */
byte dead, gone, nodes, tokens, epoch, faults;
byte outside; /* the job that acts outside of the database */
/* For the properties alone. */
byte used[JOBS];         /* the leases under which somebody acted outside */
bool followed[JOBS];     /* something outside has followed the COMMIT */
bool claimed_dead[JOBS]; /* its node was dead when it was claimed */

/* The rows, as the player compares them. */
inline rows() {
    printf("= j0 %d %d %d %d %d %d j1 %d %d %d %d %d %d\n",
        row[0].state, row[0].lease, row[0].token, row[0].node, row[0].losses, row[0].effects,
        row[1].state, row[1].lease, row[1].token, row[1].node, row[1].losses, row[1].effects)
}

inline flush() {
    disk[0].state = row[0].state; disk[0].lease = row[0].lease; disk[0].token = row[0].token;
    disk[0].node = row[0].node; disk[0].losses = row[0].losses; disk[0].effects = row[0].effects;
    disk[1].state = row[1].state; disk[1].lease = row[1].lease; disk[1].token = row[1].token;
    disk[1].node = row[1].node; disk[1].losses = row[1].losses; disk[1].effects = row[1].effects;
    dirty = false
}

inline forget() {
    row[0].state = disk[0].state; row[0].lease = disk[0].lease; row[0].token = disk[0].token;
    row[0].node = disk[0].node; row[0].losses = disk[0].losses; row[0].effects = disk[0].effects;
    row[1].state = disk[1].state; row[1].lease = disk[1].lease; row[1].token = disk[1].token;
    row[1].node = disk[1].node; row[1].losses = disk[1].losses; row[1].effects = disk[1].effects;
    dirty = false
}

inline claim_row(w, j) {
    row[j].state = RUNNING; row[j].lease++; row[j].token = NEW_TOKEN; row[j].node = mem[w].node;
    mem[w].has[j] = true; mem[w].lease[j] = row[j].lease; mem[w].token[j] = row[j].token;
    claimed_dead[j] = DEAD(mem[w].node)
}

inline drop(w, j) { mem[w].has[j] = false; mem[w].lease[j] = 0; mem[w].token[j] = 0; mem[w].cut = false }

inline give_back(j) { row[j].state = READY; flush() }

/* What a crashed database has lost may not have had consequences. */
inline check_followed() {
    assert(!followed[0] || row[0].state == DONE);
    assert(!followed[1] || row[1].state == DONE)
}

inline commit_row(w, j) {
    /* A zombie commits nothing. */
    assert(row[j].state == RUNNING && row[j].lease == mem[w].lease[j] && row[j].token == mem[w].token[j]);
    row[j].state = DONE; row[j].effects++; lock[j] = 0;
    /* Never two committed effects of one job. */
    assert(row[j].effects == 1);
#ifdef NO_SYNC
    dirty = true
#else
    if
    :: j == outside -> flush()
    :: else -> dirty = true
    fi
#endif
}

inline commit_left(j) {
    assert(row[j].state == RUNNING);
    row[j].state = DONE; row[j].effects++; lock[j] = 0;
    assert(row[j].effects == 1);
    if
    :: j == outside -> flush()
    :: else -> dirty = true
    fi
}

/* The process is killed. What its transaction has locked stays, and it may have sent its COMMIT. */
inline die(w, j) {
    faults--; gone = gone | (1 << mem[w].node);
    if
    :: j < JOBS && lock[j] == w + 1 -> left[j] = true;
        if
        :: sent[j] = true
        :: true
        fi
    :: else
    fi;
    printf("@ %d dies sent=%d\n", w, j < JOBS && sent[j]); rows();
    nodes++; mem[w].node = nodes; drop(w, 0); drop(w, 1)
}

inline begin(w, j) {
    began = epoch;
    if
    :: j == outside ->
        /* No two runs act under one fencing number. */
        assert(!(used[j] & (1 << mem[w].lease[j])));
        used[j] = used[j] | (1 << mem[w].lease[j])
    :: else
    fi;
    printf("@ %d begins j%d\n", w, j)
}

proctype worker(byte w) {
    byte j = JOBS, began;

idle:
    j = JOBS; began = 0;
end_idle:
    if
    /* Its beat has missed its row. */
    :: atomic { DEAD(mem[w].node) -> nodes++; mem[w].node = nodes; printf("@ %d takes_id %d\n", w, nodes) };
        goto idle
    :: atomic { MAY_CLAIM(w) && row[0].state == READY -> tokens++; claim_row(w, 0); dirty = true;
        printf("@ %d claims j0 token=%d node=%d\n", w, row[0].token, mem[w].node); rows() }
    :: atomic { MAY_CLAIM(w) && row[1].state == READY -> tokens++; claim_row(w, 1); dirty = true;
        printf("@ %d claims j1 token=%d node=%d\n", w, row[1].token, mem[w].node); rows() }
    :: atomic { MAY_CLAIM(w) && row[0].state == READY && row[1].state == READY ->
        tokens++; claim_row(w, 0); claim_row(w, 1); dirty = true;
        printf("@ %d claims both token=%d node=%d\n", w, row[0].token, mem[w].node); rows() }
    fi;

next:
    atomic {
        if
        :: mem[w].has[0] -> j = 0
        :: !mem[w].has[0] && mem[w].has[1] -> j = 1
        :: else -> goto idle
        fi
    };
    if
    :: atomic { faults > 0 -> die(w, j); goto idle }
#ifndef NO_RENEWAL
    :: atomic { j == outside && lock[j] == 0 ->
        if
        :: OWNED(j, w) -> row[j].token = row[j].token | RENEWED; mem[w].token[j] = row[j].token; flush();
            printf("@ %d renews j%d owned=1\n", w, j); rows()
        :: else -> printf("@ %d renews j%d owned=0\n", w, j); rows(); drop(w, j); goto next
        fi;
        begin(w, j) }
    :: atomic { j == outside && lock[j] == 0 && faults > 0 && OWNED(j, w) ->
        /* Its answer gets lost, and the process does not begin what it is not sure of. */
        faults--; row[j].token = row[j].token | RENEWED; flush();
        printf("@ %d renews j%d owned=2\n", w, j); rows(); drop(w, j); goto next }
    :: atomic { j != outside -> begin(w, j) }
#else
    :: atomic { begin(w, j) }
#endif
    fi;

    if
    :: atomic { faults > 0 -> die(w, j); goto idle }
    :: atomic { faults > 0 && lock[j] == 0 -> faults--;
        if
        :: OWNED(j, w) -> give_back(j); printf("@ %d retries j%d owned=1\n", w, j)
        :: else -> printf("@ %d retries j%d owned=0\n", w, j)
        fi;
        rows(); drop(w, j); goto next }
    /* Its connection has gone with the database. */
    :: atomic { began != epoch -> printf("@ %d cut j%d\n", w, j); goto lost }
    :: atomic { began == epoch && lock[j] == 0 ->
        if
        :: OWNED(j, w) -> lock[j] = w + 1; printf("@ %d completes j%d owned=1\n", w, j)
        :: else -> printf("@ %d completes j%d owned=0\n", w, j); rows(); drop(w, j); goto next
        fi }
    fi;
    if
    :: atomic { faults > 0 && lock[j] == w + 1 -> die(w, j); goto idle }
    :: atomic { lock[j] == w + 1 && !left[j] -> commit_row(w, j); printf("@ %d commits j%d\n", w, j); rows();
        followed[j] = (j == outside); drop(w, j); goto next }
    :: atomic { faults > 0 && lock[j] == w + 1 -> faults--; left[j] = true; sent[j] = true;
        printf("@ %d loses_answer j%d\n", w, j); goto lost }
    /* The server has ended its session, or has crashed. */
    :: atomic { began != epoch || mem[w].cut -> printf("@ %d cut j%d\n", w, j); goto lost }
    fi;

lost:
    /* Read the row on a new connection, and believe it. */
    if
    :: atomic { faults > 0 -> die(w, j); goto idle }
    :: atomic { row[j].state == DONE && row[j].lease == mem[w].lease[j] && row[j].token == mem[w].token[j] ->
#ifdef NO_BELIEF
        /* It takes what it does not know for a failure, and says so. */
        printf("@ %d disbelieves j%d\n", w, j); assert(false);
#else
        printf("@ %d believes j%d\n", w, j);
#endif
        drop(w, j); goto next }
    :: atomic { !(row[j].state == DONE && row[j].lease == mem[w].lease[j] && row[j].token == mem[w].token[j]) ->
        printf("@ %d reads_nothing j%d\n", w, j) }
    fi;
    if
    :: atomic { faults > 0 -> die(w, j); goto idle }
    /* The row may be locked by its own last transaction, until that is over. */
    :: atomic { lock[j] == 0 ->
        if
        :: OWNED(j, w) -> row[j].losses++; give_back(j); printf("@ %d loses j%d owned=1\n", w, j)
        :: else -> printf("@ %d loses j%d owned=0\n", w, j)
        fi;
        rows(); drop(w, j); goto next }
    fi
}

/* What the workers that live do about others: judge, bury, end sessions, give back. One step is one transaction. */
proctype keeper() {
    byte n, j;
end_keeper:
    do
    :: atomic { GONE(1) && !DEAD(1) -> n = 1; goto bury }
    :: atomic { GONE(2) && !DEAD(2) -> n = 2; goto bury }
    :: atomic { GONE(3) && !DEAD(3) -> n = 3; goto bury }
    :: atomic { GONE(4) && !DEAD(4) -> n = 4; goto bury }
    :: atomic { GONE(5) && !DEAD(5) -> n = 5; goto bury }
    /* It lives, and was away for too long. */
    :: atomic { faults > 0 && !DEAD(mem[0].node) -> faults--; n = mem[0].node; goto bury }
    :: atomic { faults > 0 && !DEAD(mem[1].node) -> faults--; n = mem[1].node; goto bury }
    :: atomic { row[0].state == RUNNING && DEAD(row[0].node) -> j = 0; goto rescue }
    :: atomic { row[1].state == RUNNING && DEAD(row[1].node) -> j = 1; goto rescue }
    :: atomic { ORPHAN(0) -> j = 0; goto orphan }
    :: atomic { ORPHAN(1) -> j = 1; goto orphan }
    od;
bury:
    atomic { dead = dead | (1 << n); flush(); printf("@ k buries node=%d\n", n); n = 0; goto end_keeper };
rescue:
    atomic {
        if
        :: row[j].state != RUNNING || !DEAD(row[j].node)
        :: row[j].state == RUNNING && DEAD(row[j].node) && lock[j] != 0 ->
#ifndef NO_ENDING
            printf("@ k ends_session j%d\n", j);
            if
            :: left[j] -> left[j] = false; sent[j] = false
            :: else -> mem[lock[j] - 1].cut = true
            fi;
            lock[j] = 0
#else
            /* The next look finds it locked as well. */
            lock[j] == 0
#endif
        :: row[j].state == RUNNING && DEAD(row[j].node) && lock[j] == 0 ->
            /* An innocent is never counted: the death came after the claim. */
            assert(!claimed_dead[j]);
            row[j].losses++; give_back(j); printf("@ k rescues j%d\n", j); rows()
        fi;
        j = 0; goto end_keeper
    };
orphan:
    atomic {
        if
        :: ORPHAN(j) ->
            row[j].losses++; give_back(j); printf("@ k gives_back_orphan j%d\n", j); rows()
        :: else
        fi;
        j = 0; goto end_keeper
    }
}

/* The server: it carries out what was sent, writes to its disk, and crashes. */
proctype server() {
    byte w;
end_server:
    do
    :: atomic { sent[0] -> w = lock[0] - 1;
        if
        :: commit_left(0); printf("@ s commits j0\n"); rows()
        :: lock[0] = 0; printf("@ s aborts j0\n")
        fi;
        left[0] = false; sent[0] = false; w = 0 }
    :: atomic { sent[1] -> w = lock[1] - 1;
        if
        :: commit_left(1); printf("@ s commits j1\n"); rows()
        :: lock[1] = 0; printf("@ s aborts j1\n")
        fi;
        left[1] = false; sent[1] = false; w = 0 }
    :: atomic { dirty && faults > 0 -> flush(); printf("@ s flushes\n") }
#ifndef NO_CRASH
    :: atomic { faults > 0 && dirty -> faults--; forget(); epoch++;
        lock[0] = 0; lock[1] = 0; left[0] = false; left[1] = false; sent[0] = false; sent[1] = false;
        printf("@ s crashes\n"); rows(); check_followed() }
#endif
    od
}

/* A committed job ends, once: nothing else can happen any more, and no run is infinite (checked apart). */
proctype end() {
end_end:
    atomic { timeout -> 
        assert(row[0].state == DONE && row[0].effects == 1);
        assert(row[1].state == DONE && row[1].effects == 1) }
}

init {
    atomic {
        outside = 1;
#ifdef ONE
        /* Only job 0, of either kind. */
        row[1].state = DONE; row[1].effects = 1; disk[1].state = DONE; disk[1].effects = 1;
        if
        :: outside = 0
        :: true
        fi;
#endif
        printf("@ init outside=%d\n", outside);
        faults = FAULTS; nodes = WORKERS; mem[0].node = 1; mem[1].node = 2;
        run worker(0); run worker(1); run keeper(); run server(); run end()
    }
}
