-- Counts the claim's lease anew. 0 if the record isn't its running one.
local nonce, lease = unpack(ARGV)

if not record or record.nonce ~= nonce or record.state ~= RUNNING then
    return 0
end
return failed('PEXPIRE', KEYS[1], lease + record.retention) or 1
