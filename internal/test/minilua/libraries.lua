-- As much of the library struct as the scripts of package redisstore use.
do
  local function bytes(n, size)
    local text = ''
    for _ = 1, size do
      text, n = text .. string.char(n % 256), math.floor(n / 256)
    end
    return text
  end
  local function number(text, from, size)
    local n = 0
    for i = from + size - 1, from, -1 do n = n * 256 + string.byte(text, i) end
    return n
  end
  local struct = {}
  function struct.pack(format, ...)
    local list = {}
    for kind, size in string.gmatch(format, '([dcI])(%d*)') do
      local value = select(#list + 1, ...)
      if kind == 'I' then
        value = bytes(value, size + 0)
      elseif kind == 'd' then
        local mantissa, exponent = math.frexp(math.abs(value))
        if value == 0 then mantissa, exponent = 0.5, -1022 end
        mantissa = (mantissa * 2 - 1) * 2 ^ 52
        value = bytes(mantissa, 6) .. bytes(math.floor(mantissa / 2 ^ 48) + (exponent + 1022) * 16 + (value < 0 and 2 ^ 15 or 0), 2)
      end
      list[#list + 1] = value
    end
    return table.concat(list)
  end
  function struct.unpack(format, text, at)
    local list = {}
    at = at or 1
    for kind, size in string.gmatch(format, '([dI])(%d*)') do
      if kind == 'd' then size = 8 end
      local n = number(text, at, size)
      if kind == 'd' then
        local high = number(text, at + 6, 2)
        n = (1 + (high % 16 * 2 ^ 48 + number(text, at, 6)) / 2 ^ 52) * 2 ^ (math.floor(high / 16) % 2048 - 1023)
        if high % 2 ^ 15 < 16 then n = 0 elseif high >= 2 ^ 15 then n = -n end
      end
      list[#list + 1], at = n, at + size
    end
    return unpack(list)
  end
  rawset(_G, 'struct', struct)
end
