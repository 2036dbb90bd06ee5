-- Bulk actions (H4): each with its frozen list of letters and what became of every one of them.

CREATE TABLE operations (
    number      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,    -- in the order they were begun
    id          text   COLLATE "C" NOT NULL UNIQUE,
    kind        text   COLLATE "C" NOT NULL,
    by          text   COLLATE "C" NOT NULL,
    query       text   COLLATE "C" NOT NULL,
    options     bytea  NOT NULL,
    state       text   COLLATE "C" NOT NULL,
    note        text   COLLATE "C" NOT NULL,
    total       bigint NOT NULL,
    created_at  bigint NOT NULL,
    ended_at    bigint,
    ended_by    text   COLLATE "C",
    runner      text   COLLATE "C",
    lease_until bigint
);

-- The list, in its order. Letters are named by id, because they may be deleted and the list stays.
CREATE TABLE items (
    operation bigint NOT NULL,
    position  bigint NOT NULL,                  -- from 1
    letter_id text   COLLATE "C" NOT NULL,
    outcome   text   COLLATE "C",               -- NULL: none so far
    detail    text   COLLATE "C" NOT NULL DEFAULT '',
    at        bigint,
    PRIMARY KEY (operation, position)
) WITH (fillfactor = 90);
CREATE UNIQUE INDEX items_letter ON items (operation, letter_id);

-- What is left to do is found without walking over what is done.
CREATE INDEX items_remaining ON items (operation, position) WHERE outcome IS NULL;

-- How many letters have which outcome, kept by the transaction that records them: a million are not counted again.
CREATE TABLE outcomes (
    operation bigint NOT NULL,
    outcome   text   COLLATE "C" NOT NULL,
    count     bigint NOT NULL,
    PRIMARY KEY (operation, outcome)
);
