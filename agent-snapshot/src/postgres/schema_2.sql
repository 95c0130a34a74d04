-- Version 2: a delete that is sent again spares an agent that was created in between.
--
-- The incarnation of an agent is the number of its deletes.
ALTER TABLE {schema}.agents ADD COLUMN incarnation bigint NOT NULL DEFAULT 0;

DROP FUNCTION {schema}.remove(text, boolean);

-- Removes an agent except its epoch. `aside` keeps a copy of its parts. If `seen` is not null, another
-- incarnation is kept.
CREATE FUNCTION {schema}.remove(removed text, aside boolean, seen bigint) RETURNS void
LANGUAGE plpgsql AS $body$
DECLARE
    row {schema}.agents%ROWTYPE;
    floor numeric;
BEGIN
    SELECT * INTO row FROM {schema}.agents a WHERE a.agent = removed FOR UPDATE;
    IF NOT FOUND OR row.incarnation <> seen THEN
        RETURN;
    END IF;
    IF aside THEN
        INSERT INTO {schema}.damaged (agent, part, contents)
        VALUES (removed, 'stamp', row.stamp), (removed, 'state', row.state),
            (removed, 'head', row.head);
        INSERT INTO {schema}.damaged (agent, part, contents)
        SELECT removed, 'message ' || m.seq, m.json FROM {schema}.messages m
        WHERE m.agent = row.number;
    END IF;
    floor := row.epoch_floor::numeric;
    IF row.stamp ~ '^1 \d+ \d+ \d+ ' THEN
        floor := greatest(floor, split_part(row.stamp, ' ', 4)::numeric);
    END IF;
    DELETE FROM {schema}.messages m WHERE m.agent = row.number;
    UPDATE {schema}.agents a SET
        epoch_floor = floor::text, stamp = NULL, state = NULL, head = NULL, labels = NULL, bytes = 0,
        incarnation = row.incarnation + 1
    WHERE a.number = row.number;
END
$body$;

-- Deletes the agents that were not saved since a moment. An agent that is being saved is skipped.
CREATE OR REPLACE FUNCTION {schema}.expire(before timestamptz) RETURNS SETOF text
LANGUAGE plpgsql AS $body$
DECLARE
    name text;
BEGIN
    FOR name IN
        SELECT a.agent FROM {schema}.agents a
        WHERE a.changed <= before AND a.stamp ~ '^1 \d+ \d+ \d+ ' ORDER BY a.agent
        FOR UPDATE SKIP LOCKED
    LOOP
        PERFORM {schema}.remove(name, false, NULL);
        RETURN NEXT name;
    END LOOP;
END
$body$;
