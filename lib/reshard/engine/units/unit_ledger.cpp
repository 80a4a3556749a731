#include "reshard/engine/units/unit_ledger.h"

#include <algorithm>

#include "reshard/base/error.h"
#include "reshard/tensor/values/dtype.h"

namespace reshard {
namespace {

template <typename Item>
void append(std::vector<Item>& to, const std::vector<Item>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

void sort_unique(std::vector<std::uint32_t>& numbers) {
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
}

}  // namespace

void merge(ShareReport& into, const UnitReport& unit, const TargetMap& target) {
  const auto validate = [](bool holds) {
    if (!holds) throw Error(ErrorKind::kBadInput, "belongs to another program");
  };
  into.written_bytes += unit.written_bytes;
  for (const UnitReport::Crc& crc : unit.crcs) {
    validate(crc.stored < into.crcs.size());
    into.crcs[crc.stored] ^= crc.contribution;
  }
  for (const UnitReport::Leaf& leaf : unit.leaves) {
    validate(leaf.target < into.digests.size() &&
             leaf.first_elem < num_elems(target.logical[leaf.target].shape).value_or(0));
    into.digests[leaf.target].add(leaf.first_elem, leaf.digest);
  }
  for (const std::uint32_t file : unit.files) validate(file < target.files.size());
  append(into.written_files, unit.files);
  sort_unique(into.written_files);
  for (const std::size_t transfer : unit.inexact)
    if (const auto at = std::lower_bound(into.inexact.begin(), into.inexact.end(), transfer);
        at == into.inexact.end() || *at != transfer)
      into.inexact.insert(at, transfer);
  ShareReport found;
  found.crcs.resize(into.crcs.size());
  found.divergent = unit.divergent;
  found.lost = unit.lost;
  merge(into, std::move(found));
}

UnitLedger::UnitLedger(const ProgramMaps& maps, const Program& program, const std::vector<Part>& parts,
                       std::function<void(UnitReport)> done)
    : maps_(maps), program_(program), done_(std::move(done)) {
  expect(parts);
}

void UnitLedger::expect(const std::vector<Part>& parts) {
  const std::lock_guard lock(mutex_);
  for (const Part& part : parts) {
    const LogicalTensor& tensor = program_.transfers[part.transfer].tensor(maps_);
    Open& unit = open_[part.unit];
    unit.left_bytes += num_bytes(tensor.dtype, part.box(tensor).size).value_or(0);
    unit.report.unit = part.unit;
  }
}

void UnitLedger::add(const UnitReport& of_block, std::uint64_t block_bytes) {
  UnitReport complete;
  {
    const std::lock_guard lock(mutex_);
    const auto found = open_.find(of_block.unit);
    if (found == open_.end()) return;
    Open& unit = found->second;
    UnitReport& report = unit.report;
    report.written_bytes += of_block.written_bytes;
    append(report.crcs, of_block.crcs);
    append(report.files, of_block.files);
    append(report.leaves, of_block.leaves);
    append(report.inexact, of_block.inexact);
    add_lost(report.lost, of_block.lost);
    append(report.divergent, of_block.divergent);
    unit.left_bytes -= std::min(unit.left_bytes, block_bytes);
    if (unit.left_bytes > 0) return;
    complete = std::move(report);
    open_.erase(found);
  }
  sort_unique(complete.files);
  std::sort(complete.inexact.begin(), complete.inexact.end());
  complete.inexact.erase(std::unique(complete.inexact.begin(), complete.inexact.end()), complete.inexact.end());
  done_(std::move(complete));
}

}  // namespace reshard
