#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "reshard/engine/move/group.h"
#include "reshard/engine/move/run_state.h"
#include "reshard/tensor/cast/drift.h"

namespace reshard {

/// Reads the blocks of one thread.
class BlockReader {
 public:
  BlockReader(RunState& shared, Buffers& buffers) : shared_(shared), buffers_(buffers) {}

  /// Reads block `at` of the tensor into `buffer`. From there it is written to `written_to_bytes` of a file, if it is.
  std::span<const std::byte> read(const SourceMap& map, FilePool<Source>& files, const Reading& reading,
                                  const LogicalTensor& tensor, const Block& at, Buffer& buffer,
                                  std::optional<std::uint64_t> written_to_bytes = {});

  /// Compares block `at` with what the reading's checks find.
  /// \throws Error kBadInput with the first element that differs; kIo.
  void compare(const SourceMap& map, FilePool<Source>& files, const Reading& reading, const LogicalTensor& tensor,
               const Block& at, std::span<const std::byte> block);

  /// Replicas found to differ since the last call, for a UnitLedger.
  std::vector<Divergence> take_noted() { return std::exchange(noted_, {}); }

 private:
  void load(const SourceMap& map, FilePool<Source>& files, const Group& group, std::span<std::byte> block);
  void load_apart(const Source& file, std::uint64_t offset_bytes, const Runs& runs, std::span<std::byte> block);
  void read_ranges(const Source& file, std::uint64_t offset_bytes, const Runs& reads);
  void differ(const SourceMap& map, FilePool<Source>& files, const Reading& reading, std::uint32_t stored,
              const LogicalTensor& tensor, const Dims& index, std::string_view values);
  ReplicaDistance distance(const SourceMap& map, FilePool<Source>& files, const Reading& reading, std::uint32_t stored,
                           const LogicalTensor& tensor, Dims& first);

  RunState& shared_;
  Buffers& buffers_;
  std::vector<Divergence> noted_;
};

/// The values of blocks, for one thread: read from files, or computed from what is read.
class Evaluator {
 public:
  Evaluator(RunState& shared, Buffers& buffers) : shared_(shared), buffers_(buffers), reader_(shared, buffers) {}

  /// Puts block `at` of a tensor into `buffer`, and compares its replicas with it. From there it is written to
  /// `written_to_bytes` of a file, if it is.
  /// \param tensor  of `map`; of another map only a constant, which needs no reading.
  /// \throws Error kBadInput where a check finds other bytes; kIo.
  std::span<const std::byte> evaluate(const SourceMap& map, FilePool<Source>& files, const Reading& reading,
                                      const LogicalTensor& tensor, const Block& at, Buffer& buffer,
                                      std::optional<std::uint64_t> written_to_bytes = {});

  /// What recipes have found since the last call of take_findings.
  const Findings& findings() const { return findings_; }
  /// Returns and forgets them.
  Findings take_findings() { return std::exchange(findings_, {}); }
  /// Replicas found to differ since the last call, for a UnitLedger.
  std::vector<Divergence> take_noted() { return reader_.take_noted(); }
  /// Forgets the inputs that are kept for the tensor before.
  void begin_tensor() {
    kept_.clear();
    last_.clear();
  }

 private:
  std::span<const std::byte> compute(const SourceMap& map, FilePool<Source>& files, const Reading& reading,
                                     const LogicalTensor& tensor, const Block& at, Buffer& buffer,
                                     std::optional<std::uint64_t> written_to_bytes);
  std::span<const std::byte> kept(const SourceMap& map, FilePool<Source>& files, const Reading& input);

  RunState& shared_;
  Buffers& buffers_;
  BlockReader reader_;
  std::size_t used_ = 0;  // number of Buffers::inputs in use
  std::vector<std::pair<const Reading*, std::shared_ptr<KeptInput>>> kept_;
  Findings findings_;
  /// The box of an input that is in Buffers::inputs of the same index. Blocks next to each other may need the same one.
  struct LastInput {
    const Reading* reading = nullptr;
    Box box;
    std::span<const std::byte> bytes;
  };
  std::vector<LastInput> last_;
};

/// Bytes of the inputs that are kept whole while a tensor is computed.
std::uint64_t kept_bytes(const SourceMap& map, const Reading& reading);

}  // namespace reshard
