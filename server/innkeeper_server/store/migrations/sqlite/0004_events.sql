-- The log of events: one row for each chunk of consecutive events of a turn, until its retention is
-- over. See store/protocol.py for what the columns mean.

CREATE TABLE events (
    tenant    TEXT    NOT NULL,
    type      TEXT    NOT NULL,
    id        TEXT    NOT NULL,
    turn      TEXT    NOT NULL,
    epoch     INTEGER NOT NULL,
    first     INTEGER NOT NULL,
    last      INTEGER NOT NULL CHECK (last >= first),
    ended     INTEGER NOT NULL CHECK (ended IN (0, 1)),
    position  INTEGER NOT NULL,
    logged_at REAL    NOT NULL,  -- seconds of Unix time
    data      BLOB    NOT NULL,
    UNIQUE (tenant, type, id, position)
);

CREATE INDEX events_by_turn ON events (turn, first);
CREATE INDEX old_events ON events (logged_at);
