-- Removes whatever has the name. 1 if it was there; at the very instant of its expiry it is not.
local left = redis.call('PTTL', KEYS[1])
local removed = redis.call('DEL', KEYS[1])
return left == 0 and 0 or removed
