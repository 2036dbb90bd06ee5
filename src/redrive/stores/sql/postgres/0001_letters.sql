-- Dead letters. Times are whole microseconds since 1970-01-01 UTC. Text is compared byte by byte (COLLATE "C"), so that
-- every server orders it alike.

-- What died, and why: written once, and changed only by people or by a new failure.
CREATE TABLE letters (
    number          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    created_at      bigint  NOT NULL,
    id              text    COLLATE "C" NOT NULL UNIQUE,
    transport       text    COLLATE "C" NOT NULL,
    source          text    COLLATE "C" NOT NULL,
    message_id      text    COLLATE "C",
    correlation_id  text    COLLATE "C" NOT NULL,
    size            bigint  NOT NULL,
    reason          text    COLLATE "C" NOT NULL,
    error_type      text    COLLATE "C" NOT NULL,
    error_text      text    COLLATE "C" NOT NULL,
    kind            text    COLLATE "C" NOT NULL,
    "group"         text    COLLATE "C" NOT NULL,
    tags            text    COLLATE "C",        -- JSON array; NULL: none
    assignee        text    COLLATE "C",
    retry_count     bigint  NOT NULL,
    first_failed_at bigint  NOT NULL,
    last_failed_at  bigint  NOT NULL
) WITH (fillfactor = 95);                       -- tags and assignees change in place (HOT): no index holds them

-- Listing: each of these gives its letters in order of age. A name may be longer than an index can hold: its beginning
-- is enough to find it.
CREATE INDEX letters_age         ON letters (created_at);
CREATE INDEX letters_source      ON letters (left(source, 100), created_at);
CREATE INDEX letters_error_type  ON letters (left(error_type, 100), created_at);
CREATE INDEX letters_group       ON letters (left("group", 100), created_at);
CREATE INDEX letters_correlation ON letters USING hash (correlation_id);
CREATE INDEX letters_message     ON letters USING hash (message_id);

-- The hot part: where each letter stands. Narrow and with few indexes, because every claim and every settlement writes
-- a new version of its row, and of each index entry.
CREATE TABLE states (
    number          bigint  PRIMARY KEY,
    age             bigint  NOT NULL,           -- the letter's created_at
    state           text    COLLATE "C" NOT NULL DEFAULT 'dlq_pending',
    ready           boolean,                    -- pending letters only: true due, false waiting for next_retry_at
    presumed        boolean NOT NULL DEFAULT false,
    priority        integer NOT NULL,
    dlq_retry_count bigint  NOT NULL DEFAULT 0,
    fence           bigint  NOT NULL DEFAULT 0,
    next_retry_at   bigint  NOT NULL,
    updated_at      bigint  NOT NULL,
    locked_at       bigint,
    lease_until     bigint,
    sent_at         bigint,
    locked_by       text    COLLATE "C",
    strategy        text    COLLATE "C"
) WITH (
    fillfactor = 70,
    -- Dead versions are cleared while they are few: after 2,000 changes and one in a hundred, without pauses.
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_threshold = 2000,
    autovacuum_analyze_scale_factor = 0.05
);

-- Claiming walks `states_ready`; what falls due moves there from `states_waiting`.
CREATE INDEX states_ready   ON states (priority DESC, age) WHERE ready;
CREATE INDEX states_waiting ON states (next_retry_at)      WHERE NOT ready;
CREATE INDEX states_leased  ON states (lease_until)        WHERE lease_until IS NOT NULL;
CREATE INDEX states_state   ON states (state, age);
-- Retention takes what has not changed for the longest time.
CREATE INDEX states_done    ON states (state, updated_at) WHERE state IN ('dlq_resolved', 'dlq_failed', 'dlq_archived');

-- The cold part: read only when somebody asks for whole letters. It is packed already; the server need not try again.
CREATE TABLE bodies (
    letter  bigint PRIMARY KEY,
    content bytea  NOT NULL,                    -- message and origin; never changed
    failure bytea  NOT NULL                     -- the latest failure with its stack
);
ALTER TABLE bodies ALTER COLUMN content SET STORAGE EXTERNAL;
ALTER TABLE bodies ALTER COLUMN failure SET STORAGE EXTERNAL;

CREATE TABLE tags (
    tag    text   COLLATE "C" NOT NULL,
    letter bigint NOT NULL
);
CREATE INDEX tags_letter ON tags (letter);
CREATE INDEX tags_tag    ON tags (left(tag, 100), letter);

CREATE TABLE attempts (
    letter     bigint NOT NULL,
    number     bigint NOT NULL,
    started_at bigint NOT NULL,
    ended_at   bigint NOT NULL,
    worker     text   COLLATE "C" NOT NULL,
    strategy   text   COLLATE "C",
    result     text   COLLATE "C" NOT NULL,
    fence      bigint NOT NULL,
    detail     text   COLLATE "C" NOT NULL,
    PRIMARY KEY (letter, number)
);

CREATE TABLE notes (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    letter bigint NOT NULL,
    at     bigint NOT NULL,
    author text   COLLATE "C" NOT NULL,
    text   text   COLLATE "C" NOT NULL
);
CREATE INDEX notes_letter ON notes (letter);

-- Who did what, in the transaction that did it. Outlives the letters.
CREATE TABLE journal (
    number    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at        bigint NOT NULL,
    actor     text   COLLATE "C" NOT NULL,
    letter_id text   COLLATE "C" NOT NULL,
    action    text   COLLATE "C" NOT NULL,
    before    text   COLLATE "C" NOT NULL,
    after     text   COLLATE "C",
    detail    text   COLLATE "C" NOT NULL
);
CREATE INDEX journal_letter ON journal (letter_id, number);

-- What was committed in the last hours: whoever has lost the connection at a commit asks here what became of it.
CREATE TABLE commits (
    ticket uuid        PRIMARY KEY,
    void   boolean     NOT NULL DEFAULT false,  -- it was not committed, and never will be
    at     timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX commits_at ON commits (at);
