-- Dead letters. Times are whole microseconds since 1970-01-01 UTC.

-- The hot part. `created_at` is the row's key: the writer hands out strictly growing stamps, so rows lie in
-- order of age, every index ends in age by itself, and a range of time is a range of rows.
CREATE TABLE letters (
    created_at      INTEGER PRIMARY KEY,
    id              TEXT    NOT NULL UNIQUE,
    state           TEXT    NOT NULL DEFAULT 'dlq_pending',
    transport       TEXT    NOT NULL,
    source          TEXT    NOT NULL,
    message_id      TEXT,
    correlation_id  TEXT    NOT NULL,
    size            INTEGER NOT NULL,
    reason          TEXT    NOT NULL,
    error_type      TEXT    NOT NULL,
    error_text      TEXT    NOT NULL,
    kind            TEXT    NOT NULL,
    "group"         TEXT    NOT NULL,
    priority        INTEGER NOT NULL,
    tags            TEXT,               -- JSON array; NULL: none
    strategy        TEXT,
    assignee        TEXT,
    retry_count     INTEGER NOT NULL,
    dlq_retry_count INTEGER NOT NULL DEFAULT 0,
    first_failed_at INTEGER NOT NULL,
    last_failed_at  INTEGER NOT NULL,
    next_retry_at   INTEGER NOT NULL,
    updated_at      INTEGER NOT NULL,
    fence           INTEGER NOT NULL DEFAULT 0,
    locked_by       TEXT,
    locked_at       INTEGER,
    lease_until     INTEGER,
    sent_at         INTEGER,
    presumed        INTEGER NOT NULL DEFAULT 0,
    ready           INTEGER             -- pending letters only: 1 due, 0 waiting for next_retry_at
) STRICT;

-- Claiming walks `letters_ready`; what falls due moves there from `letters_waiting`.
CREATE INDEX letters_ready   ON letters (priority DESC)  WHERE ready = 1;
CREATE INDEX letters_waiting ON letters (next_retry_at)  WHERE ready = 0;
CREATE INDEX letters_leased  ON letters (lease_until)    WHERE lease_until IS NOT NULL;

-- Listing: each of these gives its letters in order of age.
CREATE INDEX letters_state       ON letters (state);
CREATE INDEX letters_source      ON letters (source);
CREATE INDEX letters_error_type  ON letters (error_type);
CREATE INDEX letters_group       ON letters ("group");
CREATE INDEX letters_correlation ON letters (correlation_id);
CREATE INDEX letters_message     ON letters (message_id) WHERE message_id IS NOT NULL;

-- The cold part: read only when somebody asks for whole letters.
CREATE TABLE bodies (
    letter  INTEGER PRIMARY KEY,
    content BLOB NOT NULL,              -- message and origin; never changed
    failure BLOB NOT NULL               -- the latest failure with its stack
) STRICT;

CREATE TABLE tags (
    tag    TEXT    NOT NULL,
    letter INTEGER NOT NULL,
    PRIMARY KEY (tag, letter)
) STRICT, WITHOUT ROWID;

CREATE TABLE attempts (
    letter     INTEGER NOT NULL,
    number     INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    ended_at   INTEGER NOT NULL,
    worker     TEXT    NOT NULL,
    strategy   TEXT,
    result     TEXT    NOT NULL,
    fence      INTEGER NOT NULL,
    detail     TEXT    NOT NULL,
    PRIMARY KEY (letter, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE notes (
    number INTEGER PRIMARY KEY,
    letter INTEGER NOT NULL,
    at     INTEGER NOT NULL,
    author TEXT    NOT NULL,
    text   TEXT    NOT NULL
) STRICT;
CREATE INDEX notes_letter ON notes (letter);

-- Who did what, in the transaction that did it. Outlives the letters.
CREATE TABLE journal (
    number    INTEGER PRIMARY KEY AUTOINCREMENT,
    at        INTEGER NOT NULL,
    actor     TEXT    NOT NULL,
    letter_id TEXT    NOT NULL,
    action    TEXT    NOT NULL,
    before    TEXT    NOT NULL,
    after     TEXT,
    detail    TEXT    NOT NULL
) STRICT;
CREATE INDEX journal_letter ON journal (letter_id);
