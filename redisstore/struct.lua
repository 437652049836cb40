-- A Redis has both; rawget by itself takes 2 % of a check.
local struct = redis.breakpoint and struct or rawget(_G, 'struct')
if not struct then -- miniredis: the same bytes for '<', 'd' and 'c0' by hand
  local function bytes(n)
    if n == 0 then return string.rep('\0', 8) end
    local mantissa, exponent = math.frexp(math.abs(n))
    mantissa, exponent = (mantissa * 2 - 1) * 4503599627370496, exponent + 1022
    local list = {}
    for i = 1, 6 do
      list[i] = mantissa % 256
      mantissa = math.floor(mantissa / 256)
    end
    list[7] = exponent % 16 * 16 + mantissa
    list[8] = math.floor(exponent / 16) + (n < 0 and 128 or 0)
    return string.char(unpack(list))
  end
  local function number(text, from)
    local list = {string.byte(text, from, from + 7)}
    local exponent = list[8] % 128 * 16 + math.floor(list[7] / 16)
    if exponent == 0 then return 0 end
    local mantissa = list[7] % 16
    for i = 6, 1, -1 do mantissa = mantissa * 256 + list[i] end
    local n = math.ldexp(1 + mantissa / 4503599627370496, exponent - 1023)
    return list[8] < 128 and n or -n
  end
  struct = {}
  function struct.pack(format, ...)
    local values, list = {...}, {}
    for kind in string.gmatch(format, '[dc]') do
      local value = values[#list + 1]
      list[#list + 1] = kind == 'c' and value or bytes(value)
    end
    return table.concat(list)
  end
  function struct.unpack(format, text, from)
    local list = {}
    for i = 0, #format - 2 do list[i + 1] = number(text, (from or 1) + 8 * i) end
    return unpack(list)
  end
end
