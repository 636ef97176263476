-- Counts the claim's lease anew. 0 if the record isn't its running one.
local nonce, lease = unpack(ARGV)

local record = head()
if not record then
    return 0
end
local unread = unreadable(record)
if unread then
    return unread
elseif string.sub(record, 57, 72) ~= nonce or string.byte(record, 2) ~= RUNNING then
    return 0
end
return error_of_writing('PEXPIRE', KEYS[1], lease + struct.unpack('>I8', record, 15)) or 1
