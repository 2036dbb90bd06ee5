-- What several servers keep together that is no letter: bytes under a name.

CREATE TABLE memos (
    name    TEXT    NOT NULL PRIMARY KEY,
    version INTEGER NOT NULL,           -- from 1; each write makes it one higher
    body    BLOB    NOT NULL
) STRICT;
