-- Letters belong to a broker by its name, and letters without a verdict are unconfirmed.
--
-- Each statement is a transaction of its own (`stores.sqlite.migrate`), so that none keeps other writers waiting for
-- long. Before them, the letters of earlier versions leave `letters_ready` and `letters_waiting` in batches; afterwards
-- they get their values in batches: `broker` becomes `unnamed:` and the kind of broker, and `consumer_group` is read from
-- the packed content.

DROP INDEX letters_ready;
DROP INDEX letters_waiting;
DROP INDEX letters_leased;
ALTER TABLE letters RENAME COLUMN transport TO broker;
ALTER TABLE letters ADD COLUMN consumer_group TEXT;
ALTER TABLE letters ADD COLUMN unconfirmed INTEGER NOT NULL DEFAULT 0;  -- 1: sent, and no verdict came in time

-- A claim walks `letters_ready` of its broker; letters that fall due move there from `letters_waiting`.
CREATE INDEX letters_ready ON letters (broker, priority DESC) WHERE ready = 1;
CREATE INDEX letters_waiting ON letters (broker, next_retry_at) WHERE ready = 0;

-- Expired leases: of letters that were not sent, and of letters that wait for a verdict.
CREATE INDEX letters_leased ON letters (lease_until) WHERE lease_until IS NOT NULL AND sent_at IS NULL;
CREATE INDEX letters_sent ON letters (broker, lease_until) WHERE sent_at IS NOT NULL;
CREATE INDEX letters_unconfirmed ON letters (unconfirmed) WHERE unconfirmed = 1;

-- The indexes of these tables keep their names: building them anew would take long and change nothing else.
ALTER TABLE journal RENAME TO change_log;
ALTER TABLE memos RENAME TO documents;
ALTER TABLE items RENAME TO operation_items;
ALTER TABLE outcomes RENAME TO operation_outcomes;
