-- What several servers keep together that is no letter: bytes under a name.

CREATE TABLE memos (
    name    text   COLLATE "C" PRIMARY KEY,
    version bigint NOT NULL,                    -- from 1; each write makes it one higher
    body    bytea  NOT NULL
);
