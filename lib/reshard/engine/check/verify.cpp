#include "reshard/engine/check/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <span>

#include "reshard/engine/ranks/read_together.h"
#include "reshard/tensor/cast/cast.h"
#include "reshard/tensor/cast/format_element.h"

namespace reshard {
namespace {

/// Findings on one tensor so far. Blocks come in any order.
struct Found {
  std::uint64_t differing = 0;
  std::uint64_t first_elem = UINT64_MAX;
  std::string a, b;
  double max_abs = 0;

  static auto fields(auto& self) { return std::tie(self.differing, self.first_elem, self.a, self.b, self.max_abs); }
};

Dims index_of(std::uint64_t elem, const Dims& shape) {
  Dims index(shape.size());
  for (std::size_t d = shape.size(); d-- > 0; elem /= shape[d]) index[d] = elem % shape[d];
  return index;
}

std::string form(const LogicalTensor& tensor) {
  return fmt::format("{} {}", name(tensor.dtype), to_string(tensor.shape));
}

/// Compares tensors of two checkpoints.
class Comparison {
 public:
  explicit Comparison(const VerifyOptions& how) : how_(how) {}

  bool can_compare(const LogicalTensor& a, const LogicalTensor& b) const {
    if (a.shape != b.shape || a.dtype == b.dtype) return a.shape == b.shape;
    if (how_.tolerance) return reshard::can_compare(a.dtype, b.dtype);
    return a.model_dtype == b.dtype || b.model_dtype == a.dtype;
  }

  /// compare_elements for parts of `a` and `b`. Values whose declared dtype is the other's are cast to it.
  DifferenceSummary compare(const LogicalTensor& a, std::span<const std::byte> a_bytes, const LogicalTensor& b,
                            std::span<const std::byte> b_bytes) const {
    if (a.dtype == b.dtype || how_.tolerance)
      return compare_elements(a.dtype, a_bytes, b.dtype, b_bytes, how_.tolerance, 1);
    return compare_cast(a.dtype, a_bytes, b.dtype, b_bytes, a.model_dtype == b.dtype ? b.dtype : a.dtype);
  }

 private:
  static DifferenceSummary compare_cast(DType a, std::span<const std::byte> a_bytes, DType b,
                                        std::span<const std::byte> b_bytes, DType to);

  const VerifyOptions& how_;
};

DifferenceSummary Comparison::compare_cast(DType a, std::span<const std::byte> a_bytes, DType b,
                                           std::span<const std::byte> b_bytes, DType to) {
  constexpr std::size_t kElems = 4096;  // cast at a time
  const std::size_t a_elem_bytes = bits(a) / 8, b_elem_bytes = bits(b) / 8, to_bytes = bits(to) / 8;
  const std::size_t elems = a_bytes.size() / a_elem_bytes;
  std::array<std::byte, kElems * sizeof(std::uint64_t)> buffer;
  DifferenceSummary all;
  for (std::size_t at = 0; at < elems; at += kElems) {
    const std::size_t count = std::min(kElems, elems - at);
    std::span<const std::byte> a_part = a_bytes.subspan(at * a_elem_bytes, count * a_elem_bytes);
    std::span<const std::byte> b_part = b_bytes.subspan(at * b_elem_bytes, count * b_elem_bytes);
    auto& cast = to == b ? a_part : b_part;
    const std::span<std::byte> result(buffer.data(), count * to_bytes);
    cast_elements(to == b ? a : b, cast, to, result, Overflow::kSaturate);
    cast = result;
    DifferenceSummary part = compare_elements(to, a_part, to, b_part, std::nullopt, 1);
    all.differing += part.differing;
    all.max_abs_difference = std::max(all.max_abs_difference, part.max_abs_difference);
    if (all.first.empty() && !part.first.empty()) {
      part.first.front().index += at;
      all.first = std::move(part.first);
    }
  }
  return all;
}

/// Lists tensors that cannot be compared.
void compare_forms(const SourceMap& a, const SourceMap& b, const Comparison& comparison, Verification& result) {
  for (const LogicalTensor& tensor : a.logical) {
    if (tensor.constant()) continue;
    const auto other = b.find_logical(tensor.name);
    if (!other && tensor.role == TensorRole::kPart) continue;
    if (!other) {
      result.only_a.push_back(tensor.name);
      continue;
    }
    const LogicalTensor& match = b.logical[*other];
    if (!comparison.can_compare(tensor, match))
      result.other_form.push_back(fmt::format("{}: {} and {}", tensor.name, form(tensor), form(match)));
  }
  for (const LogicalTensor& tensor : b.logical)
    if (!tensor.constant() && tensor.role != TensorRole::kPart && !a.find_logical(tensor.name))
      result.only_b.push_back(tensor.name);
}

}  // namespace

Verification verify(const SourceMap& a, const SourceMap& b, const VerifyOptions& how, const RunOptions& options) {
  Together alone;
  return verify(a, b, how, options, alone);
}

Verification verify(const SourceMap& a, const SourceMap& b, const VerifyOptions& how, const RunOptions& options,
                    Together& together) {
  Verification result;
  const Comparison comparison(how);
  compare_forms(a, b, comparison, result);
  const ProgramMaps maps{&a, nullptr, &b};
  Program program = make_comparing_program(a, b);
  std::erase_if(program.transfers, [&](const Transfer& transfer) {
    const LogicalTensor& tensor = transfer.tensor(maps);
    return !tensor.constant() && !comparison.can_compare(tensor, *transfer.result(maps));
  });
  std::vector<Found> found(program.transfers.size());
  std::mutex mutex;
  const auto visit = [&](const VisitedBlock& block) {
    const Transfer& transfer = program.transfers[block.transfer];
    if (transfer.tensor(maps).constant()) return;  // another number in its place is an error by itself
    const DType a_dtype = transfer.tensor(maps).dtype;
    const DType b_dtype = transfer.result(maps)->dtype;
    const DifferenceSummary summary =
        comparison.compare(transfer.tensor(maps), block.bytes, *transfer.result(maps), block.against);
    const std::lock_guard lock(mutex);
    Found& tensor = found[block.transfer];
    tensor.max_abs = std::max(tensor.max_abs, summary.max_abs_difference);
    tensor.differing += summary.differing;
    if (summary.first.empty()) return;
    const std::uint64_t elem = block.first_elem + summary.first.front().index;
    if (elem >= tensor.first_elem) return;
    tensor.first_elem = elem;
    tensor.a = format_element(a_dtype, block.bytes, summary.first.front().index);
    tensor.b = format_element(b_dtype, block.against, summary.first.front().index);
  };
  const std::string what =
      how.tolerance ? fmt::format("verify {} {}", how.tolerance->relative, how.tolerance->absolute) : "verify";
  const VisitedRange visited = read_together(maps, program, options, visit, 0, what, together);
  share_findings(visited, together, found);
  for (std::size_t t = 0; t < found.size(); ++t) {
    const LogicalTensor& tensor = program.transfers[t].tensor(maps);
    if (tensor.constant()) continue;
    ++result.compared_tensors;
    result.compared_bytes += num_bytes(tensor.dtype, tensor.shape).value_or(0);
    if (found[t].differing == 0) continue;
    result.different.push_back({tensor.name, found[t].differing, num_elems(tensor.shape).value_or(0),
                                index_of(found[t].first_elem, tensor.shape), found[t].a, found[t].b, found[t].max_abs});
  }
  return result;
}

}  // namespace reshard
