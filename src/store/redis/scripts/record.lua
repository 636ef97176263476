-- Put before each of the other scripts. A record is one string; see `record.rs` for its bytes.
-- Its key lives for lease and retention while the run goes on, so that what is left of the lease is what it has left to
-- live beyond its retention: a record whose lease is over stays, and tells that a run ended without an outcome.
local FORMAT = 1
local RUNNING, COMPLETED, ABANDONED = 0, 1, 2

local function state_of(record)
    return string.byte(record, 2)
end

-- Attempt, fence and retention.
local function numbers_of(record)
    return select(3, struct.unpack('>BBI4I8I8', record))
end

local function fingerprint_of(record)
    return string.sub(record, 23, 56)
end

local function nonce_of(record)
    return string.sub(record, 57, 72)
end

-- The head of the record, and what it has left to live; nothing if there is none. At the very instant of its expiry a key is still
-- there, with nothing left.
local function head()
    local head = redis.call('GETRANGE', KEYS[1], 0, 71)
    local left = redis.call('PTTL', KEYS[1])
    if head ~= '' and left ~= 0 then
        return head, left
    end
end

-- The record without the notes of its run, which only a step asks for.
local function without_notes(record)
    return state_of(record) == COMPLETED and record or string.sub(record, 1, 72)
end

-- An error, to be returned, if that is no record that this release can read.
local function unreadable(record)
    local format = string.byte(record)
    if format ~= FORMAT or #record < 72 then
        return redis.error_reply('RECORDFORMAT a record has format ' .. format .. ', this release reads ' .. FORMAT)
    end
end

-- Writes. Returns nothing if that is done, and otherwise the error under its own code: Redis before 7.0 puts it into the text.
local function failed(...)
    local answer = redis.pcall(...)
    if type(answer) == 'table' and answer.err then
        return redis.error_reply(string.match(answer.err, '^@user_script: %d+: %-(.*)') or answer.err)
    end
end

