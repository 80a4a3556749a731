// Files of ranks: what ZeRO saves, and DTensors and ShardedTensors. An input is the pickle of an archive with two
// storages, which each of the readers gets. So does the reader of metadata that torch saved.

#include <cstdlib>
#include <string>

#include "fuzz/time_limit.h"
#include "reshard/io/memory_files.h"
#include "reshard/layouts/deepspeed/zero_files.h"
#include "reshard/layouts/fsdp/distributed_tensor.h"
#include "reshard/specs/stages/stage_pt.h"
#include "support/zips.h"

namespace reshard {
namespace {

constexpr const char* kPath = "/f.pt";

void check_bounds(const TensorEntry& tensor, const ContainerFile& file) {
  if (tensor.size_bytes == 0) return;
  const std::uint64_t elem_bytes = bits(tensor.dtype) / 8;
  std::uint64_t last = tensor.offset_bytes;
  if (tensor.strides.empty()) last += tensor.size_bytes - elem_bytes;
  for (std::size_t dim = 0; dim < tensor.strides.size(); ++dim)
    last += (tensor.shape[dim] - 1) * tensor.strides[dim] * elem_bytes;
  if (last + elem_bytes > file.size_bytes) std::abort();
}

template <typename Read>
void expect_no_crash(Read&& read) {
  try {
    read();
  } catch (const Error& error) {
    // A read past the end is the reader's mistake: it must have looked at the size before.
    if (error.kind() != ErrorKind::kBadInput && error.kind() != ErrorKind::kUnsupported) std::abort();
  }
}

void read_all(Files& files) {
  expect_no_crash([&] {
    const ZeroModelStates states = read_zero_model_states(files, kPath);
    for (const TensorEntry& tensor : states.module) check_bounds(tensor, states.file);
    for (const TensorEntry& tensor : states.frozen_fragments) check_bounds(tensor, states.file);
  });
  expect_no_crash([&] {
    const ZeroOptimStates states = read_zero_optim_states(files, kPath);
    for (const TensorEntry& tensor : states.masters) check_bounds(tensor, states.file);
  });
  expect_no_crash([&] {
    ContainerFile file;
    check_bounds(read_zero_parameter(files, kPath, file), file);
  });
  expect_no_crash([&] {
    const RankTensors rank = read_rank_tensors(files, kPath, 1);
    for (const DistributedTensor& tensor : rank.tensors)
      for (const TensorEntry& local : tensor.local) check_bounds(local, rank.file);
  });
  expect_no_crash([&] {
    read_torch_metadata(files, kPath, 4, [](const std::string& name) -> std::optional<Dims> {
      if (name.ends_with("_q")) return Dims{8, 4};
      return std::nullopt;
    });
  });
}

}  // namespace
}  // namespace reshard

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, std::size_t size) {
  const reshard::test::TimeLimit limit(size);
  reshard::MemoryFiles files;
  files.write(reshard::kPath, reshard::test::torch_zip(std::string(reinterpret_cast<const char*>(bytes), size),
                                                       {{"0", std::string(48, 's')}, {"1", std::string(64, 't')}}));
  reshard::read_all(files);
  return 0;
}
