-- Put before each of the other scripts. A record is one string; see `record.rs` for its bytes.
-- Its key lives for lease and retention while the run goes on, so that what is left of the lease is what it has left to
-- live beyond its retention: a record whose lease is over stays, and tells that a run ended without an outcome.
local FORMAT = 1
local RUNNING, COMPLETED, ABANDONED = 0, 1, 2

local record
local head = redis.call('GETRANGE', KEYS[1], 0, 71)
local left = redis.call('PTTL', KEYS[1])
-- At the very instant of its expiry a key is still there, with nothing left.
if #head > 0 and left ~= 0 then
    local format = string.byte(head)
    if format ~= FORMAT or #head < 72 then
        return redis.error_reply('RECORDFORMAT a record has format ' .. format .. ', this release reads ' .. FORMAT)
    end
    local _, state, attempt, fence, retention = struct.unpack('>BBI4I8I8', head)
    record = {
        state = state,
        attempt = attempt,
        fence = fence,
        retention = retention,
        fingerprint = string.sub(head, 23, 56),
        nonce = string.sub(head, 57, 72),
        lease_left = left - retention,
    }
end

-- Writes. Returns nothing if that is done, and otherwise the error under its own code: Redis before 7.0 puts it into the text.
local function failed(...)
    local answer = redis.pcall(...)
    if type(answer) == 'table' and answer.err then
        return redis.error_reply(string.match(answer.err, '^@user_script: %d+: %-(.*)') or answer.err)
    end
end
