-- Letters that are due but wait for a condition leave `letters_ready`, so that no claim walks over them.

ALTER TABLE letters ADD COLUMN waits_for TEXT;  -- the gate at which a pending letter waits; `ready` is NULL then
CREATE INDEX letters_gate ON letters (broker, waits_for, priority DESC) WHERE waits_for IS NOT NULL;
