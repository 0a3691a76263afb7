-- Everything that a store keeps. See store/protocol.py for what the columns mean.
--
-- Text compares by its bytes (collation "C"), which in UTF-8 is the order of code points.

CREATE TABLE schema_version (
    only_row integer PRIMARY KEY CHECK (only_row = 1),
    version  integer NOT NULL
);

CREATE TABLE agents (
    tenant     text COLLATE "C" NOT NULL,
    type       text COLLATE "C" NOT NULL,
    id         text COLLATE "C" NOT NULL,
    epoch      bigint           NOT NULL,
    version    bigint           NOT NULL,
    deleted    boolean          NOT NULL,
    created_at double precision NOT NULL,  -- seconds of Unix time
    updated_at double precision NOT NULL,
    state      bytea            CHECK (NOT deleted OR state IS NULL),
    PRIMARY KEY (tenant, type, id)
);

-- A page of a list costs its own length, however many tombstones lie between.
CREATE INDEX living_agents ON agents (tenant, type, id) WHERE NOT deleted;

CREATE TABLE followups (
    seq             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    receipt         text COLLATE "C" NOT NULL UNIQUE,
    tenant          text COLLATE "C" NOT NULL,
    type            text COLLATE "C" NOT NULL,
    id              text COLLATE "C" NOT NULL,
    passive         boolean          NOT NULL,
    attempt         integer          NOT NULL DEFAULT 0,
    state           text             NOT NULL DEFAULT 'accepted',
    accepted_at     double precision NOT NULL,
    expires_at      double precision,
    started_at      double precision,
    settled_at      double precision CHECK ((settled_at IS NULL) = (state = 'accepted')),
    message         bytea            NOT NULL,
    outcome         bytea,
    idempotency_key text COLLATE "C" NOT NULL,
    fingerprint     bytea            NOT NULL
);

CREATE INDEX pending_followups ON followups (passive, seq) WHERE settled_at IS NULL;
CREATE INDEX pending_by_agent ON followups (tenant, type, id, seq) WHERE settled_at IS NULL;
CREATE INDEX settled_followups ON followups (settled_at) WHERE settled_at IS NOT NULL;
CREATE UNIQUE INDEX keyed_followups ON followups (tenant, type, id, idempotency_key)
    WHERE idempotency_key <> '';

CREATE TABLE outcomes (
    tenant          text COLLATE "C" NOT NULL,
    type            text COLLATE "C" NOT NULL,
    id              text COLLATE "C" NOT NULL,
    idempotency_key text COLLATE "C" NOT NULL,
    turn            text COLLATE "C" NOT NULL,
    kept_at         double precision NOT NULL,
    fingerprint     bytea            NOT NULL,
    outcome         bytea            NOT NULL,
    PRIMARY KEY (tenant, type, id, idempotency_key)
);

CREATE INDEX old_outcomes ON outcomes (kept_at);

CREATE TABLE events (
    tenant    text COLLATE "C" NOT NULL,
    type      text COLLATE "C" NOT NULL,
    id        text COLLATE "C" NOT NULL,
    position  bigint           NOT NULL,
    turn      text COLLATE "C" NOT NULL,
    epoch     bigint           NOT NULL,
    first     bigint           NOT NULL,
    last      bigint           NOT NULL CHECK (last >= first),
    ended     boolean          NOT NULL,
    logged_at double precision NOT NULL,
    data      bytea            NOT NULL,
    PRIMARY KEY (tenant, type, id, position)
);

CREATE INDEX events_by_turn ON events (turn, first);
CREATE INDEX old_events ON events (logged_at);

-- The last group of writes that each writing connection's owner committed, kept in the same
-- transaction. It answers what became of a commit whose acknowledgement was lost. The number of
-- the database's own transaction cannot: one that a crash took with it is given out again.
CREATE TABLE writers (
    writer  text COLLATE "C" PRIMARY KEY,
    groups  bigint           NOT NULL,
    seen_at double precision NOT NULL
) WITH (fillfactor = 50);
