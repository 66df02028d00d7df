/* Who is dead: a node is, whose beat stood still for DEAD_AFTER on the clock of the one who judges, while that one could
   write. Nobody else's clock counts.

   Node A beats whenever its time has come, and a second later if the database did not take it, until it is killed. J
   judges: it beats, looks every second, and buries what it found, where it may stand still. The database is away once, for
   as long as it likes. Times are seconds. */

#ifndef HEARTBEAT
#define HEARTBEAT 2
#endif
#ifndef DEAD_AFTER
#define DEAD_AFTER 10
#endif
#ifndef TIME
#define TIME 17
#endif
#define AGAIN 1
#define NEVER 99
/* A's machine is ahead by so much. */
#ifndef AHEAD
#define AHEAD 12
#endif

/* Beats that J wrote since its last look prove that it was there between them. */
#ifdef ALL_BEATS
#define BETWEEN (j_count - own)
#else
#define BETWEEN (j_count > own -> j_count - own - 1 : 0)
#endif
#ifdef OTHERS_CLOCK
#define SILENCE (now + AHEAD - a_at)
#else
#define SILENCE (now - since)
#endif

byte now, a_due, j_due, a_at = AHEAD;
bool up = true, a_dead, over;
/* The counters in the database. */
byte a_count, j_count;
bool looked, found; /* in this second; something silent */

proctype node() {
    do
    :: over || a_dead -> break
    :: atomic { !over && now == a_due && up -> a_count++; a_at = now; a_due = now + HEARTBEAT;
        printf("@ a beats count=%d\n", a_count) }
    :: atomic { !over && now == a_due && !up -> a_due = now + AGAIN; printf("@ a cannot_beat\n") }
    :: atomic { !over -> a_dead = true; a_due = NEVER; printf("@ a dies\n") }
    od
}

proctype beats() {
    do
    :: over -> break
    :: atomic { !over && now >= j_due && up -> j_count++; j_due = now + HEARTBEAT; printf("@ j beats count=%d\n", j_count) }
    :: atomic { !over && now >= j_due && !up -> j_due = now + AGAIN; printf("@ j cannot_beat\n") }
    od
}

proctype judge() {
    /* What was seen of A, and since when; its own beat, and when it was seen last. */
    byte seen = NEVER, since, own = NEVER, last;
    do
    :: over -> break
    :: atomic { !over && up && !looked -> looked = true;
        if
#ifndef NO_GAP
        /* It was away, or could not write: nothing is known of the others. */
        :: own == NEVER || (now - last - BETWEEN * HEARTBEAT) * 2 > DEAD_AFTER -> seen = NEVER
#endif
        :: else
        fi;
        if
        :: own != j_count -> own = j_count; last = now
        :: else
        fi;
        if
        :: seen != a_count -> seen = a_count; since = now; printf("@ j sees count=%d\n", seen)
        :: seen == a_count && SILENCE > DEAD_AFTER -> found = true; printf("@ j finds_silent\n"); goto silent
        :: else -> printf("@ j looks\n")
        fi }
    od;
    goto done;
silent:
    /* It may have stood still here, or waited for the database. */
    atomic { over || up ->
        if
        :: over
        :: !over && a_count != seen -> printf("@ j sees_a_beat\n")
        :: !over && a_count == seen ->
            printf("@ j buries a\n");
            /* Nobody is declared dead who beats whenever he can. */
            assert(a_dead);
#ifdef NOBODY_IS_BURIED
            assert(false)
#endif
        fi };
done:
    skip
}

proctype database() {
    if
    :: over
    :: atomic { !over && up -> up = false; printf("@ d goes\n") };
        if
        :: over
        :: atomic { !over && !up -> up = true; printf("@ d returns\n") }
        fi
    fi
}

proctype clock() {
    do
    :: atomic { now < TIME && now != a_due && (!up || now < j_due) && (!up || looked || found) -> now++; looked = false; printf("@ t ticks now=%d\n", now) }
    :: atomic { now == TIME -> over = true; break }
    od
}

init { atomic { run node(); run beats(); run judge(); run database(); run clock() } }
