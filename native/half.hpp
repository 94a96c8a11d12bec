// float16 to float32 and back, one at a time.
#pragma once

#include "level.hpp"

namespace treefold::TREEFOLD_LEVEL {

template <class To, class From>
inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "reinterpreting bits");
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

inline float half_to_float(std::uint16_t h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000u) << 16;
  const std::uint32_t magnitude = h & 0x7fffu;
  if (magnitude >= 0x7c00u) return bits_as<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude >= 0x400u) return bits_as<float>(sign | ((magnitude << 13) + 0x38000000u));
  // Below the normals: the magnitude times 2^-24, exactly.
  const float small = static_cast<float>(magnitude) * 5.9604644775390625e-8f;
  return bits_as<float>(bits_as<std::uint32_t>(small) | sign);
}

inline std::uint16_t float_to_half(float f) {
  const std::uint32_t bits = bits_as<std::uint32_t>(f);
  const std::uint16_t sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // 65520 and more
  if (magnitude >= 0x38800000u) {
    // Half of the last bit kept, less one, plus that bit: ties go to even. A carry into the exponent is the right
    // result.
    const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
  }
  // Below the normals: adding 0.5 puts the unit of 2^-24 at the end of the mantissa, so the addition rounds.
  const float shifted = bits_as<float>(magnitude) + 0.5f;
  return static_cast<std::uint16_t>(sign | (bits_as<std::uint32_t>(shifted) - 0x3f000000u));
}

}  // namespace treefold::TREEFOLD_LEVEL
