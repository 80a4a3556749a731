// Vector versions of the casts in cast_scalar.cpp. Highway compiles this file once per instruction set.
#include <cstdint>
#include <cstring>

#include "reshard/tensor/cast/cast_kernels.h"
#include "reshard/tensor/values/float_format.h"
#include "reshard/tensor/values/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "reshard/tensor/cast/cast_simd.cpp"
#include <hwy/foreach_target.h>  // before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace reshard {
namespace HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

CastKernel find_kernel(DType, DType) {
  return nullptr;
}

#else

namespace hn = hwy::HWY_NAMESPACE;

// Every value passes through a lane as the bits of a float32, which can represent all values of the narrower dtypes.
// Rounding is implemented here, because Highway's conversions of narrow floats round differently between versions.
using Lanes32 = hn::ScalableTag<std::int32_t>;
using Vec32 = hn::Vec<Lanes32>;

constexpr FloatFormat kF32 = *float_format(DType::kF32);
constexpr auto kInfinity = static_cast<std::int32_t>(kF32.infinity());
constexpr auto kQuietBit = static_cast<std::int32_t>(kF32.quiet_bit());

template <std::size_t kBytes>
HWY_INLINE Vec32 load(const std::uint8_t* at) {
  const Lanes32 d;
  if constexpr (kBytes == 4) return hn::BitCast(d, hn::LoadU(hn::Repartition<std::uint8_t, Lanes32>(), at));
  if constexpr (kBytes == 2) {
    const hn::Rebind<std::uint16_t, Lanes32> d16;
    return hn::PromoteTo(d, hn::BitCast(d16, hn::LoadU(hn::Repartition<std::uint8_t, decltype(d16)>(), at)));
  }
  if constexpr (kBytes == 1) return hn::PromoteTo(d, hn::LoadU(hn::Rebind<std::uint8_t, Lanes32>(), at));
}

/// Stores the low bytes of each lane.
template <std::size_t kBytes>
HWY_INLINE void store(Vec32 codes, std::uint8_t* at) {
  const auto lanes = hn::BitCast(hn::RebindToUnsigned<Lanes32>(), codes);
  if constexpr (kBytes == 4) {
    const hn::Repartition<std::uint8_t, Lanes32> d8;
    hn::StoreU(hn::BitCast(d8, lanes), d8, at);
  }
  if constexpr (kBytes == 2) {
    const hn::Rebind<std::uint16_t, Lanes32> d16;
    const hn::Repartition<std::uint8_t, decltype(d16)> d8;
    hn::StoreU(hn::BitCast(d8, hn::TruncateTo(d16, lanes)), d8, at);
  }
  if constexpr (kBytes == 1) {
    const hn::Rebind<std::uint8_t, Lanes32> d8;
    hn::StoreU(hn::TruncateTo(d8, lanes), d8, at);
  }
}

/// Whether kTo represents every value of kFrom, so that no rounding is needed.
template <DType kFrom, DType kTo>
constexpr bool kFits = float_format(kFrom)->mantissa_bits <=
                       float_format(kTo)->mantissa_bits&& float_format(kFrom)->exponent_bits <=
                       float_format(kTo)->exponent_bits;

/// Converts the bits of a float of 8 or 16 bits to float32 bits, exactly. Quiets NaNs only if kQuiet.
template <DType kFrom, bool kQuiet>
HWY_INLINE Vec32 widen(Vec32 code) {
  const Lanes32 d;
  constexpr FloatFormat kFormat = *float_format(kFrom);
  constexpr int kShift = kF32.mantissa_bits - kFormat.mantissa_bits;
  constexpr int kSignShift = 32 - static_cast<int>(bits(kFrom));
  constexpr std::int32_t kOneExponent = 1 << kF32.mantissa_bits;
  constexpr std::int32_t kRebias = (kF32.bias - kFormat.bias) * kOneExponent;
  constexpr auto kMaxFinite = static_cast<std::int32_t>(kFormat.max_finite());
  constexpr bool kHasNanToQuiet = kQuiet && kFormat.specials == FloatSpecials::kIeee;
  const Vec32 placed = hn::ShiftLeft<kShift>(code);
  if constexpr (kRebias == 0 && !kHasNanToQuiet) return placed;
  const Vec32 magnitude = hn::And(code, hn::Set(d, static_cast<std::int32_t>(kFormat.sign_mask() - 1)));
  const Vec32 sign = hn::And(hn::ShiftLeft<kSignShift>(code), hn::Set(d, INT32_MIN));
  Vec32 wide = hn::ShiftLeft<kShift>(magnitude);
  if constexpr (kRebias != 0) {
    const Vec32 special = hn::Or(wide, hn::Set(d, kInfinity));
    wide = hn::Add(wide, hn::Set(d, kRebias));
    // Adding one to the exponent of a subnormal adds the leading 1 that it lacks. Subtracting that 1 is exact.
    const hn::RebindToFloat<Lanes32> df;
    const auto with_leading = hn::BitCast(df, hn::Add(wide, hn::Set(d, kOneExponent)));
    const Vec32 subnormal = hn::BitCast(d, hn::Sub(with_leading, hn::BitCast(df, hn::Set(d, kRebias + kOneExponent))));
    wide = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d, (1 << kFormat.mantissa_bits) - 1)), wide, subnormal);
    wide = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d, kMaxFinite)), special, wide);
  }
  if constexpr (kHasNanToQuiet)
    wide = hn::Or(wide, hn::IfThenElseZero(hn::Gt(magnitude, hn::Set(d, kMaxFinite + 1)), hn::Set(d, kQuietBit)));
  return hn::Or(sign, wide);
}

