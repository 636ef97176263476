-- Claims the key, or tells what it has: whether it was claimed, what the record has left to live, and the record.
local fingerprint, nonce, lease, retention, run_again = unpack(ARGV)

local attempt, fence, notes = 0, 0, ''
local record = redis.call('GET', KEYS[1])
local left = record and redis.call('PTTL', KEYS[1])
-- At the very instant of its expiry a key is still there, with nothing left.
if record and left ~= 0 then
    local unread = unreadable(record)
    if unread then
        return unread
    end
    local state = state_of(record)
    if state == COMPLETED or fingerprint_of(record) ~= fingerprint then
        return {0, left, without_notes(record)}
    end
    local last_attempt, last_fence, kept = numbers_of(record)
    if state == RUNNING and nonce_of(record) == nonce then
        -- The same call again, or sent again by the driver.
        return failed('PEXPIRE', KEYS[1], lease + kept) or {1, lease + kept, without_notes(record)}
    elseif (state == RUNNING and left > kept) or run_again ~= '1' then
        return {0, left, without_notes(record)}
    end
    attempt, fence, notes = last_attempt, last_fence, string.sub(record, 73)
end

local time = redis.call('TIME')
fence = math.max(fence + 1, time[1] * 1000000 + time[2])
local claimed = struct.pack('>BBI4I8I8', FORMAT, RUNNING, attempt + 1, fence, retention) .. fingerprint .. nonce
return failed('SET', KEYS[1], claimed .. notes, 'PX', lease + retention) or {1, lease + retention, claimed}
