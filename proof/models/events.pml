/* Handing events on: a source numbers its events of a name, publishes them, and notes that; a service stores each once,
   and hands on those whose turn it is.

   Three events, a publisher that another one follows, two receivers; they die DEATHS times in all. The
   broker delivers again what was not acknowledged, in any order. */

#ifndef DEATHS
#define DEATHS 2
#endif
#define EVENTS 3

byte copies[EVENTS + 1]; /* of each number: how many messages the broker has */
bool noted[EVENTS + 1];  /* at the source: it was published */
bool stored[EVENTS + 1], handed[EVENTS + 1];
byte position, deaths;
bool locked;

inline hand_on(n) {
    printf("@ hands_on %d\n", n);
    /* Each is handed on once, and in the order of the numbers. */
    assert(!handed[n]);
    handed[n] = true;
    assert(n == 1 || handed[n - 1])
}

proctype publisher() {
    byte n = 1;
again:
    if
    :: atomic { copies[n] < 2 -> copies[n]++; printf("@ p publishes %d\n", n) }
    :: copies[n] == 2
    fi;
    if
    :: atomic { noted[n] = true; printf("@ p notes %d\n", n) }
    /* The next one publishes it again. */
    :: atomic { deaths > 0 -> deaths--; printf("@ p dies\n"); goto again }
    fi;
    atomic {
        if
        :: n < EVENTS -> n++
        :: else -> goto done
        fi };
    goto again;
done:
    skip
}

proctype receiver(byte r) {
    byte n, seen;
    bool known;
end_receiver:
    do
    :: atomic { copies[1] > 0 -> n = 1; goto store }
    :: atomic { copies[2] > 0 -> n = 2; goto store }
    :: atomic { copies[3] > 0 -> n = 3; goto store }
    od;
store:
#ifndef NO_LOCK
    atomic { !locked -> locked = true };
#endif
    /* What its transaction reads, and what it writes at its commit. */
    atomic { known = stored[n]; seen = position; printf("@ r%d reads %d\n", r, n) };
    if
    :: atomic { deaths > 0 -> deaths--; printf("@ r%d dies\n", r) }
    :: atomic {
#ifndef NO_KNOWN
        if
        :: known
        :: else ->
#endif
            stored[n] = true; printf("@ r%d stores %d\n", r, n);
#ifdef NO_TURN
            hand_on(n)
#else
            if
            :: n == seen + 1 -> position = n; hand_on(n);
                if
                :: n < EVENTS && stored[n + 1] -> position = n + 1; hand_on(n + 1);
                    if
                    :: n + 1 < EVENTS && stored[n + 2] -> position = n + 2; hand_on(n + 2)
                    :: else
                    fi
                :: else
                fi
            :: n != seen + 1 -> printf("@ r%d parks %d\n", r, n)
            fi
#endif
#ifndef NO_KNOWN
        fi
#endif
        ;
        /* It may die before the broker hears that it has it. */
        if
        :: copies[n] > 0 -> copies[n]--; printf("@ r%d acknowledges %d\n", r, n)
        :: copies[n] > 0 && deaths > 0 -> deaths--; printf("@ r%d dies_after %d\n", r, n)
        :: else
        fi }
    fi;
    atomic { locked = false; known = false; seen = 0; n = 0; goto end_receiver }
}

proctype end() {
end_end:
    atomic { timeout ->
        /* No event is lost. */
        assert(handed[1] && handed[2] && handed[3]) }
}

init { atomic { deaths = DEATHS; run publisher(); run receiver(0); run receiver(1); run end() } }
