-- The notes of the claim's record; nothing if that isn't its own, or is completed.
local nonce = unpack(ARGV)

local record = head()
if not record then
    return false
end
local unread = unreadable(record)
if unread then
    return unread
elseif string.sub(record, 57, 72) ~= nonce or string.byte(record, 2) == COMPLETED then
    return false
end
return redis.call('GETRANGE', KEYS[1], 72, -1)
