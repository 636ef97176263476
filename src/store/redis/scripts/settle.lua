-- Writes the end of a claim, a whole record: over its own running record, or where there is none. 0 if there is another one.
local settled, retention = ARGV[1], ARGV[2]

local head = redis.call('GETRANGE', KEYS[1], 0, 71)
local own = string.sub(head, 57, 72) == string.sub(settled, 57, 72)
local format, state = string.byte(head, 1, 2)
if own and format == FORMAT and state == RUNNING then
    if string.byte(settled, 2) == ABANDONED then
        -- What it has done is for the run that takes over.
        settled = settled .. redis.call('GETRANGE', KEYS[1], 72, -1)
    end
elseif head ~= '' then
    local left = redis.call('PTTL', KEYS[1])
    -- At the very instant of its expiry a key is still there, with nothing left.
    if left ~= 0 then
        local unread = unreadable(head)
        if unread then
            return unread
        elseif not own or state ~= string.byte(settled, 2) then
            return 0
        end
        -- Done before. Written all the same: nothing but a write can be waited for until the replicas have it. What somebody has
        -- freed of its expiry gets one again.
        return error_of_writing('PEXPIRE', KEYS[1], left > 0 and left or retention) or 1
    end
end
local refused = error_of_writing('SET', KEYS[1], settled, 'PX', retention)
if refused and own then
    -- A full server refuses a script's SET, but not behind a write that it allows.
    refused = error_of_writing('PEXPIRE', KEYS[1], retention) or error_of_writing('SET', KEYS[1], settled, 'PX', retention)
end
return refused or 1