/// Returns the largest finite value of a dtype as float32 bits.
constexpr std::int32_t max_finite_as_f32(const FloatFormat& format) {
  return static_cast<std::int32_t>((format.max_finite() << (kF32.mantissa_bits - format.mantissa_bits)) +
                                   (static_cast<std::uint64_t>(kF32.bias - format.bias) << kF32.mantissa_bits));
}

/// Returns the largest float32 magnitude that rounds to that value; larger magnitudes overflow.
constexpr std::int32_t overflow_limit(const FloatFormat& format) {
  const std::int32_t half_step = 1 << (kF32.mantissa_bits - format.mantissa_bits - 1);
  const bool ties_down = (format.max_finite() & 1) == 0;
  return max_finite_as_f32(format) + half_step - (ties_down ? 0 : 1);
}

/// Rounds float32 magnitudes to the bits of `kTo`. They must not exceed the largest finite value of `kTo`.
template <DType kTo>
HWY_INLINE Vec32 round_magnitude(Vec32 magnitude) {
  const Lanes32 d;
  constexpr FloatFormat kFormat = *float_format(kTo);
  constexpr int kShift = kF32.mantissa_bits - kFormat.mantissa_bits;
  constexpr std::int32_t kRebias = (kF32.bias - kFormat.bias) << kF32.mantissa_bits;
  const Vec32 is_odd = hn::And(hn::ShiftRight<kShift>(magnitude), hn::Set(d, 1));
  const Vec32 half = hn::Set(d, (1 << (kShift - 1)) - 1 - kRebias);
  const Vec32 normal = hn::ShiftRight<kShift>(hn::Add(hn::Add(magnitude, half), is_odd));
  if constexpr (kRebias == 0) return normal;
  // kMagic is a float32 whose last bit has the weight of the target's last subnormal bit, so that adding it rounds to
  // that bit by IEEE 754. The sum is normal. Modes that read denormals as 0 are harmless: such values round to 0
  // anyway.
  const hn::RebindToFloat<Lanes32> df;
  constexpr std::int32_t kUnitExponent = 1 - kFormat.bias - kFormat.mantissa_bits;
  constexpr std::int32_t kMagic = (kUnitExponent + kF32.mantissa_bits + kF32.bias) << kF32.mantissa_bits;
  const auto sum = hn::Add(hn::BitCast(df, magnitude), hn::BitCast(df, hn::Set(d, kMagic)));
  const Vec32 subnormal = hn::Sub(hn::BitCast(d, sum), hn::Set(d, kMagic));
  constexpr std::int32_t kMinNormal = (1 - kFormat.bias + kF32.bias) << kF32.mantissa_bits;
  return hn::IfThenElse(hn::Gt(magnitude, hn::Set(d, kMinNormal - 1)), normal, subnormal);
}

/// Converts float32 bits to the bits of `kTo`. `largest` accumulates the largest magnitudes that may overflow.
template <DType kTo>
HWY_INLINE Vec32 narrow(Vec32 value, Vec32& largest) {
  const Lanes32 d;
  constexpr FloatFormat kFormat = *float_format(kTo);
  constexpr int kShift = kF32.mantissa_bits - kFormat.mantissa_bits;
  constexpr int kSignShift = 32 - static_cast<int>(bits(kTo));
  const Vec32 sign =
      hn::And(hn::ShiftRight<kSignShift>(value), hn::Set(d, static_cast<std::int32_t>(kFormat.sign_mask())));
  const Vec32 magnitude = hn::And(value, hn::Set(d, INT32_MAX));
  const Vec32 code = round_magnitude<kTo>(hn::Min(magnitude, hn::Set(d, max_finite_as_f32(kFormat))));
  const auto is_nan = hn::Gt(magnitude, hn::Set(d, kInfinity));
  if constexpr (kFormat.specials == FloatSpecials::kIeee) {
    constexpr auto kMagnitudeMask = static_cast<std::int32_t>(kFormat.sign_mask() - 1);
    constexpr auto kNarrowQuietBit = static_cast<std::int32_t>(kFormat.quiet_bit());
    const auto is_special = hn::Gt(magnitude, hn::Set(d, kInfinity - 1));
    // An exponent of all ones is still all ones after its top bits are cut off.
    const Vec32 special = hn::Or(hn::And(hn::ShiftRight<kShift>(magnitude), hn::Set(d, kMagnitudeMask)),
                                 hn::IfThenElseZero(is_nan, hn::Set(d, kNarrowQuietBit)));
    largest = hn::Max(largest, hn::IfThenZeroElse(is_special, magnitude));
    return hn::Or(sign, hn::IfThenElse(is_special, special, code));
  } else {
    constexpr auto kNan = static_cast<std::int32_t>(kFormat.max_finite() + 1);
    largest = hn::Max(largest, hn::IfThenZeroElse(is_nan, magnitude));
    return hn::Or(sign, hn::IfThenElse(is_nan, hn::Set(d, kNan), code));
  }
}

