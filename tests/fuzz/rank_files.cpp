// Files of ranks: what ZeRO saves, and DTensors and ShardedTensors. An input is the pickle of an archive with two
// storages, which each of the readers gets. So does the reader of metadata that torch saved.

#include "fuzz/target.h"
#include "reshard/layouts/deepspeed/zero_files.h"
#include "reshard/layouts/fsdp/distributed_tensor.h"
#include "reshard/specs/stages/stage_pt.h"

void reshard::test::fuzz(std::string_view input) {
  constexpr const char* kPath = "/f.pt";
  MemoryFiles files;
  files.write(kPath, archive_of(input));
  expect_no_crash([&] {
    const ZeroModelStates states = read_zero_model_states(files, kPath);
    for (const TensorEntry& tensor : states.module) check_bounds(tensor, states.file.size_bytes);
    for (const TensorEntry& tensor : states.frozen_fragments) check_bounds(tensor, states.file.size_bytes);
  });
  expect_no_crash([&] {
    const ZeroOptimStates states = read_zero_optim_states(files, kPath);
    for (const TensorEntry& tensor : states.masters) check_bounds(tensor, states.file.size_bytes);
  });
  expect_no_crash([&] {
    ContainerFile file;
    const TensorEntry parameter = read_zero_parameter(files, kPath, file);
    check_bounds(parameter, file.size_bytes);
  });
  expect_no_crash([&] {
    const RankTensors rank = read_rank_tensors(files, kPath, 1);
    for (const DistributedTensor& tensor : rank.tensors)
      for (const TensorEntry& local : tensor.local) check_bounds(local, rank.file.size_bytes);
  });
  expect_no_crash([&] {
    read_stage_pt(files, kPath, 4, [](const std::string& name) -> std::optional<Dims> {
      if (name.ends_with("_q")) return Dims{8, 4};
      return std::nullopt;
    });
  });
}
