-- Writes the end of a claim, a whole record: over its own running record, or where there is none. 0 if there is another one.
local settled, retention = unpack(ARGV)

local record, left = head()
if record then
    local unread = unreadable(record)
    if unread then
        return unread
    elseif nonce_of(record) ~= nonce_of(settled) then
        return 0
    elseif state_of(record) == state_of(settled) then
        -- Done before. Written all the same: nothing but a write can be waited for until the replicas have it. What somebody has
        -- freed of its expiry gets one again.
        return failed('PEXPIRE', KEYS[1], left > 0 and left or retention) or 1
    elseif state_of(record) ~= RUNNING then
        return 0
    end
    if state_of(settled) == ABANDONED then
        -- What it has done is for the run that takes over.
        settled = settled .. redis.call('GETRANGE', KEYS[1], 72, -1)
    end
    -- A full server refuses a script's SET, but not behind a write that it allows.
    local refused = failed('PEXPIRE', KEYS[1], retention)
    if refused then
        return refused
    end
end
return failed('SET', KEYS[1], settled, 'PX', retention) or 1
