-- Bulk actions (H4): each with its frozen list of letters and what became of every one of them.

CREATE TABLE operations (
    number      INTEGER PRIMARY KEY,    -- in the order they were begun
    id          TEXT    NOT NULL UNIQUE,
    kind        TEXT    NOT NULL,
    by          TEXT    NOT NULL,
    query       TEXT    NOT NULL,
    options     BLOB    NOT NULL,
    state       TEXT    NOT NULL,
    note        TEXT    NOT NULL,
    total       INTEGER NOT NULL,
    created_at  INTEGER NOT NULL,
    ended_at    INTEGER,
    ended_by    TEXT,
    runner      TEXT,
    lease_until INTEGER
) STRICT;

-- The list, in its order. Letters are named by id, because they may be deleted and the list stays.
CREATE TABLE items (
    operation INTEGER NOT NULL,
    position  INTEGER NOT NULL,         -- from 1
    letter_id TEXT    NOT NULL,
    outcome   TEXT,                     -- NULL: none so far
    detail    TEXT    NOT NULL DEFAULT '',
    at        INTEGER,
    PRIMARY KEY (operation, position)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX items_letter ON items (operation, letter_id);

-- What is left to do is found without walking over what is done.
CREATE INDEX items_remaining ON items (operation, position) WHERE outcome IS NULL;

-- How many letters have which outcome, kept by the transaction that records them: a million are not counted again.
CREATE TABLE outcomes (
    operation INTEGER NOT NULL,
    outcome   TEXT    NOT NULL,
    count     INTEGER NOT NULL,
    PRIMARY KEY (operation, outcome)
) STRICT, WITHOUT ROWID;

-- Groups are counted from this index alone. Within a group it is in order of age, as it was.
DROP INDEX letters_group;
CREATE INDEX letters_group ON letters ("group", created_at, state, source, first_failed_at, last_failed_at);
