-- Letters belong to a broker by its name, which a claim asks for; some letters are sent but not confirmed.
--
-- A new database runs this file as a whole. In a database with letters its parts run one by one, and
-- `broker_migration.py` fills the new columns in between: no part takes long while it holds a lock on a table.

-- [begin] Only catalogue changes. Processes of schema 3 that are still connected go on reading and writing until the
-- last part: triggers complete what they write.

CREATE TABLE migration_progress (
    broker_done bigint NOT NULL,                -- letters up to this number have a broker
    group_done  bigint NOT NULL,                -- letters up to this number have their consumer group
    last        bigint NOT NULL                 -- the last letter that was there when the migration began
);
-- Letters that were added since, by processes that do not know of consumer groups. Those of RabbitMQ have none.
CREATE TABLE migration_letters (number bigint NOT NULL);

ALTER TABLE states
    ADD COLUMN broker      text COLLATE "C",
    ADD COLUMN unconfirmed boolean NOT NULL DEFAULT false,  -- sent, and its lease has expired without a verdict
    ADD CONSTRAINT states_broker_known CHECK (broker IS NOT NULL) NOT VALID;
ALTER TABLE letters ADD COLUMN consumer_group text COLLATE "C";

CREATE FUNCTION migration_set_broker() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.broker := 'unnamed:' || coalesce(
        (SELECT transport FROM redrive.letters WHERE number = NEW.number), 'unknown'
    );
    RETURN NEW;
END $$;
CREATE TRIGGER migration_set_broker BEFORE INSERT OR UPDATE ON states
    FOR EACH ROW WHEN (NEW.broker IS NULL) EXECUTE FUNCTION migration_set_broker();

CREATE FUNCTION migration_note_letter() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO redrive.migration_letters VALUES (NEW.number);
    RETURN NULL;
END $$;
CREATE TRIGGER migration_note_letter AFTER INSERT ON letters
    FOR EACH ROW WHEN (NEW.transport <> 'rabbitmq') EXECUTE FUNCTION migration_note_letter();

INSERT INTO migration_progress
    SELECT 0, 0, greatest((SELECT max(number) FROM letters), (SELECT max(number) FROM states), 0);

-- [indexes] Built one by one, and concurrently where there are letters. Claims and everything else that a server does
-- for its broker find their letters by the broker first. A letter that was sent leaves `states_leased`: its lease is
-- ended by the server of its broker only.

CREATE INDEX states_ready_new   ON redrive.states (broker, priority DESC, age) WHERE ready;
CREATE INDEX states_waiting_new ON redrive.states (broker, next_retry_at) WHERE NOT ready;
CREATE INDEX states_leased_new  ON redrive.states (lease_until) WHERE lease_until IS NOT NULL AND sent_at IS NULL;
CREATE INDEX states_sent        ON redrive.states (broker, lease_until) WHERE sent_at IS NOT NULL;
CREATE INDEX states_unconfirmed ON redrive.states (broker, age) WHERE unconfirmed;

-- [finish] Only catalogue changes. The constraint is valid by now, so that NOT NULL needs no scan.

ALTER TABLE states ALTER COLUMN broker SET NOT NULL;
ALTER TABLE states DROP CONSTRAINT states_broker_known;
DROP TRIGGER migration_set_broker ON states;
DROP TRIGGER migration_note_letter ON letters;
DROP FUNCTION migration_set_broker;
DROP FUNCTION migration_note_letter;
ALTER TABLE letters DROP COLUMN transport;

DROP INDEX states_ready, states_waiting, states_leased;
ALTER INDEX states_ready_new   RENAME TO states_ready;
ALTER INDEX states_waiting_new RENAME TO states_waiting;
ALTER INDEX states_leased_new  RENAME TO states_leased;

ALTER TABLE journal RENAME TO change_log;
ALTER INDEX journal_pkey RENAME TO change_log_pkey;
ALTER INDEX journal_letter RENAME TO change_log_letter;
ALTER SEQUENCE journal_number_seq RENAME TO change_log_number_seq;
ALTER TABLE memos RENAME TO documents;
ALTER INDEX memos_pkey RENAME TO documents_pkey;
ALTER TABLE items RENAME TO operation_items;
ALTER INDEX items_pkey RENAME TO operation_items_pkey;
ALTER INDEX items_letter RENAME TO operation_items_letter;
ALTER INDEX items_remaining RENAME TO operation_items_remaining;
ALTER TABLE outcomes RENAME TO operation_outcomes;
ALTER INDEX outcomes_pkey RENAME TO operation_outcomes_pkey;

DROP TABLE migration_letters;
DROP TABLE migration_progress;
