-- What the record has left to live, and the record; nothing if there is none. A script, so that a replica is never asked.
local record = redis.call('GET', KEYS[1])
local left = record and redis.call('PTTL', KEYS[1])
-- At the very instant of its expiry a key is still there, with nothing left.
if not record or left == 0 then
    return false
end
return unreadable(record) or {left, without_notes(record)}