/// Casts one vector of elements.
template <DType kFrom, DType kTo>
HWY_INLINE void cast_vector(const std::uint8_t* in, std::uint8_t* out, Vec32& largest) {
  constexpr bool kIsExact = kFits<kFrom, kTo> && float_format(kTo)->exponent_bits == kF32.exponent_bits;
  Vec32 value = load<bits(kFrom) / 8>(in);
  if constexpr (kFrom != DType::kF32) value = widen<kFrom, kIsExact>(value);
  if constexpr (!kIsExact) value = narrow<kTo>(value, largest);
  if constexpr (kIsExact) value = hn::ShiftRight<kF32.mantissa_bits - float_format(kTo)->mantissa_bits>(value);
  store<bits(kTo) / 8>(value, out);
}

template <DType kFrom, DType kTo>
bool cast_all(const std::byte* in_bytes, std::size_t count, std::byte* out_bytes) {
  const Lanes32 d;
  constexpr std::size_t kFromBytes = bits(kFrom) / 8;
  constexpr std::size_t kToBytes = bits(kTo) / 8;
  const auto* in = reinterpret_cast<const std::uint8_t*>(in_bytes);
  auto* out = reinterpret_cast<std::uint8_t*>(out_bytes);
  const std::size_t lanes = hn::Lanes(d);
  Vec32 largest = hn::Zero(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) cast_vector<kFrom, kTo>(in + i * kFromBytes, out + i * kToBytes, largest);
  if (i < count) {
    // The remaining elements use a separate vector, padded with zeros.
    HWY_ALIGN std::uint8_t in_rest[HWY_MAX_BYTES] = {};
    HWY_ALIGN std::uint8_t out_rest[HWY_MAX_BYTES];
    std::memcpy(in_rest, in + i * kFromBytes, (count - i) * kFromBytes);
    cast_vector<kFrom, kTo>(in_rest, out_rest, largest);
    std::memcpy(out + i * kToBytes, out_rest, (count - i) * kToBytes);
  }
  if constexpr (kTo == DType::kF32) return false;
  return !hn::AllFalse(d, hn::Gt(largest, hn::Set(d, overflow_limit(*float_format(kTo)))));
}

template <DType kFrom>
CastKernel find_kernel_to(DType to) {
  if (to == kFrom) return nullptr;
  if (to == DType::kF32) return &cast_all<kFrom, DType::kF32>;
  if (to == DType::kF16) return &cast_all<kFrom, DType::kF16>;
  if (to == DType::kBF16) return &cast_all<kFrom, DType::kBF16>;
  if (to == DType::kF8E4M3) return &cast_all<kFrom, DType::kF8E4M3>;
  if (to == DType::kF8E5M2) return &cast_all<kFrom, DType::kF8E5M2>;
  return nullptr;
}

CastKernel find_kernel(DType from, DType to) {
  if (from == DType::kF32) return find_kernel_to<DType::kF32>(to);
  if (from == DType::kF16) return find_kernel_to<DType::kF16>(to);
  if (from == DType::kBF16) return find_kernel_to<DType::kBF16>(to);
  if (from == DType::kF8E4M3) return find_kernel_to<DType::kF8E4M3>(to);
  if (from == DType::kF8E5M2) return find_kernel_to<DType::kF8E5M2>(to);
  return nullptr;
}

#endif
}  // namespace HWY_NAMESPACE
}  // namespace reshard
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace reshard {

HWY_EXPORT(find_kernel);

CastKernel simd_cast_kernel(DType from, DType to) {
  if (simd_is_scalar()) return nullptr;
  return HWY_DYNAMIC_DISPATCH(find_kernel)(from, to);
}

}  // namespace reshard
#endif
