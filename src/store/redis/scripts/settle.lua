-- Writes the end of a claim, a whole record: over its own running record, or where there is none. 0 if there is another one.
local settled, retention = unpack(ARGV)
local state, nonce = string.byte(settled, 2), string.sub(settled, 57, 72)

if record then
    if record.nonce == nonce and record.state == state then
        -- Done before. Written all the same, as nothing but a write can be waited for until the replicas have it.
        return failed('PEXPIRE', KEYS[1], left) or 1
    elseif record.nonce ~= nonce or record.state ~= RUNNING then
        return 0
    end
    -- A full server refuses a script's SET, but not behind a write that it allows.
    local refused = failed('PEXPIRE', KEYS[1], retention)
    if refused then
        return refused
    end
end
return failed('SET', KEYS[1], settled, 'PX', retention) or 1
