-- The notes of the claim's record; nothing if that isn't its own, or is completed.
local nonce = unpack(ARGV)

local record = head()
if not record then
    return false
end
local unread = unreadable(record)
if unread then
    return unread
elseif nonce_of(record) ~= nonce or state_of(record) == COMPLETED then
    return false
end
return redis.call('GETRANGE', KEYS[1], 72, -1)
