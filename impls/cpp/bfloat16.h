// Numbers in bfloat16: the upper half of a float32.

#pragma once

#include <cstdint>
#include <cstring>

namespace vocabench {

struct Bfloat16 {
    uint16_t bits;
};

static void widen(const Bfloat16 *from, int64_t count, float *to) {
    for (int64_t index = 0; index < count; ++index) {
        const uint32_t bits = uint32_t{from[index].bits} << 16;
        std::memcpy(to + index, &bits, sizeof bits);
    }
}

// Rounds to the nearest number, halves to even. NaN stays NaN.
static void narrow(const float *from, int64_t count, Bfloat16 *to) {
    for (int64_t index = 0; index < count; ++index) {
        uint32_t bits;
        std::memcpy(&bits, from + index, sizeof bits);
        const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
        bits = is_nan ? bits | 0x400000u : bits + 0x7fffu + (bits >> 16 & 1);
        to[index].bits = static_cast<uint16_t>(bits >> 16);
    }
}

}  // namespace vocabench
