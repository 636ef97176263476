-- Put before each script that reads a record. A record is one string; see `record.rs` for its bytes.
-- Its key lives for lease and retention while the run goes on, so that what is left of the lease is what it has left to
-- live beyond its retention: a record whose lease is over stays, and tells that a run ended without an outcome.
-- A function is made anew at each call, which costs more than most of what a script does: there are few, and bytes are looked at in place.
local FORMAT = 1
local RUNNING, COMPLETED, ABANDONED = 0, 1, 2

-- An error, to be returned, if that is no record that this release can read.
local function unreadable(record)
    local format = string.byte(record)
    if format ~= FORMAT or #record < 72 then
        return redis.error_reply('RECORDFORMAT a record has format ' .. format .. ', this release reads ' .. FORMAT)
    end
end

-- Writes. Returns nothing if that is done, and otherwise the error under its own code: Redis before 7.0 puts it into the text.
local function error_of_writing(...)
    local answer = redis.pcall(...)
    if type(answer) == 'table' and answer.err then
        return redis.error_reply(string.match(answer.err, '^@user_script: %d+: %-(.*)') or answer.err)
    end
end

