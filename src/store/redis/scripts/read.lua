-- What the record has left to live, and the record; nothing if there is none. A script, so that a replica is never asked.
local record = redis.call('GET', KEYS[1])
local left = record and redis.call('PTTL', KEYS[1])
-- At the very instant of its expiry a key is still there, with nothing left.
if not record or left == 0 then
    return false
end
local unread = unreadable(record)
if unread then
    return unread
end
-- Without the notes of its run, which only a step asks for.
return {left, string.byte(record, 2) == COMPLETED and record or string.sub(record, 1, 72)}
