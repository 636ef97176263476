-- Appends to the notes of the claim's record, and leaves its expiry alone. 0 if the record isn't its own, or is completed.
local nonce, note = unpack(ARGV)

local record = head()
if not record then
    return 0
end
local unread = unreadable(record)
if unread then
    return unread
elseif string.sub(record, 57, 72) ~= nonce or string.byte(record, 2) == COMPLETED then
    return 0
end
local refused = error_of_writing('APPEND', KEYS[1], note)
if refused then
    -- A full server refuses a script's APPEND, but not behind a write that it allows: what is done must not be done again for want of room.
    local left = redis.call('PTTL', KEYS[1])
    refused = left > 0 and error_of_writing('PEXPIRE', KEYS[1], left) or error_of_writing('APPEND', KEYS[1], note)
end
return refused or 1
