#!/usr/bin/env python3
"""Facts about the number formats, computed in exact rational arithmetic, without any of the code they test.

    python number_vectors.py > ../data/numerics/vectors.txt

Lines (values as the bits of an FP32 number; "nan" for any NaN):
  decode FORMAT CODE VALUE                    every code of the 8- and 4-bit formats; the corners of bf16 and f16
  encode FORMAT VALUE NON-SATURATING SATURATING   to nearest, ties to even: every midpoint between neighbours and the FP32
                                              numbers beside it, the overflow boundary, and the values people quote
  round_up e8m0 VALUE CODE                    the smallest power of two that is not below
"""
import struct
from fractions import Fraction

# exponent bits, mantissa bits, bias, specials: "fn" = NaN only in the last code, "ieee" = infinities and NaN, "none"
FORMATS = {"e4m3": (4, 3, 7, "fn"), "e5m2": (5, 2, 15, "ieee"), "e2m1": (2, 1, 1, "none"),
           "bf16": (8, 7, 127, "ieee"), "f16": (5, 10, 15, "ieee")}
QUOTED = ["0", "-0", "0.0009765625", "0.00097656251", "0.0029296875", "0.0048828125", "0.0146484375", "0.9375", "1.0625", "1.0626",
          "1.1875", "1.3", "-1.7", "17", "18", "19", "247", "248", "256", "300", "304", "432", "448", "456", "464", "464.01", "465",
          "480", "1000", "-1000", "1e4", "61439.9", "61440", "65504", "65519.99", "65520", "3.3895e38", "3.4e38", "1e-8", "0.1"]


def f32_bits(value, sign=0):
    """Bits of the FP32 number nearest to a rational."""
    return struct.unpack("<I", struct.pack("<f", float(value)))[0] | sign << 31


def f32_value(bits):
    return Fraction(struct.unpack("<f", struct.pack("<I", bits))[0])


def decode(code, fmt):
    e, m, bias, specials = FORMATS[fmt]
    exponent, mantissa = code >> m & ((1 << e) - 1), code & ((1 << m) - 1)
    last = exponent == (1 << e) - 1
    if specials == "fn" and last and mantissa == (1 << m) - 1:
        return "nan"
    if specials == "ieee" and last:
        return "nan" if mantissa else "inf"
    if exponent == 0:
        return Fraction(mantissa, 1 << m) * Fraction(2) ** (1 - bias)
    return (1 + Fraction(mantissa, 1 << m)) * Fraction(2) ** (exponent - bias)


def finite_codes(fmt):
    e, m, _, _ = FORMATS[fmt]
    codes = []
    for code in range(1 << (e + m)):
        if decode(code, fmt) in ("nan", "inf"):
            break
        codes.append(code)
    return codes


def encode(magnitude, sign, fmt):
    """(non-saturating, saturating) codes."""
    e, m, _, specials = FORMATS[fmt]
    codes = finite_codes(fmt)
    top = codes[-1]
    step = decode(top, fmt) - decode(top - 1, fmt)
    beyond = decode(top, fmt) + step  # where the next code would be, if there were one
    low, high = 0, top + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if decode(middle, fmt) <= magnitude else (low, middle)
    value = decode(low, fmt)
    above = beyond if low == top else decode(low + 1, fmt)
    up = magnitude - value > above - magnitude or (magnitude - value == above - magnitude and low % 2 == 1)
    code = low + 1 if up or magnitude >= beyond else low
    sign_bit = sign << (e + m)
    if code <= top:
        return sign_bit | code, sign_bit | code
    overflow = {"fn": (1 << (e + m)) - 1, "ieee": top + 1, "none": top}[specials]
    return sign_bit | overflow, sign_bit | top


def main():
    for fmt in ("e4m3", "e5m2", "e2m1", "bf16", "f16"):
        e, m, _, _ = FORMATS[fmt]
        half = 1 << (e + m)
        small = e + m < 8
        codes = range(half) if small else [0, 1, 2, half // 3, finite_codes(fmt)[-1] - 1, finite_codes(fmt)[-1],
                                           (1 << m) - 1, 1 << m, (1 << m) + 1, half - 1, ((1 << e) - 1) << m]
        for sign in (0, 1):
            for code in codes:
                value = decode(code, fmt)
                text = value if value == "nan" else f"{0x7F800000 | sign << 31:08x}" if value == "inf" else f"{f32_bits(value, sign):08x}"
                print(f"decode {fmt} {code | sign * half:0{(e + m + 4) // 4}x} {text}")
        inputs = set()
        for text in QUOTED:
            inputs.add(f32_bits(Fraction(text.lstrip("-")), int(text.startswith("-"))))
        pairs = finite_codes(fmt) if small else [0, 1, 5, 1 << m, 3 << m, finite_codes(fmt)[-2]]
        for code in pairs:
            value = decode(code, fmt)
            above = decode(code + 1, fmt)
            if above in ("nan", "inf") or code == half - 1:
                above = value + (value - decode(code - 1, fmt))
            middle = f32_bits((value + above) / 2)
            if f32_value(middle) == (value + above) / 2:
                inputs.update(bits | sign << 31 for bits in (middle - 1, middle, middle + 1) for sign in (0, 1) if bits < 0x7F800000)
            inputs.add(f32_bits(value))
        for bits in sorted(inputs):
            plain, saturated = encode(f32_value(bits & 0x7FFFFFFF), bits >> 31, fmt)
            print(f"encode {fmt} {bits:08x} {plain:x} {saturated:x}")
    for exponent in (-149, -130, -127, -126, -22, -9, -8, 0, 1, 7, 126, 127):
        value = f32_bits(Fraction(2) ** exponent)
        for bits in (value - 1, value, value + 1):
            if bits == 0:
                continue
            number, power = f32_value(bits), -127
            while Fraction(2) ** power < number and power < 127:
                power += 1
            print(f"round_up e8m0 {bits:08x} {power + 127:02x}")


if __name__ == "__main__":
    main()
