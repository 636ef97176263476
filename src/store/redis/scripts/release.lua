-- Frees the claim's key. 0 if the record isn't its running one.
local nonce = unpack(ARGV)

if not record then
    return 1
elseif record.nonce ~= nonce or record.state ~= RUNNING then
    return 0
end
return failed('DEL', KEYS[1]) or 1
