-- Claims the key, by a record that lacks its fence. The answer is the fence of a first claim; or what the record has left to live, and
-- the record, which is the caller's claim if it runs under its nonce.
local claim, life, run_again = ARGV[1], ARGV[2], ARGV[3]

local record = redis.call('GET', KEYS[1])
local left = record and redis.call('PTTL', KEYS[1])
local attempt, fence, notes
-- At the very instant of its expiry a key is still there, with nothing left.
if record and left ~= 0 then
    local unread = unreadable(record)
    if unread then
        return unread
    end
    local state = string.byte(record, 2)
    if state == COMPLETED then
        return {left, record}
    end
    -- Without the notes of its run, which only a step asks for.
    local head = string.sub(record, 1, 72)
    if string.sub(record, 23, 56) ~= string.sub(claim, 23, 56) then
        return {left, head}
    end
    local kept
    attempt, fence, kept = struct.unpack('>I4I8I8', record, 3)
    if state == RUNNING and string.sub(record, 57, 72) == string.sub(claim, 57, 72) then
        -- The same call again, or sent again by the driver.
        left = life - struct.unpack('>I8', claim, 15) + kept
        return error_of_writing('PEXPIRE', KEYS[1], left) or {left, head}
    elseif (state == RUNNING and left > kept) or not run_again then
        return {left, head}
    end
    notes = string.sub(record, 73)
end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if not attempt then
    claim = string.sub(claim, 1, 6) .. struct.pack('>I8', now) .. string.sub(claim, 15)
    return error_of_writing('SET', KEYS[1], claim, 'PX', life) or now
end
claim = string.sub(claim, 1, 2) .. struct.pack('>I4I8', attempt + 1, math.max(fence + 1, now)) .. string.sub(claim, 15)
return error_of_writing('SET', KEYS[1], claim .. notes, 'PX', life) or {tonumber(life), claim}
