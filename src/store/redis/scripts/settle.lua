-- Writes the end of a claim, a whole record: over its own running record, or where there is none. 0 if there is another one.
local settled, retention = unpack(ARGV)
local state, nonce = string.byte(settled, 2), string.sub(settled, 57, 72)

if record then
    if record.nonce == nonce and record.state == state then
        -- Done before. Written all the same, as nothing but a write can be waited for until the replicas have it.
        redis.call('PEXPIRE', KEYS[1], left)
        return 1
    elseif record.nonce ~= nonce or record.state ~= RUNNING then
        return 0
    end
    -- A full server refuses a script's SET, but not behind a write that it allows.
    redis.call('PEXPIRE', KEYS[1], retention)
end
local set = redis.pcall('SET', KEYS[1], settled, 'PX', retention)
if set.err then
    return set
end
return 1
