-- Letters that are due but wait for a condition leave `states_ready`, so that no claim walks over them.

ALTER TABLE states ADD COLUMN waits_for text COLLATE "C";  -- the gate at which a letter waits; `ready` is NULL then
CREATE INDEX states_gate ON states (broker, waits_for, priority DESC, age) WHERE waits_for IS NOT NULL;
