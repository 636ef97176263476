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
return failed('APPEND', KEYS[1], note) or 1
