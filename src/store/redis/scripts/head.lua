-- The head of the record; nothing if there is none. At the very instant of its expiry a key is still there, with nothing left.
local function head()
    local head = redis.call('GETRANGE', KEYS[1], 0, 71)
    if head ~= '' and redis.call('PTTL', KEYS[1]) ~= 0 then
        return head
    end
end

