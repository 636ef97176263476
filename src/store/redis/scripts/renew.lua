-- Counts the claim's lease anew. 0 if the record isn't its running one.
local nonce, lease = unpack(ARGV)

local record = head()
if not record then
    return 0
end
local unread = unreadable(record)
if unread then
    return unread
elseif nonce_of(record) ~= nonce or state_of(record) ~= RUNNING then
    return 0
end
local _, _, retention = numbers_of(record)
return failed('PEXPIRE', KEYS[1], lease + retention) or 1
