-- Frees the claim's key. 0 if the record isn't its running one.
local nonce = unpack(ARGV)

local record = head()
if not record then
    return 1
end
local unread = unreadable(record)
if unread then
    return unread
elseif string.sub(record, 57, 72) ~= nonce or string.byte(record, 2) ~= RUNNING then
    return 0
end
return error_of_writing('DEL', KEYS[1]) or 1
