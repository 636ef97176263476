-- What the record has left to live, and the record; nothing if there is none. A script, so that a replica is never asked.
if not record then
    return false
end
return {left, redis.call('GET', KEYS[1])}
