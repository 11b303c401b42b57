// The codecs are constexpr; a few facts about them are settled when the library is built.
#include "numerics/e8m0.h"
#include "numerics/integer.h"
#include "numerics/minifloat.h"

namespace octavo {
static_assert(E4m3::max() == 448.0f && E5m2::max() == 57344.0f && E2m1::max() == 6.0f && F16::max() == 65504.0f);
static_assert(E4m3::encode(464.0f) == 0x7E && E4m3::encode(465.0f, false) == 0x7F && E4m3::encode(-1.7f) == 0xBE);
static_assert(E4m3::decode(0x01) == 0.001953125f && E4m3::decode(0x07) == 0.013671875f);
static_assert(Bf16::encode(1.00390625f) == 0x3F80 && Bf16::encode(1.01171875f) == 0x3F82);
static_assert(E8m0::decode(0x7F) == 1.0f && E8m0::encode_round_up(448.0f / 448.0f) == 0x7F);
}  // namespace octavo
