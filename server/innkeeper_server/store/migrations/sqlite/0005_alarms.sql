-- Alarms: one row for each that an agent has set. See store/protocol.py for what the columns mean.

CREATE TABLE alarms (
    tenant  TEXT NOT NULL,
    type    TEXT NOT NULL,
    id      TEXT NOT NULL,
    name    TEXT NOT NULL,
    due     REAL NOT NULL,  -- seconds of Unix time
    every   REAL,
    receipt TEXT NOT NULL DEFAULT '',  -- the follow-up of its last time
    message BLOB NOT NULL,
    UNIQUE (tenant, type, id, name)
);

CREATE INDEX due_alarms ON alarms (due);
