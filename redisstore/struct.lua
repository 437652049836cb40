-- A Redis has both; rawget by itself takes 2 % of a check.
local struct = redis.breakpoint and struct or rawget(_G, 'struct')
if not struct then -- miniredis: the same bytes for '<', 'd', 'I' and 'c0' by hand
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
  local function integer(n, size)
    local list = {}
    for i = 1, size do
      list[i] = n % 256
      n = math.floor(n / 256)
    end
    return string.char(unpack(list))
  end
  struct = {}
  function struct.pack(format, ...)
    local values, list = {...}, {}
    for kind, size in string.gmatch(format, '([dcI])(%d*)') do
      local value = values[#list + 1]
      list[#list + 1] = kind == 'c' and value or kind == 'd' and bytes(value) or integer(value, size + 0)
    end
    return table.concat(list)
  end
  function struct.unpack(format, text, from)
    local list, at = {}, from or 1
    for kind, size in string.gmatch(format, '([dI])(%d*)') do
      local n = 0
      if kind == 'd' then
        n, size = number(text, at), 8
      else
        local bytes = {string.byte(text, at, at + size - 1)}
        for i = #bytes, 1, -1 do n = n * 256 + bytes[i] end
      end
      list[#list + 1], at = n, at + size
    end
    return unpack(list)
  end
end
