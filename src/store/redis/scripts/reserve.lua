-- Claims the key, or tells what it has: whether it was claimed, what the record has left to live, and the record.
local fingerprint, nonce, lease, retention, run_again = unpack(ARGV)

local attempt, fence
if not record then
    attempt, fence = 1, 0
elseif record.fingerprint ~= fingerprint or record.state == COMPLETED then
    return {0, left, redis.call('GET', KEYS[1])}
elseif record.state == RUNNING and record.nonce == nonce then
    -- The same call again, or sent again by the driver.
    local lives = lease + record.retention
    return failed('PEXPIRE', KEYS[1], lives) or {1, lives, head}
elseif (record.state == RUNNING and record.lease_left > 0) or run_again ~= '1' then
    return {0, left, head}
else
    attempt, fence = record.attempt + 1, record.fence
end

local time = redis.call('TIME')
fence = math.max(fence + 1, time[1] * 1000000 + time[2])
local claimed = struct.pack('>BBI4I8I8', FORMAT, RUNNING, attempt, fence, retention) .. fingerprint .. nonce
local lives = lease + retention
return failed('SET', KEYS[1], claimed, 'PX', lives) or {1, lives, claimed}
