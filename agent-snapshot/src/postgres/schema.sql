-- Version 1. `{schema}` is replaced by the name of the schema. Runs in one transaction.
--
-- Texts are `text`, not `jsonb`: digests are made from the exact text, and `jsonb` rejects `\u0000`.
-- A delete keeps the row in `agents`: it holds the epoch, and its number is never used again.
CREATE TABLE {schema}.agents (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    agent text COLLATE "C" NOT NULL UNIQUE,
    epoch_floor text NOT NULL DEFAULT '0',
    stamp text,
    state text,
    head text,
    labels text,
    bytes bigint NOT NULL DEFAULT 0,
    changed timestamptz NOT NULL DEFAULT now()
-- Every save replaces the row: with free space in its page no index entry changes.
) WITH (fillfactor = 50);

CREATE TABLE {schema}.messages (
    agent bigint NOT NULL,
    seq bigint NOT NULL,
    json text NOT NULL,
    PRIMARY KEY (agent, seq)
);

CREATE TABLE {schema}.damaged (
    agent text NOT NULL,
    part text NOT NULL,
    contents text,
    kept_at timestamptz NOT NULL DEFAULT now()
);

-- The default compression takes most of the time of a large save. Servers before version 14, or built
-- without lz4, keep it.
DO $compression$ BEGIN
    ALTER TABLE {schema}.agents ALTER COLUMN state SET COMPRESSION lz4;
    ALTER TABLE {schema}.agents ALTER COLUMN head SET COMPRESSION lz4;
    ALTER TABLE {schema}.messages ALTER COLUMN json SET COMPRESSION lz4;
EXCEPTION WHEN syntax_error OR feature_not_supported THEN
    NULL;
END $compression$;

-- For people: the stream of each agent.
CREATE VIEW {schema}.stream AS
SELECT a.agent, m.seq, m.json
FROM {schema}.agents a JOIN {schema}.messages m ON m.agent = a.number;

-- Compare-and-swap of several agents in one transaction, so one commit syncs all of them.
--
-- The caller sorts the agents: two callers lock the rows in the same order and cannot deadlock.
-- Item i writes the next counts[i] of `messages`, numbered from starts[i] on.
CREATE FUNCTION {schema}.save(
    agents text[], expected text[], floors text[], stamps text[], states text[], heads text[],
    label_sets text[], replaces boolean[], starts bigint[], counts integer[], messages text[]
) RETURNS TABLE (done boolean, stored_stamp text, stored_floor text)
LANGUAGE plpgsql AS $body$
DECLARE
    row {schema}.agents%ROWTYPE;
    taken integer := 0;
    added bigint;
BEGIN
    FOR i IN 1 .. cardinality(agents) LOOP
        SELECT * INTO row FROM {schema}.agents a WHERE a.agent = agents[i] FOR UPDATE;
        IF NOT FOUND THEN
            INSERT INTO {schema}.agents (agent) VALUES (agents[i])
            ON CONFLICT (agent) DO NOTHING;
            SELECT * INTO row FROM {schema}.agents a WHERE a.agent = agents[i] FOR UPDATE;
        END IF;
        done := row.stamp IS NOT DISTINCT FROM expected[i] AND row.epoch_floor = floors[i];
        stored_stamp := row.stamp;
        stored_floor := row.epoch_floor;
        IF done THEN
            IF replaces[i] THEN
                DELETE FROM {schema}.messages m WHERE m.agent = row.number;
                row.bytes := 0;
            END IF;
            -- One by one: a slice of the array would copy the messages of the whole batch.
            added := 0;
            FOR j IN 1 .. counts[i] LOOP
                INSERT INTO {schema}.messages (agent, seq, json)
                VALUES (row.number, starts[i] + j - 1, messages[taken + j]);
                added := added + octet_length(messages[taken + j]);
            END LOOP;
            UPDATE {schema}.agents a SET
                stamp = stamps[i], state = states[i], head = coalesce(heads[i], a.head),
                labels = label_sets[i], bytes = row.bytes + added, changed = clock_timestamp()
            WHERE a.number = row.number;
        END IF;
        taken := taken + counts[i];
        RETURN NEXT;
    END LOOP;
END
$body$;

-- Removes an agent except its epoch. `aside` keeps a copy of its parts.
CREATE FUNCTION {schema}.remove(removed text, aside boolean) RETURNS void
LANGUAGE plpgsql AS $body$
DECLARE
    row {schema}.agents%ROWTYPE;
    floor numeric;
BEGIN
    SELECT * INTO row FROM {schema}.agents a WHERE a.agent = removed FOR UPDATE;
    IF NOT FOUND THEN
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
        epoch_floor = floor::text, stamp = NULL, state = NULL, head = NULL, labels = NULL, bytes = 0
    WHERE a.number = row.number;
END
$body$;

-- Deletes the agents that were not saved since a moment. An agent that is being saved is skipped.
CREATE FUNCTION {schema}.expire(before timestamptz) RETURNS SETOF text
LANGUAGE plpgsql AS $body$
DECLARE
    name text;
BEGIN
    FOR name IN
        SELECT a.agent FROM {schema}.agents a
        WHERE a.changed <= before AND a.stamp ~ '^1 \d+ \d+ \d+ ' ORDER BY a.agent
        FOR UPDATE SKIP LOCKED
    LOOP
        PERFORM {schema}.remove(name, false);
        RETURN NEXT name;
    END LOOP;
END
$body$;

-- Removes the oldest messages out of view until `keep` are left.
CREATE FUNCTION {schema}.cap_stream(capped text, keep numeric) RETURNS bigint
LANGUAGE plpgsql AS $body$
DECLARE
    row {schema}.agents%ROWTYPE;
    fields text[];
    new_start numeric;
    removed bigint;
    freed bigint;
BEGIN
    SELECT * INTO row FROM {schema}.agents a WHERE a.agent = capped FOR UPDATE;
    IF row.stamp IS NULL OR row.stamp !~ '^1( \d+){8} ' THEN
        RETURN 0;
    END IF;
    -- 5: the first number in the stream, 6: in view, 7: the number after the last message.
    fields := string_to_array(row.stamp, ' ');
    new_start := least(fields[6]::numeric, fields[7]::numeric - keep);
    IF new_start <= fields[5]::numeric THEN
        RETURN 0;
    END IF;
    fields[5] := new_start::text;
    WITH gone AS (
        DELETE FROM {schema}.messages m WHERE m.agent = row.number AND m.seq < new_start::bigint
        RETURNING octet_length(m.json) AS bytes
    )
    SELECT count(*), coalesce(sum(bytes), 0) INTO removed, freed FROM gone;
    UPDATE {schema}.agents a SET
        stamp = array_to_string(fields, ' '), bytes = row.bytes - freed
    WHERE a.number = row.number;
    RETURN removed;
END
$body$;
