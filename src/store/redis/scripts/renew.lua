-- Counts the claim's lease anew. 0 if the record isn't its running one.
local nonce, lease = unpack(ARGV)

if not record or record.nonce ~= nonce or record.state ~= RUNNING then
    return 0
end
redis.call('PEXPIRE', KEYS[1], lease + record.retention)
return 1
